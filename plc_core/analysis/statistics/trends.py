"""Whether a measure rises over groups that have an order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy

from plc_core.analysis.statistics.means import Floats, on_logit_scale, without_nan
from plc_core.analysis.statistics.ranks import Side
from plc_core.analysis.statistics.text import format_interval, format_p, log10_p

_EXACT = 5_000  # arrangements up to which all of them are gone through


@dataclass(frozen=True)
class Jonckheere:
    """The Jonckheere-Terpstra test of a trend over ordered groups.

    `J` counts the pairs of items from two groups in which the one of the later group is larger,
    ties counted half. `concordance` is J as a share of all such pairs: one half without a trend,
    and the AUROC where there are two groups; its 95 % interval is DeLong's for more groups.
    """

    side: Side
    n: dict[str, int]
    missing: int
    J: float
    p: float
    log10_p: float
    concordance: float
    low: float
    high: float
    method: str

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {n:,}" for name, n in self.n.items())
        if math.isnan(self.J):
            return f"n/a ({sizes or 'n=0'})"
        share = format_interval(self.concordance, self.low, self.high)
        missing = f"; {self.missing:,} missing" if self.missing else ""
        return (
            f"J = {self.J:,.1f}, {format_p(self.p, self.log10_p)} ({self.side}), concordance "
            f"{share} (n: {sizes}{missing})"
        )


@dataclass(frozen=True)
class Page:
    """Page's test of a trend over ordered treatments that each of `blocks` went through."""

    L: float
    p: float
    blocks: int
    treatments: int
    incomplete: int

    def __str__(self) -> str:
        if math.isnan(self.L):
            return f"n/a (n={self.blocks})"
        left_out = f", {self.incomplete} incomplete left out" if self.incomplete else ""
        return (
            f"L = {self.L:,.1f}, {format_p(self.p)} (greater), {self.treatments} levels in "
            f"{self.blocks} blocks{left_out}"
        )


def jonckheere(groups: Mapping[str, Iterable[float]], alternative: Side = "greater") -> Jonckheere:
    """Test whether the values rise ("greater"), fall ("less") or either over ordered groups.

    Args:
        groups: the values of each group, 1-d, in the order that is asked about.

    Returns:
        With up to 5,000 arrangements of the items, the exact permutation p, ties or not; else the
        normal approximation with tie correction. Fewer than two groups with values give no test; a
        group without any does not hide the others. Values that are all equal give p = 1.

    Source: Jonckheere 1954; Terpstra 1952; variance with ties as in Hollander, Wolfe and Chicken
    2014, section 6.2.
    """
    kept = {name: without_nan(values) for name, values in groups.items()}
    sizes = {name: len(values) for name, (values, _) in kept.items()}
    missing = sum(count for _, count in kept.values())
    filled = [values for values, _ in kept.values() if len(values)]
    if len(filled) < 2:
        nan = math.nan
        return Jonckheere(alternative, sizes, missing, nan, nan, nan, nan, nan, nan, "n/a")
    placed = _placements(filled)
    total = _cross_pairs([len(values) for values in filled])
    j = _statistic(filled, placed)
    share = j / total
    enough = min(map(len, filled)) >= 2
    # Each item's placement is its part in J, so J varies by their spread within groups.
    spread = sum(len(v) * float(v.var(ddof=1)) for v in placed) if enough else math.nan
    interval = on_logit_scale(share, math.sqrt(spread) / total)
    p, log10, method = _trend_p(j, filled, alternative)
    return Jonckheere(alternative, sizes, missing, j, p, log10, share, *interval, method)


def _statistic(groups: list[Floats], placed: list[Floats] | None = None) -> float:
    return float(sum(values.sum() for values in placed or _placements(groups))) / 2


def _placements(groups: list[Floats]) -> list[Floats]:
    """Of each item: in how many pairs with items of other groups it agrees with the order."""
    placed = [np.zeros(len(values)) for values in groups]
    for i, earlier in enumerate(groups):
        for j in range(i + 1, len(groups)):
            later = groups[j]
            placed[j] += _above(later, earlier)
            placed[i] += len(later) - _above(earlier, later)
    return placed


