"""Rank statistics of two groups, and of two measures of the same items."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import scipy

from plc_core.analysis.statistics.means import (
    Floats,
    as_list,
    normal_quantile,
    on_logit_scale,
    without_nan,
)
from plc_core.analysis.statistics.text import format_interval, format_number, format_p, log10_p

Side: TypeAlias = Literal["two-sided", "greater", "less"]


@dataclass(frozen=True)
class MannWhitney:
    """The Mann-Whitney U test of group a against group b.

    `U` belongs to a. `auroc` is U / (n_a n_b), the chance that a random member of a exceeds one of
    b, ties counted half, with DeLong's 95 % interval; `rank_biserial` is 2 auroc - 1, positive
    where a tends to be larger. `log10_p` goes on where p is too small for a float.
    """

    side: Side
    n_a: int
    n_b: int
    nan_a: int
    nan_b: int
    U: float
    p: float
    log10_p: float
    rank_biserial: float
    auroc: float
    auroc_low: float
    auroc_high: float

    def __str__(self) -> str:
        if self.n_a == 0 or self.n_b == 0:
            return f"n/a (n={min(self.n_a, self.n_b)})"
        missing = self.nan_a + self.nan_b
        auroc = format_interval(self.auroc, self.auroc_low, self.auroc_high)
        return (
            f"U = {self.U:,.1f}, {format_p(self.p, self.log10_p)} ({self.side}), "
            f"rank-biserial r = {self.rank_biserial:+.3f}, AUROC = {auroc} "
            f"(n={self.n_a:,} vs {self.n_b:,}" + (f", {missing:,} missing)" if missing else ")")
        )


@dataclass(frozen=True)
class Auroc:
    """Area under the ROC curve with its 95 % interval; `method` names the interval."""

    value: float
    low: float
    high: float
    n_positive: int
    n_negative: int
    method: str

    def __str__(self) -> str:
        if self.n_positive == 0 or self.n_negative == 0:
            return f"n/a (n={min(self.n_positive, self.n_negative)})"
        value = format_interval(self.value, self.low, self.high)
        return f"{value} (n={self.n_positive:,} vs {self.n_negative:,})"


@dataclass(frozen=True)
class Spearman:
    """Spearman's rank correlation of two measures of the same items, with its 95 % interval.

    `missing` items lack one of the two. `rho` is NaN where a measure is the same throughout.
    """

    rho: float
    low: float
    high: float
    n: int
    missing: int
    p: float
    log10_p: float

    def __str__(self) -> str:
        if self.n == 0 or math.isnan(self.rho):
            return f"n/a (n={self.n:,})"
        bounds = f"[{format_number(self.low)}, {format_number(self.high)}]"
        missing = f", {self.missing:,} missing" if self.missing else ""
        p = format_p(self.p, self.log10_p)
        return f"Spearman {self.rho:+.3f} {bounds}, {p} (n={self.n:,}{missing})"


def mann_whitney(
    a: Iterable[float], b: Iterable[float], alternative: Side = "two-sided"
) -> MannWhitney:
    """Test whether values in `a` tend to be larger (or smaller) than values in `b`.

    `a` and `b` are 1-d and may differ in length. They are taken for independent: callers leave out
    items that would be in both (`inspection.bench` counts them). An empty group gives NaN for U, p
    and the effect sizes. Small samples without ties are tested exactly, all others by the normal
    approximation with tie correction (scipy's "auto"). The paper's test in section "Tie-State
    Selectivity".
    """
    kept_a, nan_a = without_nan(a)
    kept_b, nan_b = without_nan(b)
    m, n = len(kept_a), len(kept_b)
    if not m or not n:
        return MannWhitney(alternative, m, n, nan_a, nan_b, *[math.nan] * 7)
    result = scipy.stats.mannwhitneyu(kept_a, kept_b, alternative=alternative)
    u, p = float(result.statistic), float(result.pvalue)
    area = u / (m * n)
    return MannWhitney(
        alternative,
        m,
        n,
        nan_a,
        nan_b,
        u,
        p,
        log10_p(p, _z(u, kept_a, kept_b, alternative), 2 if alternative == "two-sided" else 1),
        2 * area - 1,
        area,
        *on_logit_scale(area, _delong_error(kept_a, kept_b)),
    )


def _z(u: float, a: Floats, b: Floats, side: Side) -> float:
    """The standardised U, tie-corrected and with continuity correction, positive for `side`."""
    m, n = len(a), len(b)
    total = m + n
    _, counts = np.unique(np.concatenate([a, b]), return_counts=True)
    ties = float((counts.astype(np.float64) ** 3 - counts).sum()) / max(total * (total - 1), 1)
    spread = math.sqrt(m * n / 12 * (total + 1 - ties))
    gap = u - m * n / 2
    gap = {"two-sided": abs(gap), "greater": gap, "less": -gap}[side] - 0.5
    return gap / spread if spread else 0.0


def auroc(scores: Iterable[float], positive: Iterable[bool]) -> Auroc:
    """How well `scores` rank the `positive` items above the others.

    Both are 1-d of one length (ValueError otherwise). The interval is DeLong's, taken on the logit
    scale so that it stays inside (0, 1); it is NaN where the groups are separated perfectly or
    hold fewer than two values, as the variance says nothing there.

    Source: DeLong et al. 1988; midrank form of Sun and Xu 2014, equations 5 to 8.
    """
    values = np.asarray(as_list(scores), dtype=np.float64)
    labels = np.asarray(as_list(positive), dtype=bool)
    if values.shape != labels.shape or values.ndim != 1:
        raise ValueError(
            f"scores and positive must be 1-d and of one length, not {values.shape} and "
            f"{labels.shape}."
        )
    known = ~np.isnan(values)
    above, below = values[known & labels], values[known & ~labels]
    m, n = len(above), len(below)
    if m == 0 or n == 0:
        return Auroc(math.nan, math.nan, math.nan, m, n, "n/a")
    area = float(_exceeded(above, below).mean())
    if min(m, n) < 2 or not 0 < area < 1:
        return Auroc(area, math.nan, math.nan, m, n, "DeLong, undefined here")
    low, high = on_logit_scale(area, _delong_error(above, below))
    return Auroc(area, low, high, m, n, "DeLong on the logit scale")


def _exceeded(values: Floats, others: Floats) -> Floats:
    """The share of `others` that each value exceeds, equal ones counted half."""
    ranks = scipy.stats.rankdata(np.concatenate([values, others]))[: len(values)]
    return (ranks - scipy.stats.rankdata(values)) / len(others)


def _delong_error(above: Floats, below: Floats) -> float:
    m, n = len(above), len(below)
    if min(m, n) < 2:
        return math.nan
    placed = _exceeded(above, below).var(ddof=1) / m + _exceeded(below, above).var(ddof=1) / n
    return math.sqrt(placed)


def spearman(x: Iterable[float], y: Iterable[float]) -> Spearman:
    """Spearman's rank correlation of `x` and `y`, 1-d of one length (ValueError otherwise).

    The interval is Fisher's z with the variance (1 + rho^2 / 2) / (n - 3) of Bonett and Wright
    2000, NaN below four items and at a correlation of exactly one. p is two-sided, by Student's t.
    """
    sides = [np.asarray(as_list(side), dtype=np.float64) for side in (x, y)]
    if sides[0].shape != sides[1].shape or sides[0].ndim != 1:
        raise ValueError(
            f"Both measures are 1-d over the same items; they are {sides[0].shape} and "
            f"{sides[1].shape}."
        )
    known = ~(np.isnan(sides[0]) | np.isnan(sides[1]))
    first, second = (side[known] for side in sides)
    n, missing = int(known.sum()), int((~known).sum())
    if (
        n < 2
        or np.ptp(scipy.stats.rankdata(first)) == 0
        or np.ptp(scipy.stats.rankdata(second)) == 0
    ):
        return Spearman(math.nan, math.nan, math.nan, n, missing, math.nan, math.nan)
    result = scipy.stats.spearmanr(first, second)
    rho, p = float(result.statistic), float(result.pvalue)
    if n < 4 or 1 - abs(rho) < 1e-12:  # of the same order; rounding may leave less than 1
        return Spearman(rho, math.nan, math.nan, n, missing, p, log10_p(p, math.inf, 2))
    centre, error = math.atanh(rho), math.sqrt((1 + rho**2 / 2) / (n - 3))
    low, high = (math.tanh(centre + side * normal_quantile() * error) for side in (-1, 1))
    # Where the t tail underflows, n is so large that the normal one is as good.
    t = abs(rho) * math.sqrt((n - 2) / (1 - rho**2))
    return Spearman(rho, low, high, n, missing, p, log10_p(p, t, 2))
