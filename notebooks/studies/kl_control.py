"""Win rates beside the control that moved as far: a plain DPO at the beta whose KL matches.

A method that moves further from the reference than DPO does at the same beta wins and loses what
any policy that moves so far wins and loses. So beside every win rate stands a plain DPO run with
the same KL to the reference, and what the method wins over the same prompts beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from notebooks.studies.kl_sentences import is_matched
from plc_core.analysis.statistics import MeanInterval, bootstrap_benchmarks
from plc_core.evaluation.comparison import DECODINGS
from plc_core.evaluation.kl_matching import (
    TOLERANCE,
    WORLD,
    Control,
    Judged,
    find_controls,
    matched_beta,
    mean_kl,
)
from plc_core.evaluation.win_rate import JoinError, join_prompts
from plc_core.files import RunError
from plc_core.runs import Run

__all__ = [
    "MEAN",
    "POOLED",
    "TOLERANCE",
    "WORLD",
    "Control",
    "Judged",
    "find_controls",
    "headline",
    "matched_beta",
    "mean_kl",
    "of_benchmarks",
    "win_rates",
    "win_rates_shown",
]

MEAN, POOLED = "mean of benchmarks", "pooled"
"""Rows over several benchmarks: each benchmark weighs alike, as in the paper; each prompt does."""


def win_rates(
    methods: Mapping[str, Sequence[Run]],
    baseline: Sequence[Run],
    control: Sequence[Run] | None = None,
    benchmarks: Mapping[str, str] | None = None,
    decodings: Sequence[str] = DECODINGS,
    judged: Judged = WORLD,
) -> pd.DataFrame:
    """Win rates of methods against a baseline, seed by seed over the same prompts.

    Args:
        methods: by name, one run a training seed.
        baseline: one run a seed, or one for all seeds; a method that has a baseline's runs is
            compared with itself and left out.
        control: the KL-matched plain DPO, one run a seed; its own row is among `methods`.
        benchmarks: what to call each prompt's benchmark, by prompt id, in place of `judged`'s own.
        decodings: greedy, sampled or both; the KL is read from sampled answers alone.
        judged: where rewards and log-ratios are read.

    Returns:
        One row a method, decoding and benchmark, and where there are several benchmarks before them
        the rows `MEAN` and `POOLED`: seeds, n (prompts of a seed), win_rate, low, high (percent;
        ties half; bootstrap over seeds and over the prompts within each benchmark), ties (percent),
        by_seed (text), reward. With a control also over_control, over_low, over_high (points won
        more than the control does, over the same prompts; NaN for the control itself) and
        control_kl; with sampled answers kl, kl_low, kl_high (nats a response, all prompts pooled).

    Raises:
        RunError: where runs do not start from one model, or a seed has no baseline; for a control
            without sampled answers, whose KL nobody knows.
        JoinError: where two runs answered different prompts; with the counts.
    """
    _same_model([*(run for runs in methods.values() for run in runs), *baseline, *(control or ())])
    has_kl = "sampled" in decodings
    if control and not has_kl:
        raise RunError("A control of like KL needs sampled answers, which the KL is read from.")
    rows = []
    for method, runs in methods.items():
        if {run.path for run in runs} == {run.path for run in baseline}:
            continue
        distances = {}
        if has_kl:
            kl = mean_kl(runs, judged)
            distances = {"kl": kl.mean, "kl_low": kl.low, "kl_high": kl.high}
        others = [_of_seed(run, baseline, "baseline") for run in runs]
        matched = [_of_seed(run, control, "control") for run in runs] if control else None
        itself = control is not None and {r.path for r in runs} == {r.path for r in control}
        for decoding in decodings:
            wins = [_wins(a, b, decoding, judged) for a, b in zip(runs, others, strict=True)]
            held = (
                [_wins(a, b, decoding, judged) for a, b in zip(matched, others, strict=True)]
                if matched and not itself
                else None
            )
            rewards = [judged.rewards(run, decoding) for run in runs]
            places = _places(wins[0].index, benchmarks or judged.benchmarks(runs[0]))
            for name, parts in _groups(places).items():
                row: dict[str, object] = {
                    "method": method,
                    "decoding": decoding,
                    "benchmark": name,
                }
                row |= {"seeds": len(runs), **_numbers(wins, rewards, parts)}
                if control:
                    row |= _over(wins, held, parts)
                    row["control_kl"] = math.nan if itself else mean_kl(control, judged).mean
                rows.append(row | distances)
    return pd.DataFrame(rows)


def headline(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `win_rates` over all prompts as the paper has them: each benchmark weighs alike.

    Those of the one benchmark where there is one.
    """
    several = len(table) and (table["benchmark"] == MEAN).any()
    return table[table["benchmark"] == MEAN] if several else table


