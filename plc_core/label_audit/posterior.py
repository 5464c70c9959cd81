"""From evidence to probabilities: one margin a pair, a noise rate, and p_flip.

The evidence columns of a pair are antisymmetric: turned round, they change sign. Logistic
regression without an intercept, fitted on the labels as given and read out of fold, adds them up
to one margin s, positive where they speak for the label. How often labels agree rises with s and
levels off at one minus the noise rate η, so a mixture

    P(label as given | s) ∝ (1 − η) G(k s) + η G(−k s)

identifies η, the more loosely the less is known of the link G: of weak evidence only the product
(1 − 2η) k is known. What helps is how noisy s itself is. The same fit on coin flips in place of
labels tells the share ρ of its mean square that is more than the noise of its estimate, and with
hidden states k is near 1.15 √ρ per root mean square of s: for two models over four sets of human
and model labels it was .90 to 1.39 √ρ, whatever share of labels had been reversed. Of other
evidence less is known. So the posterior runs over η, over k around what is expected, and over links
from the logistic one to one with Cauchy's tails, and its interval says what that leaves open. The
flip probability of a pair is the mixture's second share. Labels that the evidence could not predict
even if nobody had erred count as noise.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, log_expit, logit
from scipy.stats import t as student

RATES = np.arange(0.0, 0.5, 0.01)
_SCALES = np.geomspace(0.1, 16, 33)
TAILS = (np.inf, 8.0, 3.0, 1.0)
"""Degrees of freedom of the link: the logistic one, and Student's, whose tails level off later."""
WITH_HIDDEN_STATES = (1.15, 0.4)
WITHOUT = (0.5, 1.0)
"""Of k / √ρ: the median and the standard deviation of the logarithm that are expected."""
_LEAST_RELIABILITY = 0.02
_BETWEEN_GROUPS = 1.0
"""Of the log odds of groups' noise rates: 10 % beside 20 % is .8, beside 40 % 1.8."""
_SHRINKAGE = 1e-3
_BINS = 2000
_LEVEL = 0.95
_WIDE = 0.3
"""An interval of the noise rate this wide, or wider, says that it is not known."""


class Stack(NamedTuple):
    """Evidence added up.

    Attributes:
        margins: [pairs], out of fold, in the labels' direction.
        weights: of each column, per root mean square of it; the mean over folds.
        contributions: [pairs, columns], what each column adds to the margin.
        reliability: share of the margins' mean square that is more than noise of the estimates.
    """

    margins: NDArray[np.float64]
    weights: dict[str, float]
    contributions: pd.DataFrame
    reliability: float


class NoiseRate(NamedTuple):
    """Posterior mean and 95 % interval of the share of reversed labels; None where not known."""

    rate: float | None
    low: float
    high: float
    pairs: int


def stacked(
    columns: Mapping[str, NDArray[np.float64]],
    folds: NDArray[np.int64],
    chance: Mapping[str, NDArray[np.float64]] | None = None,
) -> Stack:
    """Logistic regression of the labels on antisymmetric columns, without intercept, out of fold.

    Args:
        columns: [pairs] each, in the labels' direction; NaN where a pair lacks the evidence, which
            then adds nothing.
        folds: [pairs], the folds that the columns themselves were read by.
        chance: [pairs], what columns that are fitted to labels read where labels are coin flips.
    """
    table = pd.DataFrame(columns, dtype=np.float64)
    spread = np.sqrt((table**2).mean())
    scaled = (table / spread.replace(0, np.nan)).fillna(0.0).clip(-8, 8)
    matrix = scaled.to_numpy()
    contributions = np.zeros_like(matrix)
    weights = []
    for fold in range(int(folds.max()) + 1):
        fitted = _logistic(matrix[folds != fold])
        weights.append(fitted)
        contributions[folds == fold] = matrix[folds == fold] * fitted
    margins, mean_weights = contributions.sum(1), np.mean(weights, 0)
    noise = np.zeros(len(table))  # of each column's own fit
    for name, weight in zip(table.columns, mean_weights, strict=True):
        if chance and name in chance and spread[name]:
            noise += weight / spread[name] * chance[name]
    square = float(np.mean(margins**2))
    # The weights are estimates as well: at weight 0 their covariance is 4 (rows' rows)^-1.
    of_weights = 4 * np.count_nonzero(spread) / len(table)
    reliability = 1 - (float(np.mean(noise**2)) + of_weights) / square if square else 0.0
    return Stack(
        margins,
        dict(zip(table.columns, mean_weights, strict=True)),
        pd.DataFrame(contributions, columns=table.columns),
        min(max(reliability, 0.0), 1.0),
    )


