"""What an evaluation found, for a reader: text, means and worst cells, seeds, the sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from plc_core.analysis.statistics import MeanInterval, mean_interval
from plc_core.evaluation.win_rate import JoinError
from plc_core.typography import minus

TOLERANCE = 0.1
"""Two KLs that differ by at most this share of the target count as matched."""


def is_matched(kl: float, target: float) -> bool:
    """Whether two KLs are above 0 and as good as the same."""
    return kl > 0 and abs(kl - target) <= TOLERANCE * target


def over_cells(cells: pd.DataFrame, keys: Sequence[str], by: Sequence[str] = ()) -> pd.DataFrame:
    """The mean and the worst of each method's cells, every cell weighing alike.

    Returns one row a group of `by` and method: cells, mean, worst (percent), worst_cell.

    Raises:
        JoinError: where methods of a group do not have the same cells, once each: their means
            would not compare. Seeds are averaged first (`mean_over_seeds`).
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


def mean_over_seeds(cells: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
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


def shown(table: pd.DataFrame, baseline: str = "DPO") -> pd.DataFrame:
    """Results as text: a row a method (and whatever else differs), both decodings side by side.

    Intervals are 95 %, over prompts; over several seeds, mean ± standard deviation. Means over
    benchmarks say over how many.
    """
    parts = [k for k in ("dataset", "model", "benchmark", "judge") if k in table]
    keys = [k for k in parts if len(set(table[k])) > 1]
    keys.append("method")
    rows: dict[tuple[Any, ...], dict[str, str]] = {}
    for key, own in table.groupby(keys, sort=False):
        row = rows.setdefault(key if isinstance(key, tuple) else (key,), {})
        for decoding, part in own.groupby("decoding", sort=False):
            row[f"win % against {baseline}, {decoding}"] = interval(part, "win_rate", "low", "high")
            if "sft" in part:
                text = interval(part, "sft", "sft_low", "sft_high")
                row[f"win % against SFT, {decoding}"] = text
            text = interval(part, "over", "over_low", "over_high")
            row[f"win % at the nearest KL, {decoding}"] = text
        one = own.drop_duplicates("seed")
        row["KL, nats"] = interval(one, "kl", "kl_low", "kl_high", digits=2)
        row["its control (KL)"] = control_text(own)
        counts = sorted(set(own["n"]))
        row["prompts"] = ", ".join(map(str, counts))
        if "benchmarks" in own and (table["benchmarks"] > 1).any():
            row["mean of benchmarks"] = ", ".join(map(str, sorted(set(own["benchmarks"]))))
        if (seeds := len(set(own["seed"]))) > 1:
            row["seeds"] = str(seeds)
    index = pd.MultiIndex.from_tuples(list(rows), names=keys)
    frame = pd.DataFrame(list(rows.values()), index=index)
    order = [name for start in ("win % against " + baseline, "win % at", "win % against SFT")
             for name in map(str, frame) if name.startswith(start)]  # fmt: skip
    frame = frame[[*order, *(name for name in frame if name not in order)]].replace("", "–")
    return frame if len(keys) > 1 else frame.set_axis(frame.index.get_level_values(0))


def control_text(own: pd.DataFrame) -> str:
    """The controls of a method's seeds with their KL, and whether it is far from the method's."""
    lines = own[own["control"].notna()].drop_duplicates("seed")
    texts = []
    for name, part in lines.groupby("control", sort=False):
        near = map(is_matched, part["control_kl"], part["kl"])
        kls = ", ".join(f"{kl:.2f}" for kl in part["control_kl"])
        texts.append(f"{name} ({kls}{'' if all(near) else ', not matched'})")
    return "; ".join(texts)


def bracketed(bounds: Iterable[float], digits: int = 1, sign: str = "") -> str:
    """A number with its interval (low, high), as 52.3 [49.1, 55.4]; `sign` is "+" where 0 is the
    middle.
    """
    value, low, high = (f"{number:{sign}.{digits}f}" for number in bounds)
    return minus(f"{value} [{low}, {high}]")


def interval(part: pd.DataFrame, value: str, low: str, high: str, digits: int = 1) -> str:
    """The number of one row with its interval; the mean of several benchmarks, which has none; of
    several seeds their mean and standard deviation.
    """
    known = part[part[value].notna()]
    if known.empty:
        return "–"
    if len(known) == 1:
        line = known.iloc[0]
        return bracketed(line[[value, low, high]], digits)
    seeds = known.groupby("seed", sort=False)[value].mean()
    if len(seeds) == 1:
        return f"{seeds.iloc[0]:.{digits}f} (mean of {len(known)})"
    return f"{seeds.mean():.{digits}f} ± {seeds.std(ddof=1):.{digits}f}"


def mean_and_worst(
    table: pd.DataFrame, keys: Sequence[str] = ("dataset", "benchmark")
) -> pd.DataFrame:
    """Mean and worst of each method's cells: decoding, method, cells, mean, worst, worst_cell.

    A cell of several seeds is their mean.

    Raises:
        JoinError: where methods do not have the same cells.
    """
    known = table[table["win_rate"].notna()]
    if known.empty:
        raise JoinError("There are no win rates to average.")
    if len(set(known["seed"])) > 1:
        known = mean_over_seeds(known, [*keys, "decoding"])
    return over_cells(known, keys, by=["decoding"])


def finding(table: pd.DataFrame, method: str, baseline: str = "DPO") -> str:
    """One sentence on what a method wins, what the KL explains of it, and what is left."""
    own = table[table["method"] == method]
    parts, left = [], []
    for decoding, part in own.groupby("decoding", sort=False):
        parts.append(f"{interval(part, 'win_rate', 'low', 'high')} % {decoding}")
        if part["over"].notna().any():
            text = f"{interval(part, 'over', 'over_low', 'over_high')} % {decoding}"
            left.append(f"{text} ({difference(part)})")
    one = own.drop_duplicates("seed")
    others = table[table["method"] == baseline].drop_duplicates("seed")
    text = f"{method} wins {' and '.join(parts)} against {baseline} on the same data"
    if one["kl"].isna().all():
        return f"{text}; how far it moved is not known, as it was not sampled."
    text += (
        f", having moved {one['kl'].mean():.2f} nats per response where {baseline} moved "
        f"{others['kl'].mean():.2f}"
    )
    if not left:
        return f"{text}; no control of like KL was asked for."
    names = " and ".join(dict.fromkeys(one["control"].dropna()))
    return (
        f"{text}; against the nearest control ({names}, {one['control_kl'].mean():.2f} nats"
        f"{', not matched' if 'not matched' in control_text(one) else ''}) it wins "
        f"{' and '.join(left)}."
    )


def difference(part: pd.DataFrame) -> str:
    """What an interval of `over`, or the spread of several seeds', says of 50 %."""
    found = bounds(part, "over", "over_low", "over_high")
    return outcome(found.low, found.high, 50)


def outcome(low: float, high: float, level: float) -> str:
    """What an interval of win rates says of the win rate of equals."""
    if low > level:
        return "it wins more"
    return "it wins less" if high < level else "no difference shown"


def bounds(
    part: pd.DataFrame, value: str = "win_rate", low: str = "low", high: str = "high"
) -> MeanInterval:
    """One row's number with its interval over prompts; of several seeds, a row each, their mean
    with Student's interval over seeds.
    """
    if len(part) == 1:
        line = part.iloc[0]
        return MeanInterval(line[value], line[low], line[high], 1)
    if part["seed"].duplicated().any():
        raise JoinError(f"A seed has several rows; average its benchmarks first: {len(part)} rows.")
    return mean_interval(part[value])
