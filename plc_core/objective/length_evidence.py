"""What the answers' lengths say of a label, learnt from the labels and put to the margin.

No part of the paper, and off by default. On real pairs the difference in length ranks reversed
labels without any training, and the policy's margin does not hold all of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plc_core.objective.checks import share
from plc_core.objective.reduction import sum_over_ranks

_RIDGE = 1e-3


class LengthEvidence:
    """Fisher's discriminant of the margin m and the length l = sign(d) sqrt|d|, d in tokens.

    d is by how many tokens the chosen response is the longer. A reversed label turns the sign of
    x = (m, l), so with fewer than half of them reversed the mean mu of the observed x points where
    clean labels would, only shorter; with M the second moments of x, M^-1 mu is the direction that
    tells the two apart. mu and M are bias-corrected EMAs over the steps before, over all ranks, and
    the evidence has the margin's root mean square, so that it stays in the margin's units. As long
    as all margins were 0 it is 0, as theirs.

    Args:
        alpha: decay of the EMA, in [0, 1); the recipe's.
    """

    def __init__(self, alpha: float) -> None:
        share("alpha", alpha)
        self.alpha = alpha
        # Averages of m, l, m^2, l^2, m l and 1, and the sums of the step that is under way.
        self._average = torch.zeros(6, dtype=torch.float64)
        self._sums = torch.zeros(6, dtype=torch.float64)

    def __call__(self, margin: Tensor, lengths: Tensor) -> Tensor:
        """Evidence of a micro-batch, [B], float64 and detached.

        Args:
            margin: [B], in nats times beta.
            lengths: [B, 2], tokens of the chosen and the rejected response.
        """
        m, length = _features(margin, lengths)
        average = self._average.to(m.device)
        mean_m, mean_l, square_m, square_l, product, mass = average
        size_m, size_l = ((x / mass).sqrt() for x in (square_m, square_l))
        unit_m, unit_l = (_quotient(*x) for x in ((mean_m / mass, size_m), (mean_l / mass, size_l)))
        c = _quotient(product / mass, size_m * size_l)
        # M^-1 mu in units of the features' sizes, up to a factor.
        toward_m = (1 + _RIDGE) * unit_m - c * unit_l
        toward_l = (1 + _RIDGE) * unit_l - c * unit_m
        length_of = (toward_m**2 + 2 * c * toward_m * toward_l + toward_l**2).sqrt()
        told = toward_m * _quotient(m, size_m) + toward_l * _quotient(length, size_l)
        evidence = size_m * _quotient(told, length_of)
        return torch.where((mass > 0) & (length_of > 0), evidence, m)

    def observe(self, margin: Tensor, lengths: Tensor) -> None:
        """Add a micro-batch to the sums of the step that is under way."""
        m, length = _features(margin, lengths)
        ones = torch.ones_like(m)
        terms = (m, length, m.square(), length.square(), m * length, ones)
        self._sums = self._sums.to(m.device) + torch.stack([x.sum() for x in terms])

    def commit(self) -> None:
        """End the step: move the averages by what was observed since the last one; collective."""
        sums = sum_over_ranks(self._sums)
        average = self._average.to(sums.device)
        moved = self.alpha * average + (1 - self.alpha) * sums / sums[-1].clamp(min=1)
        self._average = torch.where(sums[-1] > 0, moved, average)
        self._sums = torch.zeros_like(self._average)

    def state_dict(self) -> list[float]:
        """The committed averages."""
        return list(self._average.tolist())

    def load_state_dict(self, state: Any) -> None:
        """Restore what `state_dict` gave; ValueError where it is something else."""
        try:
            average = torch.tensor(state, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            average = torch.tensor(torch.nan)
        if average.shape != (6,) or not average.isfinite().all():
            raise ValueError(f"This is no state of the evidence of lengths: {state!r}.")
        self._average = average
        self._sums = torch.zeros(6, dtype=torch.float64)


def _features(margin: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    difference = (lengths[:, 0] - lengths[:, 1]).to(torch.float64)
    return margin.detach().to(torch.float64), difference.sign() * difference.abs().sqrt()


def _quotient(value: Tensor, size: Tensor) -> Tensor:
    # 0 where a feature has no size: it says nothing then.
    return torch.where(size > 0, value / torch.where(size > 0, size, 1.0), 0.0)
