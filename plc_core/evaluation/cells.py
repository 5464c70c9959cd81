"""From judged responses to cells, and from cells to means, worst cells and seeds."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from plc_core.analysis.statistics import MeanInterval, bootstrap_mean, bootstrap_strata
from plc_core.evaluation.win_rate import Incomplete, JoinError, WinRate, verdicts, win_rate


def win_rate_cells(
    judged: pd.DataFrame,
    baseline: str,
    keys: Sequence[str] = ("benchmark",),
    incomplete: Incomplete = "error",
    baseline_seed: int | None = None,
) -> pd.DataFrame:
    """Win rates of every method against `baseline`, one row a cell and method.

    Args:
        judged: one row a response: the columns `keys`, method, prompt_id, reward, and seed where
            there are several training seeds.
        baseline: the method that win rates are against; where `baseline_seed` is given, its
            other seeds have rows of their own.
        keys: what makes a cell, as ("dataset", "model", "benchmark", "decoding").
        incomplete: as in `win_rate`.
        baseline_seed: the baseline's one seed that every seed is compared with, as in the paper's
            seed table; None compares like seeds.

    Returns:
        `keys`, method, (seed,) n, wins, ties, losses; win_rate, low and high in percent; p_sign,
        p_wilcoxon; note, which is empty or says what was left out.

    Raises:
        JoinError: for a column or a baseline that is missing, or prompts that do not meet.
    """
    rows = []
    for key, own, other in _compared(judged, baseline, keys, baseline_seed):
        try:
            result = win_rate(own, other, incomplete)
        except JoinError as error:
            raise JoinError(f"{_where(key)}: {error}") from None
        rows.append(key | win_rate_columns(result))
    if not rows:
        raise JoinError(f"No method but the baseline {baseline!r} was judged.")
    return pd.DataFrame(rows)


def mean_win_rates(
    judged: pd.DataFrame,
    baseline: str,
    keys: Sequence[str],
    incomplete: Incomplete = "error",
    baseline_seed: int | None = None,
) -> pd.DataFrame:
    """As `win_rate_cells`, the mean over benchmarks, each weighing alike whatever its size.

    Args:
        keys: what makes a group of benchmarks, as ("dataset", "model", "decoding").

    Returns:
        One row a group, method (and seed): `keys`, method, (seed,) benchmarks (how many), n
        (prompts of all), win_rate, low, high (percent; 95 % bootstrap within benchmarks).
    """
    wins: dict[tuple[Any, ...], dict[str, pd.Series]] = {}
    for key, own, other in _compared(judged, baseline, [*keys, "benchmark"], baseline_seed):
        benchmark = str(key.pop("benchmark"))
        try:
            wins.setdefault(tuple(key.items()), {})[benchmark] = verdicts(own, other, incomplete)
        except JoinError as error:
            raise JoinError(f"{_where(key)}, benchmark {benchmark}: {error}") from None
    rows = []
    for group, own_wins in wins.items():
        share = mean_over_benchmarks(own_wins)
        numbers = {"win_rate": share.mean, "low": share.low, "high": share.high}
        rows.append(
            dict(group)
            | {"benchmarks": len(own_wins), "n": share.n}
            | {name: 100 * value for name, value in numbers.items()}
        )
    if not rows:
        raise JoinError(f"No method but the baseline {baseline!r} was judged.")
    return pd.DataFrame(rows)


def mean_over_benchmarks(values: Mapping[str, pd.Series]) -> MeanInterval:
    """The mean of the benchmarks' means, each weighing alike, with a 95 % bootstrap interval.

    Prompts are drawn within each benchmark. Benchmarks of the same prompt ids, as AlpacaEval and
    AlpacaEval 2, are drawn together, as their answers are the same ones.

    Args:
        values: of the prompts of each benchmark, by prompt id.
    """
    same: dict[tuple[Hashable, ...], list[pd.Series]] = {}
    for own in map(pd.Series.dropna, values.values()):
        same.setdefault(tuple(sorted(own.index)), []).append(own)
    groups = [sum(own[1:], own[0]) / len(own) for own in same.values()]
    weights = [len(own) for own in same.values()]
    found = bootstrap_strata(groups, seed=0, weights=weights)
    return found._replace(n=sum(len(own) for several in same.values() for own in several))


def _compared(
    judged: pd.DataFrame, baseline: str, keys: Sequence[str], baseline_seed: int | None
) -> Iterator[tuple[dict[str, Any], pd.Series, pd.Series]]:
    """What names a side (`keys`, method, seed), its rewards and the baseline's, by prompt id."""
    seeded = "seed" in judged
    names = [*keys, "method", "prompt_id", "reward"]
    if absent := [name for name in names if name not in judged]:
        raise JoinError(
            f"The judged responses lack the columns {', '.join(absent)}; they have "
            f"{', '.join(map(str, judged.columns))}."
        )
    if judged.empty:
        raise JoinError("There are no judged responses.")
    sides = [*keys, "method", *(["seed"] if seeded else [])]
    if holes := int(judged[sides].isna().any(axis=1).sum()):
        raise JoinError(f"{holes} judged responses lack one of {', '.join(sides)}.")
    rewards: dict[tuple[Hashable, ...], pd.Series] = {
        key if isinstance(key, tuple) else (key,): group.set_index("prompt_id")["reward"]
        for key, group in judged.groupby(sides, sort=False)
    }
    for key, own in rewards.items():
        cell, method, seed = key[: len(keys)], key[len(keys)], key[len(keys) + 1 :]
        against = (baseline_seed,) if seeded and baseline_seed is not None else seed
        if method == baseline and (baseline_seed is None or seed == against):
            continue  # a comparison with itself
        named = dict(zip(sides, key, strict=True))
        other = rewards.get((*cell, baseline, *against))
        if other is None:
            raise JoinError(f"{_where(named)}: there are no rewards of the baseline {baseline!r}.")
        yield named, own, other


