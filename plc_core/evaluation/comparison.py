"""Runs on the same corrupted data side by side, from their files alone."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from plc_core.analysis.audit import flip_ranking, join_last_visits, routing_by_state
from plc_core.analysis.statistics import MeanInterval, bootstrap_mean
from plc_core.evaluation.win_rate import WinRate, win_rate
from plc_core.files import RunError, project_path
from plc_core.runs import Run, create_run, open_run, resolve

DECODINGS = ("greedy", "sampled")
_GOLD = "judgements/gold-world.parquet"


class ComparisonConfig(BaseModel):
    """The parameters of a notebook that compares runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str  # name of the report's folder
    runs_dir: str = "runs"
    runs: list[str] = Field(min_length=1)  # the runs to compare
    baseline: str  # the run that win rates are against
    spotlight: str  # the run whose routing is shown


def open_comparison(config: ComparisonConfig) -> tuple[Run, list[Run], Run, Run]:
    """The report's own folder, the runs, the baseline and the spotlight.

    A report is derived from the runs, so an older one of this name is replaced.

    Raises:
        RunError: for a run that is missing, or was trained on other data.
    """
    folder = project_path(config.runs_dir)
    runs = [open_run(resolve(folder, name)) for name in config.runs]
    baseline, spotlight = (
        open_run(resolve(folder, name)) for name in (config.baseline, config.spotlight)
    )
    same_data([*runs, baseline, spotlight])
    info = {"kind": "analysis", "config": config.model_dump()}
    report = create_run(folder, config.name, info, replace_analysis=True)
    report.set_status(state="done")
    return report, runs, baseline, spotlight


def label(run: Run) -> str:
    """The objective with its beta, as it stands in tables and legends."""
    config = run.info["config"]
    return f"{config['objective'].upper()} β={config['beta']:g}"


def rewards(run: Run, policy: str, decoding: str) -> pd.Series:
    """Gold rewards of a policy's responses, indexed by prompt id."""
    table = run.table(_GOLD)
    rows = table[(table["policy"] == policy) & (table["decoding"] == decoding)]
    return rows.set_index("prompt_id")["reward"]


def kl_to_reference(run: Run) -> pd.Series:
    """log(pi/pi_ref) of the trained policy's sampled responses: its mean is the KL, in nats."""
    table = run.table("generations/world.parquet")
    rows = table[(table["policy"] == "trained") & (table["decoding"] == "sampled")]
    return (rows["policy_logp"] - rows["reference_logp"]).set_axis(rows["prompt_id"])


def same_data(runs: Sequence[Run]) -> None:
    """RunError unless all runs saw the same pairs with the same labels."""
    seen = {run.name: run.info["data"]["fingerprint"] for run in runs}
    if len(set(seen.values())) > 1:
        raise RunError(f"These runs were not trained on the same data: {seen}.")


def compare_rewards(runs: Sequence[Run], baseline: Run) -> pd.DataFrame:
    """One row a run and decoding, the reference first: gold reward, win rates, KL.

    Columns: run, label, decoding, reward (`MeanInterval`), against_baseline and against_reference
    (`WinRate` or None), kl (`MeanInterval` or None; sampled from the policy), n.
    """
    same_data([*runs, baseline])
    rows = []
    for decoding in DECODINGS:
        base = rewards(baseline, "trained", decoding)
        reference = rewards(baseline, "reference", decoding)
        rows.append(
            {
                "run": "reference",
                "label": "SFT (reference)",
                "decoding": decoding,
                "reward": bootstrap_mean(reference, seed=0),
                "against_baseline": win_rate(reference, base),
                "against_reference": None,
                "kl": None,
                "n": len(reference),
            }
        )
        for run in runs:
            own = rewards(run, "trained", decoding)
            rows.append(
                {
                    "run": run.name,
                    "label": label(run),
                    "decoding": decoding,
                    "reward": bootstrap_mean(own, seed=0),
                    "against_baseline": None if run.name == baseline.name else win_rate(own, base),
                    "against_reference": win_rate(own, reference),
                    "kl": bootstrap_mean(kl_to_reference(run), seed=0),
                    "n": len(own),
                }
            )
    return pd.DataFrame(rows)


def summary_table(runs: Sequence[Run], baseline: Run) -> pd.DataFrame:
    """The short table of a comparison as text: a row a measure, a column a policy, SFT first.

    Intervals are 95 %: over prompts for rewards, win rates and KL, over pairs for AUROC.
    """
    measured = compare_rewards(runs, baseline)
    columns: dict[str, dict[str, str]] = {}
    for row in measured.to_dict("records"):
        column = columns.setdefault(row["label"], {})
        decoding = row["decoding"]
        column[f"gold reward, {decoding}"] = _interval(row["reward"])
        column[f"win % vs {label(baseline)}, {decoding}"] = _win(row["against_baseline"])
        column[f"win % vs SFT, {decoding}"] = _win(row["against_reference"])
        column["KL to SFT, nats a response"] = _interval(row["kl"])
    for run in runs:
        visits, pairs = run.visits(), run.pairs()
        column = columns[label(run)]
        for area in flip_ranking(visits, pairs).to_dict("records"):
            interval = MeanInterval(area["auroc"], area["low"], area["high"], area["n_flip"])
            column[f"flip AUROC of {area['score']}"] = _interval(interval)
        for state, group in routing_by_state(visits, pairs).groupby("group", sort=False):
            means = " / ".join(f"{mean:.3f}" for mean in group["mean"])
            column[f"q clean / flip / tie, {state} pairs (n={group['n'].max():,})"] = means
        column["training time, s"] = f"{run.metrics()['seconds'].sum():.0f}"
    table = pd.DataFrame(columns).fillna("–")
    order = [name for column in columns.values() for name in column]
    return table.loc[sorted(table.index, key=lambda name: _place(name, order))]


def suspicious_pairs(run: Run, count: int = 5) -> pd.DataFrame:
    """The pairs with the largest q_flip at their last visit, with their texts and the truth."""
    joined = join_last_visits(run.visits(), run.pairs()).nlargest(count, "q_flip")
    rows = []
    for seen in joined.to_dict("records"):
        pair = run.pair(seen["pair_id"])
        rows.append(
            {
                "pair": seen["pair_id"],
                "prompt": pair["prompt"][-1]["content"],
                "labelled as better": pair["chosen"],
                "labelled as worse": pair["rejected"],
                "gold rewards": f"{pair['score_chosen']} / {pair['score_rejected']}",
                "z": round(seen["z"], 2),
                "q_flip": round(seen["q_flip"], 3),
                "the truth": pair["oracle_state"],
            }
        )
    return pd.DataFrame(rows).set_index("pair")


def _place(name: str, order: list[str]) -> tuple[int, int]:
    groups = ("gold", "win % vs", "KL", "flip", "q ", "training")
    group = next(i for i, start in enumerate(groups) if name.startswith(start))
    return group, order.index(name)


def _interval(value: MeanInterval | None) -> str:
    if value is None or not value.n:
        return "–"
    return f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _win(value: WinRate | None) -> str:
    if value is None:
        return "–"
    share = value.share
    return f"{100 * share.mean:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]"
