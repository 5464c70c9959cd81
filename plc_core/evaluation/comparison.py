"""What runs earned: one as it was trained, or several on the same corrupted data side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from plc_core.analysis.audit import flip_ranking, join_last_visits, routing_by_state
from plc_core.analysis.statistics import MeanInterval, bootstrap_mean
from plc_core.evaluation.benchmarks import model_for
from plc_core.evaluation.methods import Contestant
from plc_core.evaluation.win_rate import WinRate, win_rate
from plc_core.files import RunError, project_path
from plc_core.runs import Run, create_run, open_run, resolve

DECODINGS = ("greedy", "sampled")
_GOLD = "judgements/gold-world.parquet"


def evaluate(run: Run, prompts: int) -> pd.DataFrame:
    """Answer and judge the held-out prompts of the world, and tabulate what a run of it earned.

    Args:
        run: a finished training run; for one of any other model the table says why it is empty.
        prompts: how many held-out prompts to answer; 0 skips the evaluation.
    """
    from plc_core.evaluation.chain import evaluate_runs  # loads torch
    from plc_core.evaluation.completeness import EvaluationConfig

    config = EvaluationConfig.model_validate({"eval_prompts": max(prompts, 1)})
    needed = {model_for(name) for name in config.benchmarks} - {None}
    if needed - {run.info["config"]["model"]}:
        return pd.DataFrame({"not evaluated": ["only the embedded world has a gold reward"]})
    if not prompts:
        return pd.DataFrame({"not evaluated": ["eval_prompts is 0"]})
    evaluate_runs([Contestant(run.name, run)], config, baseline=run.name)
    table = compare_rewards([run], run).drop(columns=["run", "against_baseline", "against_control"])
    for column in ("reward", "against_reference", "kl"):
        table[column] = ["–" if value is None else str(value) for value in table[column]]
    return table


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
    _same_data(list(opened.values()))
    info = {"kind": "analysis", "config": config.model_dump()}
    return Comparison(
        create_run(folder, config.name, info),
        [opened[name] for name in config.runs],
        opened[config.baseline],
        opened[config.control] if config.control else None,
        opened[config.spotlight],
    )


def labels(runs: Sequence[Run], control: Run | None = None) -> dict[str, str]:
    """A name to show for each run: its objective and beta, and more where these are not enough."""
    short = {}
    for run in runs:
        config = run.info["config"]
        short[run.name] = f"{config['objective'].upper()} β={config['beta']:g}"
        if control is not None and run.name == control.name:
            short[run.name] = f"KL control: {short[run.name]}"
    counts = Counter(short.values())
    return {name: text if counts[text] == 1 else f"{text} ({name})" for name, text in short.items()}


def rewards(run: Run, policy: str, decoding: str) -> pd.Series:
    """Gold rewards of a policy's responses, indexed by prompt id."""
    table = run.table(_GOLD)
    rows = table[(table["policy"] == policy) & (table["decoding"] == decoding)]
    return rows.set_index("prompt_id")["reward"]


def kl_to_reference(run: Run) -> pd.Series:
    """log(pi/pi_ref) of the trained policy's sampled responses: its mean is the KL, in nats."""
    kept = "generations/world-log-probs.parquet"
    table = run.table(kept if (run.path / kept).exists() else "generations/world.parquet")
    rows = table[(table["policy"] == "trained") & (table["decoding"] == "sampled")]
    return (rows["policy_logp"] - rows["reference_logp"]).set_axis(rows["prompt_id"])


def _same_data(runs: Sequence[Run]) -> None:
    for what, field, key in (("pairs", "data", "fingerprint"), ("model", "reference", "model")):
        seen = {run.name: run.info[field][key] for run in runs}
        if len(set(seen.values())) > 1:
            raise RunError(f"These runs do not start from the same {what}: {seen}.")


