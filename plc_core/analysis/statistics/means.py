"""Means and shares with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from plc_core.analysis.statistics.text import format_interval

Floats: TypeAlias = NDArray[np.float64]

LEVEL = 0.95
"""Coverage of every interval in this package."""

_BLOCK = 2_000_000  # indices drawn at once: all of a long run's would not fit in memory


class MeanInterval(NamedTuple):
    """A mean with its 95 % interval and the number of values behind it."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if self.n == 0:
            return "n/a (n=0)"
        return f"{format_interval(self.mean, self.low, self.high)} (n={self.n:,})"


def mean_interval(values: Iterable[float]) -> MeanInterval:
    """The mean of `values` (1-d) with Student's t interval; NaN bounds below two values."""
    kept, _ = without_nan(values)
    n = len(kept)
    if n == 0:
        return MeanInterval(math.nan, math.nan, math.nan, 0)
    mean = float(kept.mean())
    if n == 1:
        return MeanInterval(mean, math.nan, math.nan, 1)
    reach = (
        float(scipy.stats.t.ppf((1 + LEVEL) / 2, n - 1)) * float(kept.std(ddof=1)) / math.sqrt(n)
    )
    return MeanInterval(mean, mean - reach, mean + reach, n)


def bootstrap_mean(values: Iterable[float], seed: int, n: int = 2000) -> MeanInterval:
    """The mean of `values` (1-d) with a percentile interval from `n` seeded resamples."""
    kept, _ = without_nan(values)
    if not len(kept):
        return MeanInterval(math.nan, math.nan, math.nan, 0)
    means = _resampled_means(kept, n, np.random.default_rng(seed))
    return MeanInterval(float(kept.mean()), *percentiles(means), len(kept))


def paired_bootstrap(
    own: Iterable[float], other: Iterable[float], seed: int, n: int = 2000
) -> MeanInterval:
    """The mean of `own` minus `other` over the same items, with both resampled together.

    For two win rates over the same prompts these are each prompt's wins (1, 0.5 or 0) against one
    baseline: what one method wins more than the other. An item that is NaN on one side is left
    out on both.

    Raises:
        ValueError: where the two are not 1-d and of one length.
    """
    sides = [np.asarray(as_list(side), dtype=np.float64) for side in (own, other)]
    if sides[0].shape != sides[1].shape or sides[0].ndim != 1:
        raise ValueError(
            f"Both sides are 1-d over the same items; they are {sides[0].shape} and "
            f"{sides[1].shape}."
        )
    return bootstrap_mean(sides[0] - sides[1], seed, n)


def bootstrap_seeds(groups: Sequence[Iterable[float]], seed: int, n: int = 2000) -> MeanInterval:
    """The mean over training seeds of the mean over prompts, resampling both.

    Args:
        groups: the values of each seed's prompts; a seed without any is left out.

    Returns:
        A percentile interval and the number of values in all. With one seed it is over prompts
        alone. With two or three it is narrower than it should be, as seeds that were never drawn
        are not in it: show the seeds' own means beside it.
    """
    return bootstrap_benchmarks([[values] for values in groups], seed, n)


def bootstrap_benchmarks(
    groups: Sequence[Sequence[Iterable[float]]], seed: int, n: int = 2000
) -> MeanInterval:
    """As `bootstrap_seeds`, where a seed's value is the mean of its benchmarks' means.

    Each benchmark weighs alike, however many prompts it has, as in the paper's tables. Seeds are
    resampled, and prompts within each benchmark; the benchmarks are the ones that they are.

    Args:
        groups: for each seed the values of each benchmark's prompts; a benchmark without any, and
            a seed without any, is left out.
    """
    known = [[v for v, _ in map(without_nan, parts) if len(v)] for parts in groups]
    kept = [parts for parts in known if parts]
    if not kept:
        return MeanInterval(math.nan, math.nan, math.nan, 0)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(kept), (n, len(kept)))
    means = np.empty(drawn.shape)
    for number, parts in enumerate(kept):
        here = drawn == number
        count = int(here.sum())
        means[here] = np.mean([_resampled_means(values, count, rng) for values in parts], axis=0)
    centre = float(np.mean([np.mean([values.mean() for values in parts]) for parts in kept]))
    values = sum(len(values) for parts in kept for values in parts)
    return MeanInterval(centre, *percentiles(means.mean(axis=1)), values)


def bootstrap_strata(
    groups: Sequence[Iterable[float]],
    seed: int,
    weights: Sequence[float] | None = None,
    n: int = 2000,
) -> MeanInterval:
    """The mean of the groups' means, as of several benchmarks, resampling within each group.

    Args:
        groups: the values of each group's items, 1-d.
        seed: of the resampling.
        weights: of the groups; None lets each weigh alike, whatever its size.
        n: resamples.

    Returns:
        A percentile interval and the number of values in all; NaN where a group has no values, as
        a mean over the others would be another one. One group gives what `bootstrap_mean` does.
    """
    kept = [values for values, _ in map(without_nan, groups)]
    count = sum(map(len, kept))
    if not kept or not all(map(len, kept)):
        return MeanInterval(math.nan, math.nan, math.nan, count)
    shares = np.asarray(weights if weights is not None else [1.0] * len(kept), dtype=np.float64)
    shares = shares / shares.sum()
    rng = np.random.default_rng(seed)
    means = np.stack([_resampled_means(values, n, rng) for values in kept])
    centre = float(shares @ np.array([values.mean() for values in kept]))
    return MeanInterval(centre, *percentiles(shares @ means), count)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; NaN for n = 0."""
    if n == 0:
        return math.nan, math.nan
    interval = scipy.stats.binomtest(successes, n).proportion_ci(LEVEL, method="wilson")
    return float(interval.low), float(interval.high)


def percentiles(values: Floats) -> tuple[float, float]:
    """The ends of the middle 95 % of `values`."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def normal_quantile() -> float:
    """How many standard errors a 95 % interval reaches to either side."""
    return float(scipy.stats.norm.ppf((1 + LEVEL) / 2))


def on_logit_scale(share: float, error: float) -> tuple[float, float]:
    """A 95 % interval of a share with the given standard error, taken where it stays in (0, 1).

    NaN for a share of exactly 0 or 1, as an error estimated there says nothing.
    """
    if not 0 < share < 1 or math.isnan(error):
        return math.nan, math.nan
    centre = math.log(share / (1 - share))
    reach = normal_quantile() * error / (share * (1 - share))
    low, high = (1 / (1 + math.exp(-bound)) for bound in (centre - reach, centre + reach))
    return low, high


def as_list(values: Iterable[Any]) -> Any:
    """What numpy can read: arrays and series as they are, any other iterable as a list."""
    return values if hasattr(values, "__array__") else list(values)


def without_nan(values: Iterable[float]) -> tuple[Floats, int]:
    """The values that are not NaN, and how many were."""
    array = np.asarray(as_list(values), dtype=np.float64).ravel()
    kept = array[~np.isnan(array)]
    return kept, len(array) - len(kept)


def _resampled_means(kept: Floats, n: int, rng: np.random.Generator) -> Floats:
    size = len(kept)
    block = max(1, _BLOCK // size)
    parts = [
        kept[rng.integers(0, size, (min(block, n - start), size))].mean(axis=1)
        for start in range(0, n, block)
    ]
    return np.concatenate(parts) if parts else np.empty(0)