def of_benchmarks(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `win_rates` of one benchmark each."""
    return table[~table["benchmark"].isin([MEAN, POOLED])]


def win_rates_shown(table: pd.DataFrame, keys: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The table as text: one row a method, benchmark and other keys, decodings side by side.

    Args:
        table: of `win_rates`.
        keys: the columns that tell rows apart, by what they are called; None is the method alone.
            Where there are several benchmarks, they are told apart too.

    Raises:
        ValueError: where two rows of the table have one place, as they have the same keys.
    """
    keys = dict(keys or {"method": "method"})
    if len(set(table["benchmark"])) > 1:
        keys["benchmark"] = "benchmark"
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for line in table.to_dict("records"):
        key = tuple(_key(line[column]) for column in keys)
        row = rows.setdefault(key, {})
        name = str(line["decoding"])
        if f"win %, {name}" in row:
            raise ValueError(f"Two rows of the win rates are those of {key} in {name} decoding.")
        text = f"{line['win_rate']:.1f} [{line['low']:.1f}, {line['high']:.1f}]"
        text += " all ties" if line["ties"] == 100 else ""
        row[f"win %, {name}"] = text + (f" ({line['by_seed']})" if line["seeds"] > 1 else "")
        if "over_control" in line:
            over = "–"
            if not math.isnan(line["over_control"]):
                bounds = f"[{line['over_low']:+.1f}, {line['over_high']:+.1f}]"
                far = "" if is_matched(line) else ", not matched"
                over = f"{line['over_control']:+.1f} {bounds}{far}"
            row[f"over KL control, {name}"] = over
        if "kl" in line:
            row["KL, nats"] = f"{line['kl']:.2f} [{line['kl_low']:.2f}, {line['kl_high']:.2f}]"
        row["seeds × prompts"] = f"{line['seeds']} × {line['n']}"
    names = list(keys.values())
    index: pd.Index = pd.MultiIndex.from_tuples(list(rows), names=names)
    if len(names) == 1:
        index = pd.Index([key[0] for key in rows], name=names[0])
    shown = pd.DataFrame(list(rows.values()), index=index)
    last = [c for c in ("KL, nats", "seeds × prompts") if c in shown]
    return shown[[c for c in shown if c not in last] + last].fillna("–")


def _key(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _numbers(
    wins: Sequence[pd.Series], rewards: Sequence[pd.Series], parts: Sequence[pd.Index]
) -> dict[str, object]:
    """What is said of the prompts in `parts`, each part weighing alike."""
    own = [[w.loc[part] for part in parts] for w in wins]
    share = bootstrap_benchmarks(own, seed=0)
    level = [np.mean([(values == 0.5).mean() for values in seed]) for seed in own]
    by_seed = [np.mean([values.mean() for values in seed]) for seed in own]
    reward = [np.mean([r.loc[part].mean() for part in parts]) for r in rewards]
    return {
        "n": sum(map(len, parts)),
        "win_rate": 100 * share.mean,
        "low": 100 * share.low,
        "high": 100 * share.high,
        "ties": 100 * float(np.mean(level)),
        "by_seed": ", ".join(f"{100 * w:.1f}" for w in by_seed),
        "reward": float(np.mean(reward)),
    }


def _over(
    wins: Sequence[pd.Series], held: Sequence[pd.Series] | None, parts: Sequence[pd.Index]
) -> dict[str, float]:
    """Points won more than the control wins, `held`; NaN where the method is the control."""
    over = MeanInterval(math.nan, math.nan, math.nan, 0)
    if held:
        more = [a - b.loc[a.index] for a, b in zip(wins, held, strict=True)]
        over = bootstrap_benchmarks([[m.loc[part] for part in parts] for m in more], seed=0)
    return {
        "over_control": 100 * over.mean,
        "over_low": 100 * over.low,
        "over_high": 100 * over.high,
    }


def _of_seed(run: Run, others: Sequence[Run], what: str) -> Run:
    if len(others) == 1:
        return others[0]
    seed = run.info["config"]["seed"]
    found = [other for other in others if other.info["config"]["seed"] == seed]
    if len(found) != 1:
        raise RunError(f"The run {run.name!r} has seed {seed}, and {len(found)} {what} runs do.")
    return found[0]


def _wins(run: Run, other: Run, decoding: str, judged: Judged) -> pd.Series:
    """1, 0.5 or 0 by prompt id."""
    own = judged.rewards(run, decoding)
    try:
        left, right, _ = join_prompts(own, judged.rewards(other, decoding))
    except JoinError as error:
        raise JoinError(f"{run.name} against {other.name}, {decoding}: {error}") from None
    return pd.Series((np.sign(left - right) + 1) / 2, index=own.index)


def _places(prompts: pd.Index, benchmarks: Mapping[str, str]) -> dict[str, pd.Index]:
    """The prompts of each benchmark."""
    names = [benchmarks.get(prompt) for prompt in prompts]
    if None in names:
        raise JoinError(f"{names.count(None)} of {len(prompts)} prompts are in no benchmark.")
    return {str(n): prompts[[m == n for m in names]] for n in dict.fromkeys(names)}


def _groups(places: Mapping[str, pd.Index]) -> dict[str, list[pd.Index]]:
    """Every row's prompts, in parts that weigh alike."""
    alone = {name: [prompts] for name, prompts in places.items()}
    if len(places) == 1:
        return alone
    everyone = places[next(iter(places))]
    for prompts in list(places.values())[1:]:
        everyone = everyone.append(prompts)
    return {MEAN: list(places.values()), POOLED: [everyone], **alone}


def _same_model(runs: Sequence[Run]) -> None:
    seen = {run.name: run.info["reference"]["model"] for run in runs}
    if len(set(seen.values())) > 1:
        raise RunError(f"These runs do not start from the same model: {seen}.")