def compare_rewards(runs: Sequence[Run], baseline: Run, control: Run | None = None) -> pd.DataFrame:
    """One row a run and decoding, the reference first: gold reward, win rates, KL.

    Columns: run, label, decoding, n, reward (`MeanInterval`); against_reference, against_baseline
    and against_control (`WinRate`, or None against itself); kl (`MeanInterval`, sampled from the
    policy, or None for the reference).

    Raises:
        RunError: where the runs do not start from the same pairs and model.
    """
    _same_data([*runs, baseline, *([control] if control else [])])
    shown = labels(runs, control)
    rows = []
    for decoding in DECODINGS:
        reference = rewards(baseline, "reference", decoding)
        sides: dict[str, pd.Series | None] = {
            "against_reference": reference,
            "against_baseline": rewards(baseline, "trained", decoding),
            "against_control": rewards(control, "trained", decoding) if control else None,
        }
        selves = {"against_reference": "reference", "against_baseline": baseline.name}
        selves["against_control"] = control.name if control else ""
        policies: dict[str, tuple[str, pd.Series, pd.Series | None]] = {
            "reference": ("SFT", reference, None)
        }
        for run in runs:
            own = rewards(run, "trained", decoding)
            policies[run.name] = (shown[run.name], own, kl_to_reference(run))
        for name, (label, own, kl) in policies.items():
            row = {
                "run": name,
                "label": label,
                "decoding": decoding,
                "n": len(own),
                "reward": bootstrap_mean(own, seed=0),
                "kl": bootstrap_mean(kl, seed=0) if kl is not None else None,
            }
            for side, other in sides.items():
                itself = name == selves[side]
                row[side] = None if other is None or itself else win_rate(own, other)
            rows.append(row)
    return pd.DataFrame(rows)


def summary_table(runs: Sequence[Run], baseline: Run, control: Run | None = None) -> pd.DataFrame:
    """The short table of a comparison as text: a row a measure, a column a policy, SFT first.

    Intervals are 95 %: over prompts for rewards, win rates and KL, over pairs for AUROC.
    """
    shown = labels(runs, control)
    against = {"against_reference": "SFT", "against_baseline": shown.get(baseline.name, "baseline")}
    if control is not None:
        against["against_control"] = "KL control"
    columns: dict[str, dict[str, str]] = {}
    for row in compare_rewards(runs, baseline, control).to_dict("records"):
        column = columns.setdefault(row["label"], {})
        column[f"gold reward, {row['decoding']} (n={row['n']})"] = _interval(row["reward"], 2)
        for side, name in against.items():
            column[f"win % against {name}, {row['decoding']}"] = _win(row[side])
        column["KL to SFT, nats a response"] = _interval(row["kl"], 2)
    for run in runs:
        visits, pairs = run.visits(), run.pairs()
        column = columns[shown[run.name]]
        for area in flip_ranking(visits, pairs).to_dict("records"):
            interval = MeanInterval(area["auroc"], area["low"], area["high"], area["n_flip"])
            column[f"flip AUROC of {area['score']}"] = _interval(interval, 3)
        for state, group in routing_by_state(visits, pairs).groupby("group", sort=False):
            means = "/".join(f"{mean:.3f}" for mean in group["mean"]) if group["n"].max() else "n/a"
            column[f"q clean/flip/tie, {state} pairs (n={group['n'].max():,})"] = means
        column["training, s"] = f"{run.metrics()['seconds'].sum():.0f}"
    table = pd.DataFrame(columns).fillna("–")
    order = [name for column in columns.values() for name in column]
    return table.loc[sorted(table.index, key=lambda name: _place(name, order))]


def verdict(spotlight: Run, control: Run) -> str:
    """One sentence on what is left of a run's gain against the control of like KL."""
    table = compare_rewards([spotlight, control], control, control)
    rows = table[table["run"] == spotlight.name].set_index("decoding")
    kls = [bootstrap_mean(kl_to_reference(run), seed=0).mean for run in (spotlight, control)]
    parts = []
    for decoding, row in rows.iterrows():
        won = row["against_control"].share
        finding = "no difference shown"
        if won.low > 0.5 or won.high < 0.5:
            finding = "it wins more" if won.mean > 0.5 else "it wins less"
        parts.append(f"{_win(row['against_control'])} % in {decoding} decoding ({finding})")
    names = labels([spotlight, control])
    return (
        f"Against {names[control.name]}, which moved {kls[1]:.2f} nats where "
        f"{names[spotlight.name]} moved {kls[0]:.2f}, {names[spotlight.name]} wins "
        f"{' and '.join(parts)}, over prompts and one training seed."
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


def _place(name: str, order: list[str]) -> tuple[int, int]:
    groups = ("gold", "win %", "KL", "flip", "q ", "training")
    group = next(i for i, start in enumerate(groups) if name.startswith(start))
    return group, order.index(name)


def _interval(value: MeanInterval | None, digits: int) -> str:
    if value is None or not value.n:
        return "–"
    mean, low, high = (f"{x:.{digits}f}" for x in value[:3])
    return f"{mean} [{low}, {high}]"


def _win(value: WinRate | None) -> str:
    if value is None:
        return "–"
    share = value.share
    return f"{100 * share.mean:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]"
