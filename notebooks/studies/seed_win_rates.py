"""Win rates over training seeds, and what a method wins beyond a control of like KL.

A method that moves further from the reference than DPO does at the same beta wins and loses what
any policy that moves so far wins and loses. So beside every win rate may stand a control, a plain
DPO with the same KL, and the points that the method wins more over the same prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from plc_core.analysis.statistics import MeanInterval, bootstrap_benchmarks, bootstrap_seeds
from plc_core.evaluation.comparison import SFT, Evaluation
from plc_core.storage.files import RunError

MEAN, POOLED = "mean of benchmarks", "pooled"
"""Rows over several benchmarks: each benchmark weighs alike, as in the paper; each prompt does."""

_Values: TypeAlias = Mapping[int, Mapping[str, pd.Series]]  # by prompt id, by seed and benchmark


def win_rates(evaluation: Evaluation, control: str | None = None) -> pd.DataFrame:
    """Win rates of every method against the baseline, seed by seed over the same prompts.

    Args:
        evaluation: by one judge; a baseline of one seed serves all seeds.
        control: the method that is the KL-matched plain DPO; its own row is among the others.
            Runs of several names are one method: what would be compared with itself is left out.

    Returns:
        One row a method, decoding and benchmark, and where there are several benchmarks before them
        the rows `MEAN` and `POOLED`: seeds, n (prompts of a seed), win_rate, low, high (percent;
        ties half; bootstrap over seeds and over the prompts within each benchmark), ties (percent),
        by_seed (text), reward. With a control also over_control, over_low, over_high (points won
        more than the control does, over the same prompts; NaN for the control itself) and
        control_kl; with sampled answers kl, kl_low, kl_high (nats per response, all prompts).

    Raises:
        RunError: for a control without sampled answers, whose KL nobody knows.
        JoinError: where a seed has no baseline, or two sides answered different prompts; with the
            counts.
    """
    ratios = evaluation.log_ratios
    if control and ratios.empty:
        raise RunError("A control of like KL needs sampled answers, which the KL is read from.")
    kls = {
        method: bootstrap_seeds([seed["log_ratio"] for _, seed in own.groupby("seed")], seed=0)
        for method, own in ratios.groupby("method")
    }
    judged, baseline = evaluation.judged, evaluation.baseline
    runs = {method: set(own["run"]) for method, own in judged.groupby("method")}
    seeds = set(judged.loc[judged["method"] == baseline, "seed"])
    answers: dict[tuple[str, str], dict[int, dict[str, pd.DataFrame]]] = {}
    for where, own, _ in evaluation.sides(baseline_seed=seeds.pop() if len(seeds) == 1 else None):
        of_seed = answers.setdefault((where["method"], where["decoding"]), {})
        of_seed.setdefault(where["seed"], {})[where["benchmark"]] = own
    rows = []
    for (method, decoding), of_seeds in answers.items():
        if method == SFT or runs[method] == runs[baseline]:
            continue
        is_control = control is not None and runs[method] == runs[control]
        wins, rewards = (
            {s: {name: own[value] for name, own in of.items()} for s, of in of_seeds.items()}
            for value in ("win", "reward")
        )
        beyond = _beyond(wins, answers[control, decoding]) if control else {}
        for name, parts in _groups(list(next(iter(of_seeds.values())))).items():
            row: dict[str, Any] = {"method": method, "decoding": decoding, "benchmark": name}
            row |= {"seeds": len(wins), **_numbers(_parted(wins, parts), _parted(rewards, parts))}
            if control:
                over = MeanInterval(math.nan, math.nan, math.nan, 0)
                if not is_control:
                    over = bootstrap_benchmarks(_parted(beyond, parts), seed=0)
                row |= {"over_control": 100 * over.mean}
                row |= {"over_low": 100 * over.low, "over_high": 100 * over.high}
                row["control_kl"] = math.nan if is_control else kls[control].mean
            if method in kls:
                kl = kls[method]
                row |= {"kl": kl.mean, "kl_low": kl.low, "kl_high": kl.high}
            rows.append(row)
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


def _groups(names: Sequence[str]) -> dict[str, list[list[str]]]:
    """Every row's benchmarks, in parts that weigh alike."""
    alone = {name: [[name]] for name in names}
    if len(names) == 1:
        return alone
    return {MEAN: [[name] for name in names], POOLED: [list(names)], **alone}


def _parted(values: _Values, parts: Sequence[Sequence[str]]) -> list[list[pd.Series]]:
    """For each seed the values of each part."""
    return [[pd.concat([of[name] for name in part]) for part in parts] for of in values.values()]


def _beyond(wins: _Values, control: Mapping[int, Mapping[str, pd.DataFrame]]) -> _Values:
    """By prompt, what is won more than the control wins; a control of one seed serves all."""
    found = {}
    for seed, of in wins.items():
        held = control[seed if len(control) > 1 else next(iter(control))]
        found[seed] = {name: own - held[name]["win"].loc[own.index] for name, own in of.items()}
    return found


def _numbers(wins: list[list[pd.Series]], rewards: list[list[pd.Series]]) -> dict[str, Any]:
    """What is said of the prompts of some parts, each part weighing alike."""
    share = bootstrap_benchmarks(wins, seed=0)
    ties = [np.mean([(part == 0.5).mean() for part in seed]) for seed in wins]
    by_seed = [np.mean([part.mean() for part in seed]) for seed in wins]
    return {
        "n": sum(map(len, wins[0])),
        "win_rate": 100 * share.mean,
        "low": 100 * share.low,
        "high": 100 * share.high,
        "ties": 100 * float(np.mean(ties)),
        "by_seed": ", ".join(f"{100 * won:.1f}" for won in by_seed),
        "reward": float(np.mean([np.mean([part.mean() for part in seed]) for seed in rewards])),
    }
