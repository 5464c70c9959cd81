"""The demo's report: its parameters, its runs, and the pairs whose labels were reversed most."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from plc_core.analysis.audit import flip_ranking, join_last_visits, routing_by_state
from plc_core.evaluation.methods import check_same
from plc_core.evaluation.summary import labels
from plc_core.runs import Run, create_run, open_run, resolve
from plc_core.storage.paths import project_path


class ComparisonConfig(BaseModel):
    """The parameters of a notebook that compares runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str  # name of the report's folder
    runs_dir: str = "runs"
    runs: list[str] = Field(min_length=1)  # the runs to compare
    baseline: str  # the run that win rates are against
    control: str | None = None  # the run that moved as far as the spotlight, by beta alone
    spotlight: str  # the run whose routing is shown


class Comparison(NamedTuple):
    """Runs on the same pairs with the same labels, from the same reference."""

    report: Run  # the folder of the report
    runs: list[Run]
    baseline: Run
    control: Run | None
    spotlight: Run


def open_comparison(config: ComparisonConfig) -> Comparison:
    """Open the runs and the report's own folder; an older report of this name is replaced.

    Raises:
        RunError: for a run that is missing, or was trained on other data or from another model.
    """
    folder = project_path(config.runs_dir)
    names = [*config.runs, config.baseline, config.control, config.spotlight]
    opened = {name: open_run(resolve(folder, name)) for name in names if name is not None}
    check_same(opened.values())
    info = {"kind": "analysis", "config": config.model_dump()}
    return Comparison(
        create_run(folder, config.name, info),
        [opened[name] for name in config.runs],
        opened[config.baseline],
        opened[config.control] if config.control else None,
        opened[config.spotlight],
    )


def routing_found(run: Run) -> str:
    """What a run's q_flip tells of labels whose truth is known, as a sentence."""
    visits, pairs = run.visits(), run.pairs()
    means = routing_by_state(visits, pairs).query("state == 'flip'").set_index("group")["mean"]
    area, alone = flip_ranking(visits, pairs).iloc[[0, 1]].to_dict("records")
    return (
        f"{labels([run])[run.name]} gives reversed labels a q_flip of {means['flip']:.2f} on "
        f"average and right ones {means['clean']:.2f}: it ranks a reversed label above a right one "
        f"in {100 * area['auroc']:.0f} % [{100 * area['low']:.0f}, {100 * area['high']:.0f}] of "
        f"cases, as its plain margin does in {100 * alone['auroc']:.0f} % (guessing: 50 %)."
    )


def routing_table(run: Run) -> pd.DataFrame:
    """Mean routing weights with their 95 % intervals as text, a row a true state."""
    table = routing_by_state(run.visits(), run.pairs())
    table = table.assign(
        weight="q_" + table["state"],
        text=[
            f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" if row["n"] else "–"
            for row in table.to_dict("records")
        ],
    )
    shown = table.pivot_table("text", "group", "weight", aggfunc="first", sort=False)
    shown.insert(0, "pairs", table.groupby("group", sort=False)["n"].first().map("{:,}".format))
    return shown.rename_axis(index="true state", columns=None)


def reversed_pairs(run: Run, count: int = 5) -> pd.DataFrame:
    """The pairs whose label training reversed most, by weight times q_flip at their last visit.

    Under an objective without correction these are the ones that PLC-DPO would have reversed.
    """
    joined = join_last_visits(run.visits(), run.pairs())
    joined["reversal"] = joined["weight"] * joined["q_flip"]
    rows = []
    for seen in joined.nlargest(count, "reversal").to_dict("records"):
        pair = run.pair(seen["pair_id"])
        rows.append(
            {
                "pair": seen["pair_id"],
                "prompt": pair["prompt"][-1]["content"],
                "labelled better": pair["chosen"],
                "labelled worse": pair["rejected"],
                "gold rewards": f"{pair['score_chosen']} / {pair['score_rejected']}",
                "step": seen["step"],
                "z": seen["z"],
                "q_flip": seen["q_flip"],
                "weight": seen["weight"],
                "the truth": pair["oracle_state"],
            }
        )
    return pd.DataFrame(rows).set_index("pair")
