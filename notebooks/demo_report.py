"""The demo's report: its parameters, its runs, and the pairs whose labels were reversed most."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from plc_core.analysis.audit import join_last_visits
from plc_core.evaluation.methods import check_same
from plc_core.files import project_path
from plc_core.runs import Run, create_run, open_run, resolve


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