def _logistic(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights that maximise mean log σ(rows · w) − shrinkage |w|² / 2, by Newton's method."""
    weights = np.zeros(rows.shape[1])

    def loss(at: NDArray[np.float64]) -> float:
        return float(-log_expit(rows @ at).mean() + _SHRINKAGE * at @ at / 2)

    for _ in range(50):
        wrong = expit(-(rows @ weights))
        slope = rows.T @ wrong / len(rows) - _SHRINKAGE * weights
        curve = (rows * (wrong * (1 - wrong))[:, None]).T @ rows / len(rows)
        step = np.linalg.solve(curve + _SHRINKAGE * np.eye(len(weights)), slope)
        size = 1.0
        while size > 1e-4 and loss(weights + size * step) > loss(weights):
            size /= 2
        weights = weights + size * step
        if np.abs(size * step).max() < 1e-8:
            break
    return weights


class FlipModel:
    """The posterior over noise rate, scale and link, from the margins of all pairs.

    Args:
        margins: [pairs], of `stacked`.
        reliability: of the margins, as `stacked` tells it.
        scale: what is expected of k / √ρ, `WITH_HIDDEN_STATES` or `WITHOUT`.
    """

    def __init__(
        self,
        margins: NDArray[np.float64],
        reliability: float = 1.0,
        scale: tuple[float, float] = WITHOUT,
    ) -> None:
        self._spread = float(np.sqrt(np.mean(margins**2))) or 1.0
        self._pairs = len(margins)
        scaled = np.outer(_SCALES, _GRID)
        self._agree = np.stack([link(scaled, tails) for tails in TAILS])  # [links, scales, grid]
        log_likelihood = self._log_likelihood(margins)
        self._weights = _normalised(log_likelihood + _scale_prior(reliability, scale))

    def noise(self, margins: NDArray[np.float64] | None = None) -> NoiseRate:
        """The noise rate of all pairs, or of some with the scale and the link of all.

        It is not known (None) where its interval is as wide as saying nothing.
        """
        if margins is None:
            weights, pairs = self._weights.sum((1, 2)), self._pairs
        else:
            shape = self._weights.sum(0)  # of scale and link, whatever the rate of all is
            inside = self._log_likelihood(margins) + np.log(shape + 1e-300)
            weights, pairs = _normalised(inside).sum((1, 2)), len(margins)
        below = np.cumsum(weights)
        low, high = (
            float(RATES[min(int(np.searchsorted(below, level)), len(RATES) - 1)])
            for level in ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2)
        )
        rate = float(weights @ RATES)
        return NoiseRate(rate if high - low < _WIDE else None, low, high, pairs)

    def checked(self, margins: NDArray[np.float64], reversed_: NDArray[np.float64]) -> FlipModel:
        """The posterior after people have judged some pairs without seeing their labels.

        Args:
            margins: [checked] of those pairs.
            reversed_: [checked] 1 where they found the label reversed, 0 where not; a share where
                they disagree. A person is taken to be right.
        """
        place = self._places(margins)
        agree = self._agree[..., place]  # [links, scales, checked]
        found = np.zeros_like(self._weights)
        for row, rate in enumerate(RATES):
            share = rate * (1 - agree)
            flip = np.clip(share / np.maximum(share + (1 - rate) * agree, 1e-300), 1e-6, 1 - 1e-6)
            found[row] = (reversed_ * np.log(flip) + (1 - reversed_) * np.log1p(-flip)).sum(-1)
        after = copy.copy(self)
        after._weights = _normalised(np.log(self._weights + 1e-300) + found)
        return after

    def of_group(self, margins: NDArray[np.float64]) -> FlipModel:
        """The posterior of some of the pairs, as of one annotator, whose rate is its own.

        Scale and link are those of all. The log odds of a group's rate lie around those of all,
        with a standard deviation of `_BETWEEN_GROUPS`: few pairs move it little.

        Args:
            margins: [pairs of the group].
        """
        rates = np.clip(RATES, 0.005, 0.495)
        apart = logit(rates)[:, None] - logit(rates)
        own_rate = np.exp(-((apart / _BETWEEN_GROUPS) ** 2) / 2) @ self._weights.sum((1, 2))
        known = own_rate[:, None, None] * self._weights.sum(0)
        group = copy.copy(self)
        group._pairs = len(margins)
        group._weights = _normalised(self._log_likelihood(margins) + np.log(known + 1e-300))
        return group

    def p_flip(
        self, margins: NDArray[np.float64], groups: NDArray[Any] | None = None
    ) -> NDArray[np.float64]:
        """[pairs] probabilities that a label is reversed, given its evidence.

        Args:
            groups: [pairs] names of groups that each have a noise rate, if any.
        """
        if groups is None:
            grid, joint = self._reversed_and_rate(margins)
            return np.interp(margins / self._spread, grid, joint.sum(0))
        found = np.empty(len(margins))
        for name in np.unique(groups):
            own = margins[here := groups == name]
            found[here] = self.of_group(own).p_flip(own)
        return found

    def surplus(
        self, margins: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of some labels, how many more are expected to be reversed than not, by the noise rate.

        Returns:
            [rates] each: the rate's probability, and the surplus there.
        """
        chances = self._weights.sum((1, 2))
        likely = chances > 1e-9
        grid, joint = self._reversed_and_rate(margins)
        shares = joint[likely] / chances[likely, None]
        scaled = margins / self._spread
        by_rate = [2 * np.interp(scaled, grid, share).sum() - len(margins) for share in shares]
        return chances[likely] / chances[likely].sum(), np.array(by_rate)

    def _reversed_and_rate(
        self, margins: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The points of the grid on both sides of margins, and [rates, points] probabilities that
        a label there is reversed and the rate is this: for few pairs a small part of the grid.
        """
        place = self._places(margins)
        used = np.unique(np.concatenate((np.maximum(place - 1, 0), place)))
        agree, rates = self._agree[..., used], RATES[:, None, None, None]
        share = rates * (1 - agree)
        reversed_share = share / np.maximum(share + (1 - rates) * agree, 1e-300)
        return _GRID[used], np.einsum("rls,rlsg->rg", self._weights, reversed_share)

    def _log_likelihood(self, margins: NDArray[np.float64]) -> NDArray[np.float64]:
        """[rates, links, scales] of margins, which are counted in bins of the grid."""
        counts = np.bincount(self._places(margins), minlength=len(_GRID))
        used = np.flatnonzero(counts)
        agree = self._agree[..., used]
        return np.stack(
            [
                np.log(np.maximum(rate + (1 - 2 * rate) * agree, 1e-300)) @ counts[used]
                for rate in RATES
            ]
        )

    def _places(self, margins: NDArray[np.float64]) -> NDArray[np.int64]:
        """[…] where margins lie in the grid."""
        return np.clip(np.searchsorted(_GRID, margins / self._spread), 0, len(_GRID) - 1)


_GRID = np.sinh(np.linspace(-3, 3, _BINS + 1))
"""Margins per root mean square, dense around 0 and wide enough for any."""


def link(scaled: NDArray[np.float64], tails: float) -> NDArray[np.float64]:
    """[…] probabilities that a label without noise agrees, at margins times their scale."""
    return expit(scaled) if np.isinf(tails) else student.cdf(scaled, tails)


def slope(tails: float) -> float:
    """Of the link at 0."""
    return 0.25 if np.isinf(tails) else float(student.pdf(0, tails))


def _scale_prior(reliability: float, scale: tuple[float, float]) -> NDArray[np.float64]:
    """[links, scales] log density of the scale, the same for all links by their slope at 0."""
    expected = scale[0] * np.sqrt(max(reliability, _LEAST_RELIABILITY))
    slopes = np.array([slope(tails) for tails in TAILS]) / slope(np.inf)
    scales = np.log(np.outer(slopes, _SCALES) / expected)
    density: NDArray[np.float64] = -((scales / scale[1]) ** 2) / 2
    return density


def _normalised(log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()
