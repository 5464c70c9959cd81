"""What the answers' lengths say of a label, learnt from the labels and put to the margin.

No part of the paper, and off by default. On real pairs the difference in length ranks reversed
labels without any training, and the policy's margin does not hold all of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plc_core.objective.ranges import positive, share
from plc_core.objective.reduction import sum_over_ranks

_RIDGE = 1e-3


class LengthEvidence:
    """Fisher's discriminant of the margin m and the length l = sign(d) sqrt|d|, d in tokens.

    d is by how many tokens the chosen response is the longer. A reversed label turns the sign of
    x = (m, l), so with fewer than half of them reversed, whichever they are, the mean mu of the
    observed x points where clean labels would, only shorter; with M the second moments of x, M^-1
    mu is the direction that tells the two apart. mu and M are bias-corrected EMAs over the steps
    before, over all ranks. A margin that is higher never speaks against a label: its part of the
    direction is at least 0.

    Where lengths say nothing, that direction is the noise of its estimate. With t the length's
    part of M^-1 mu over its standard error, the evidence goes from the margin alone to that
    direction by the share (1 - 1/t^2)+, the positive-part rule of James and Stein. It has the
    margin's root mean square, so that it stays in its units. That size is taken for sigma_min
    larger (in quadrature), so that the rounding noise of the first margins is no direction.

    Args:
        alpha: decay of the EMA, in [0, 1); the recipe's.
        sigma_min: floor of the margin's size, in its units; the calibration's.
    """

    def __init__(self, alpha: float, sigma_min: float = 1e-3) -> None:
        share("alpha", alpha)
        positive("sigma_min", sigma_min)
        self.alpha, self.sigma_min = alpha, sigma_min
        # Averages of m, l, m^2, l^2, m l and 1; and the sum of the squared weights of the pairs.
        self._average = torch.zeros(7, dtype=torch.float64)
        self._sums = torch.zeros(6, dtype=torch.float64)  # of the step that is under way

    def __call__(self, margin: Tensor, lengths: Tensor) -> Tensor:
        """Evidence of a micro-batch, [B], float64 and detached.

        Args:
            margin: [B], in nats times beta.
            lengths: [B, 2], tokens of the chosen and the rejected response.
        """
        m, length = _features(margin, lengths)
        average = self._average.to(m.device)
        mass = average[5]
        mean_m, mean_l, square_m, square_l, product = average[:5] / mass
        size_m, size_l = (square_m + self.sigma_min**2).sqrt(), square_l.sqrt()
        # In units of the features' sizes M is [[1, c], [c, 1]].
        unit_m, unit_l = mean_m / size_m, _quotient(mean_l, size_l)
        c = _quotient(product, size_m * size_l)
        toward_m = ((1 + _RIDGE) * unit_m - c * unit_l).clamp(min=0)
        toward_l = (1 + _RIDGE) * unit_l - c * unit_m
        noise = (1 - c**2) * average[6] / mass**2
        trust = (1 - _quotient(noise, toward_l**2, empty=1.0)).clamp(min=0)
        size = _size(toward_m, toward_l, c)
        of_m = 1 - trust + trust * _quotient(toward_m, size)
        of_l = trust * _quotient(toward_l, size)
        told = of_m * m + of_l * size_m * _quotient(length, size_l)
        evidence = _quotient(told, _size(of_m, of_l, c))
        return torch.where(mass > 0, evidence, m)

    def observe(self, margin: Tensor, lengths: Tensor, distinct: Tensor | None = None) -> None:
        """Add a micro-batch to the sums of the step that is under way.

        `distinct`, [B], leaves out pairs with the same tokens on both sides; None where none has.
        """
        m, length = _features(margin, lengths)
        ones = torch.ones_like(m) if distinct is None else distinct.to(m.dtype)
        m, length = ones * m, ones * length
        terms = (m, length, m.square(), length.square(), m * length, ones)
        self._sums = self._sums.to(m.device) + torch.stack([x.sum() for x in terms])

    def commit(self) -> None:
        """End the step: move the averages by what was observed since the last one; collective."""
        sums = sum_over_ranks(self._sums)
        average, pairs, moved_by = self._average.to(sums.device), sums[-1], 1 - self.alpha
        step = torch.cat((sums / pairs, (moved_by / pairs)[None]))
        decay = torch.full_like(average, self.alpha)
        decay[-1] = self.alpha**2
        self._average = torch.where(pairs > 0, decay * average + moved_by * step, average)
        self._sums = torch.zeros_like(sums)

    def state_dict(self) -> list[float]:
        """The committed averages."""
        return list(self._average.tolist())

    def load_state_dict(self, state: Any) -> None:
        """Restore what `state_dict` gave; ValueError where it is something else."""
        try:
            average = torch.tensor(state, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            average = torch.tensor(torch.nan)
        squares = [2, 3, 5, 6]
        if average.shape != (7,) or not average.isfinite().all() or (average[squares] < 0).any():
            raise ValueError(f"This is no state of the evidence of lengths: {state!r}.")
        self._average = average
        self._sums = torch.zeros(6, dtype=torch.float64)


def _features(margin: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    difference = (lengths[:, 0] - lengths[:, 1]).to(torch.float64)
    return margin.detach().to(torch.float64), difference.sign() * difference.abs().sqrt()


def _quotient(value: Tensor, size: Tensor, empty: float = 0.0) -> Tensor:
    # `empty` where a feature has no size: it says nothing then.
    return torch.where(size > 0, value / torch.where(size > 0, size, 1.0), empty)


def _size(of_m: Tensor, of_l: Tensor, c: Tensor) -> Tensor:
    """Root mean square of of_m m + of_l l, both in units of their sizes."""
    return (of_m**2 + 2 * c * of_m * of_l + of_l**2).clamp(min=0).sqrt()