def over_cells(cells: pd.DataFrame, keys: Sequence[str], by: Sequence[str] = ()) -> pd.DataFrame:
    """The mean and the worst of each method's cells, every cell weighing alike.

    Returns one row a group of `by` and method: cells, mean, worst (percent), worst_cell.

    Raises:
        JoinError: where methods of a group do not have the same cells, once each: their means
            would not compare. Seeds are averaged first (`over_seeds`).
    """
    rows = []
    for group, part in cells.groupby([*by], sort=False) if by else [((), cells)]:
        wanted = set(map(tuple, part[[*keys]].to_numpy()))
        for method, own in part.groupby("method", sort=False):
            have = list(map(tuple, own[[*keys]].to_numpy()))
            lacking = sorted(map(str, wanted - set(have)))
            if lacking:
                what = f"lacks {len(lacking)} of {len(wanted)} cells, as {lacking[0]}"
                raise JoinError(f"{method} {what}: its mean would not compare with the others'.")
            if len(have) > len(wanted):
                raise JoinError(f"{method} has {len(have)} rows for {len(wanted)} cells.")
            worst = own.iloc[int(own["win_rate"].argmin())]
            rows.append(
                dict(zip(by, group, strict=True))
                | {
                    "method": method,
                    "cells": len(own),
                    "mean": own["win_rate"].mean(),
                    "worst": worst["win_rate"],
                    "worst_cell": ", ".join(str(worst[key]) for key in keys),
                }
            )
    return pd.DataFrame(rows)


def over_seeds(cells: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean and standard deviation (n - 1) over seeds: one row a cell and method.

    Returns `keys`, method, seeds, win_rate, sd (percent; NaN for one seed), and where the cells
    have them n (prompts of a seed) and kl (mean over seeds).
    The interval over prompts of one seed is left out: it does not hold for a mean over seeds.

    Raises:
        JoinError: where a cell has a seed twice, or seeds of a cell rest on different counts and
            no note says what was left out.
    """
    rows = []
    for key, own in cells.groupby([*keys, "method"], sort=False):
        where = ", ".join(map(str, key))
        if own["seed"].duplicated().any():
            raise JoinError(f"{where}: a seed is there twice.")
        known = own["note"] if "note" in own else pd.Series("", index=own.index)
        if "n" in own and len(set(own["n"])) > 1 and not known.any():
            raise JoinError(f"{where}: seeds rest on {sorted(set(own['n']))} prompts.")
        rows.append(
            dict(zip([*keys, "method"], key, strict=True))
            | {
                "seeds": len(own),
                "win_rate": own["win_rate"].mean(),
                "sd": own["win_rate"].std(ddof=1),
            }
            # Where prompts were left out, as a note says, the seeds may rest on different ones.
            | ({"n": own["n"].min()} if "n" in own else {})
            # A seed without a KL leaves the mean without one.
            | ({"kl": own["kl"].mean(skipna=False)} if "kl" in own else {})
        )
    return pd.DataFrame(rows)


def with_kl(table: pd.DataFrame, kl: Mapping[Any, pd.Series], on: str = "method") -> pd.DataFrame:
    """`table` with kl, kl_low and kl_high: nats a response to the reference.

    Args:
        table: any table with the column `on`.
        kl: for each value of `on`, log(pi/pi_ref) of its sampled responses by prompt; its mean is
            the KL. A value that has none gets NaN, which tables show as "–".

    Raises:
        JoinError: where a log-ratio is NaN.
    """
    intervals = {}
    for name, ratios in kl.items():
        if missing := int(ratios.isna().sum()):
            raise JoinError(f"{missing} of {len(ratios)} log-ratios of {name!r} are NaN.")
        intervals[name] = bootstrap_mean(ratios, seed=0)
    result = table.copy()
    for column, field in (("kl", "mean"), ("kl_low", "low"), ("kl_high", "high")):
        known = {name: getattr(interval, field) for name, interval in intervals.items()}
        result[column] = result[on].map(known).astype("float64")
    return result


def win_rate_columns(result: WinRate) -> dict[str, Any]:
    """The columns of a table that a win rate fills; shares in percent."""
    return {
        "n": result.share.n,
        "wins": result.wins,
        "ties": result.ties,
        "losses": result.losses,
        "win_rate": 100 * result.share.mean,
        "low": 100 * result.share.low,
        "high": 100 * result.share.high,
        "p_sign": result.sign.p,
        "p_wilcoxon": result.wilcoxon.p if result.wilcoxon else float("nan"),
        "note": result.note,
    }


def _where(side: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in side.items())
