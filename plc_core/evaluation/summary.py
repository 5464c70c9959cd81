"""What runs earned: one as it was trained, or several on the same corrupted data side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from plc_core.analysis.audit import AGAINST_LENGTH, flip_ranking, routing_by_state
from plc_core.analysis.statistics import MeanInterval, bootstrap_mean
from plc_core.evaluation.benchmarks import GOLD, WORLD, model_for
from plc_core.evaluation.comparison import SFT
from plc_core.evaluation.judged import read_evaluation
from plc_core.evaluation.methods import Contestant, check_same
from plc_core.evaluation.results import bracketed, outcome
from plc_core.evaluation.win_rate import WinRate
from plc_core.runs import Run

DECODINGS = ("greedy", "sampled")
_SCORES = {AGAINST_LENGTH: "lengths alone", "-margin": "the plain margin"}


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


def compare_rewards(runs: Sequence[Run], baseline: Run, control: Run | None = None) -> pd.DataFrame:
    """One row a run and decoding, the reference first: gold reward, win rates, KL.

    Columns: run, label, decoding, n, reward (`MeanInterval`); against_reference, against_baseline
    and against_control (`WinRate`, or None against itself); kl (`MeanInterval`, sampled from the
    policy, or None for the reference).

    Raises:
        RunError: where the runs do not start from the same pairs and model.
    """
    several = {run.name: run for run in (*runs, baseline, *([control] if control else []))}
    check_same(several.values())
    entries = [Contestant(name, run) for name, run in several.items()]
    files = {WORLD: {decoding: decoding for decoding in DECODINGS}}
    evaluation = read_evaluation(entries, files, [GOLD], baseline.name, {})
    # Runs on the same pairs are compared, whatever their training seeds.
    evaluation = replace(evaluation, judged=evaluation.judged.assign(seed=0))
    rivals = {"against_reference": SFT, "against_baseline": baseline.name}
    won = {
        (column, side.where["method"], side.where["decoding"]): side.win_rate()
        for column, rival in (
            rivals | ({"against_control": control.name} if control else {})
        ).items()
        for side in evaluation.sides(rival)
    }
    kl = {
        name: bootstrap_mean(own["log_ratio"], seed=0)
        for name, own in evaluation.log_ratios.groupby("method")
    }
    rewards = dict(list(evaluation.judged.groupby(["method", "decoding"])["reward"]))
    shown = {SFT: SFT, **labels(runs, control)}
    rows = [
        {"run": "reference" if name == SFT else name, "label": label, "decoding": decoding}
        | {"n": len(rewards[name, decoding])}
        | {"reward": bootstrap_mean(rewards[name, decoding], seed=0), "kl": kl.get(name)}
        | {
            column: won.get((column, name, decoding))
            for column in ("against_reference", "against_baseline", "against_control")
        }
        for decoding in DECODINGS
        for name, label in shown.items()
    ]
    return pd.DataFrame(rows).astype(object)


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
        column["KL to SFT, nats per response"] = _interval(row["kl"], 2)
    for run in runs:
        visits, pairs = run.visits(), run.pairs()
        column = columns[shown[run.name]]
        for area in flip_ranking(visits, pairs).to_dict("records"):
            interval = MeanInterval(area["auroc"], area["low"], area["high"], area["n_flip"])
            score = _SCORES.get(area["score"], area["score"])
            column[f"flip AUROC of {score}"] = _interval(interval, 3)
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
    moved = table.drop_duplicates("run").set_index("run")["kl"]
    parts = []
    for row in table[table["run"] == spotlight.name].to_dict("records"):
        won = row["against_control"].share
        finding = outcome(won.low, won.high, 0.5)
        parts.append(f"{_win(row['against_control'])} % in {row['decoding']} decoding ({finding})")
    names = labels([spotlight, control])
    return (
        f"Against {names[control.name]}, which moved {moved[control.name].mean:.2f} nats where "
        f"{names[spotlight.name]} moved {moved[spotlight.name].mean:.2f}, {names[spotlight.name]} "
        f"wins {' and '.join(parts)}, over prompts and one training seed."
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


def _place(name: str, order: list[str]) -> tuple[int, int]:
    groups = ("gold", "win %", "KL", "flip", "q ", "training")
    group = next(i for i, start in enumerate(groups) if name.startswith(start))
    return group, order.index(name)


def _interval(value: MeanInterval | None, digits: int) -> str:
    return bracketed(value[:3], digits) if value is not None and value.n else "–"


def _win(value: WinRate | None) -> str:
    return "–" if value is None else bracketed(100 * number for number in value.share[:3])
