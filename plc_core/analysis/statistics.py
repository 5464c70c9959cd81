"""The few statistics of the audit: each with its n, its interval, and a text form.

Notebook and app print the same objects, so a number reads the same wherever it is shown.
Missing values (NaN) are left out and counted; infinities are kept, as ranks can use them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Side: TypeAlias = Literal["two-sided", "greater", "less"]
Floats: TypeAlias = NDArray[np.float64]

LEVEL = 0.95
"""Coverage of every interval in this package."""


def format_number(value: float, digits: int = 3) -> str:
    """`value` with `digits` decimals, or "n/a" where it is not a finite number."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "n/a"


def format_p(p: float) -> str:
    """A p value as text; one that underflowed to zero becomes a bound, never "0"."""
    if math.isnan(p):
        return "p = n/a"
    if p < sys.float_info.min:
        return f"p < {sys.float_info.min:.1e}"
    return f"p = {p:.3f}" if p >= 0.001 else f"p = {p:.1e}"


class MeanInterval(NamedTuple):
    """A mean with its 95 % interval and the number of values behind it."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if self.n == 0:
            return "n/a (n=0)"
        bounds = f"[{format_number(self.low)}, {format_number(self.high)}]"
        return f"{format_number(self.mean)} {bounds} (n={self.n:,})"


@dataclass(frozen=True)
class MannWhitney:
    """The Mann-Whitney U test of group a against group b.

    `U` belongs to a. `auroc` is U / (n_a n_b), the chance that a random member of a exceeds one of
    b, ties counted half; `rank_biserial` is 2 auroc - 1, positive where a tends to be larger.
    """

    side: Side
    n_a: int
    n_b: int
    nan_a: int
    nan_b: int
    U: float
    p: float
    rank_biserial: float
    auroc: float

    def __str__(self) -> str:
        if self.n_a == 0 or self.n_b == 0:
            return f"n/a (n={min(self.n_a, self.n_b)})"
        missing = self.nan_a + self.nan_b
        return (
            f"U = {self.U:,.1f}, {format_p(self.p)} ({self.side}), "
            f"rank-biserial r = {self.rank_biserial:+.3f}, AUROC = {self.auroc:.3f} "
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
        bounds = f"[{format_number(self.low)}, {format_number(self.high)}]"
        return f"{self.value:.3f} {bounds} (n={self.n_positive:,} vs {self.n_negative:,})"


def mann_whitney(
    a: Iterable[float], b: Iterable[float], alternative: Side = "two-sided"
) -> MannWhitney:
    """Test whether values in `a` tend to be larger (or smaller) than values in `b`.

    `a` and `b` are 1-d and may differ in length. An empty group gives NaN for U, p and the effect
    sizes. Small samples without ties are tested exactly, all others by the normal approximation
    with tie correction (scipy's "auto"). The paper's test in section "Tie-State Selectivity".
    """
    kept_a, nan_a = _without_nan(a)
    kept_b, nan_b = _without_nan(b)
    counts = (len(kept_a), len(kept_b), nan_a, nan_b)
    if not len(kept_a) or not len(kept_b):
        return MannWhitney(alternative, *counts, math.nan, math.nan, math.nan, math.nan)
    result = stats.mannwhitneyu(kept_a, kept_b, alternative=alternative)
    area = float(result.statistic) / (len(kept_a) * len(kept_b))
    return MannWhitney(
        alternative, *counts, float(result.statistic), float(result.pvalue), 2 * area - 1, area
    )


def auroc(scores: Iterable[float], positive: Iterable[bool]) -> Auroc:
    """How well `scores` rank the `positive` items above the others.

    Both are 1-d of one length (ValueError otherwise). The interval is DeLong's, taken on the logit
    scale so that it stays inside (0, 1); it is NaN where the groups are separated perfectly or
    hold fewer than two values, as the variance says nothing there.

    Source: DeLong et al. 1988; midrank form of Sun and Xu 2014, equations 5 to 8.
    """
    values = np.asarray(_as_list(scores), dtype=np.float64)
    labels = np.asarray(_as_list(positive), dtype=bool)
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
    ranks = stats.rankdata(np.concatenate([above, below]))
    of_positive = (ranks[:m] - stats.rankdata(above)) / n
    of_negative = 1 - (ranks[m:] - stats.rankdata(below)) / m
    area = float(of_positive.mean())
    if min(m, n) < 2 or not 0 < area < 1:
        return Auroc(area, math.nan, math.nan, m, n, "DeLong, undefined here")
    error = math.sqrt(of_positive.var(ddof=1) / m + of_negative.var(ddof=1) / n)
    centre = math.log(area / (1 - area))
    reach = _normal_quantile() * error / (area * (1 - area))
    low, high = (1 / (1 + math.exp(-bound)) for bound in (centre - reach, centre + reach))
    return Auroc(area, low, high, m, n, "DeLong on the logit scale")


def mean_interval(values: Iterable[float]) -> MeanInterval:
    """The mean of `values` (1-d) with Student's t interval; NaN bounds below two values."""
    kept, _ = _without_nan(values)
    n = len(kept)
    if n == 0:
        return MeanInterval(math.nan, math.nan, math.nan, 0)
    mean = float(kept.mean())
    if n == 1:
        return MeanInterval(mean, math.nan, math.nan, 1)
    reach = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * float(kept.std(ddof=1)) / math.sqrt(n)
    return MeanInterval(mean, mean - reach, mean + reach, n)


def bootstrap_mean(values: Iterable[float], seed: int, n: int = 2000) -> MeanInterval:
    """The mean of `values` (1-d) with a percentile interval from `n` seeded resamples."""
    kept, _ = _without_nan(values)
    size = len(kept)
    if size == 0:
        return MeanInterval(math.nan, math.nan, math.nan, 0)
    rng = np.random.default_rng(seed)
    # Resamples in blocks of bounded memory: n x size indices at once would not fit for long runs.
    block = max(1, 2_000_000 // size)
    means = np.concatenate(
        [
            kept[rng.integers(0, size, (min(block, n - start), size))].mean(axis=1)
            for start in range(0, n, block)
        ]
    )
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return MeanInterval(float(kept.mean()), float(low), float(high), size)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; NaN for n = 0."""
    if n == 0:
        return math.nan, math.nan
    interval = stats.binomtest(successes, n).proportion_ci(LEVEL, method="wilson")
    return float(interval.low), float(interval.high)


def _normal_quantile() -> float:
    return float(stats.norm.ppf((1 + LEVEL) / 2))


def _as_list(values: Iterable[Any]) -> Any:
    return values if hasattr(values, "__array__") else list(values)


def _without_nan(values: Iterable[float]) -> tuple[Floats, int]:
    """The values that are not NaN, and how many were."""
    array = np.asarray(_as_list(values), dtype=np.float64).ravel()
    kept = array[~np.isnan(array)]
    return kept, len(array) - len(kept)