def _above(values: Floats, others: Floats) -> Floats:
    """How many of `others` each value exceeds, equal ones counted half."""
    ordered = np.sort(others)
    left, right = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return np.asarray((left + right) / 2, dtype=np.float64)


def _cross_pairs(sizes: list[int]) -> float:
    return (sum(sizes) ** 2 - sum(n**2 for n in sizes)) / 2


def _trend_p(j: float, groups: list[Floats], side: Side) -> tuple[float, float, str]:
    sizes = [len(values) for values in groups]
    if _count(sizes) <= _EXACT:
        values = np.concatenate(groups)
        all_js = np.array([_statistic(parts) for parts in _arrangements(values, sizes)])
        # A sum of halves is exact, so equal ones are equal.
        tails = {"greater": float((all_js >= j).mean()), "less": float((all_js <= j).mean())}
        tails["two-sided"] = min(1.0, 2 * min(tails.values()))
        return tails[side], math.log10(tails[side]), "exact permutations"
    variance = _variance(groups, sizes)
    if variance <= 0:  # all values are equal, and so is J in every arrangement
        return 1.0, 0.0, "all values are equal"
    z = (j - _cross_pairs(sizes) / 2) / math.sqrt(variance)
    signed = {"two-sided": abs(z), "greater": z, "less": -z}[side]
    sides = 2 if side == "two-sided" else 1
    p = min(1.0, sides * float(scipy.stats.norm.sf(signed)))
    return p, log10_p(p, signed, sides), "normal approximation with tie correction"


def _count(sizes: list[int]) -> float:
    """In how many ways the items can be spread over the groups."""
    logs = math.lgamma(sum(sizes) + 1) - sum(math.lgamma(n + 1) for n in sizes)
    return math.exp(min(logs, 700.0))


def _arrangements(values: Floats, sizes: list[int]) -> Iterator[list[Floats]]:
    """All ways to spread the values over groups of these sizes."""
    if len(sizes) == 1:
        yield [values]
        return
    for picked in itertools.combinations(range(len(values)), sizes[0]):
        for rest in _arrangements(np.delete(values, picked), sizes[1:]):
            yield [values[list(picked)], *rest]


def _variance(groups: list[Floats], sizes: list[int]) -> float:
    """Of J where all arrangements are equally likely, with ties."""
    _, counts = np.unique(np.concatenate(groups), return_counts=True)
    n, t = np.array(sizes, np.float64), counts.astype(np.float64)
    total = np.array([n.sum()])
    first = (_cubic(total) - _cubic(n) - _cubic(t)) / 72
    triples = _triples(n) * _triples(t) / (36 * _triples(total))
    doubles = _doubles(n) * _doubles(t) / (8 * _doubles(total))
    return first + triples + doubles


def _cubic(n: Floats) -> float:
    return float((n * (n - 1) * (2 * n + 5)).sum())


def _triples(n: Floats) -> float:
    return float((n * (n - 1) * (n - 2)).sum())


def _doubles(n: Floats) -> float:
    return float((n * (n - 1)).sum())


def page(table: pd.DataFrame) -> Page:
    """Test whether a measure rises over the columns of `table`, in their order, within its rows.

    A row is a block, as a training seed, a column a level, as a noise rate. Rows with a missing
    value are left out and counted. At least three columns and two whole rows make a test.

    Source: Page 1963, by scipy: exact for few and small blocks.
    """
    whole = table.dropna()
    shape = (len(whole), table.shape[1], len(table) - len(whole))
    if len(whole) < 2 or table.shape[1] < 3:
        return Page(math.nan, math.nan, *shape)
    result = scipy.stats.page_trend_test(whole.to_numpy(np.float64))
    return Page(float(result.statistic), float(result.pvalue), *shape)
