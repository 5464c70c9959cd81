"""Online calibration of the margin: the EMA of its mean and variance (Section 3.3, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from plc_core.objective.ranges import not_negative, number, positive, share, truth
from plc_core.objective.reduction import sum_over_ranks


class MarginCalibration:
    """EMA of the mini-batch mean and population variance of the detached margin.

    The mini-batch is the optimizer step's batch over all ranks and micro-batches: `observe`
    collects float64 sums, `commit` reduces them over the ranks and moves the EMA, once a step.
    Pairs with the same tokens on both sides have a margin of 0 whatever the policy is: they are no
    evidence, and left out of both.
    If `torch.distributed` is initialised, `commit` and `preview` are collective.

    The EMA is bias-corrected, so after the first step it holds the first batch's statistics. It is
    kept as three running averages with one rule, of the mean, the variance and the constant 1, and
    the first two are read divided by the third. `initial=(mu_0, v_0)` gives the paper's plain form,
    in which the third is 1 from the start. Before the first commit of the corrected form there is
    no calibration, and `standardize` gives z = 0: no evidence, rather than a margin over sigma_min.

    Args:
        alpha: decay, the weight of the old value, in [0, 1).
        sigma_min: floor of the standard deviation, in units of the margin.
        initial: (mu_0, v_0), or None for the bias-corrected start.
        centre: False skips the centring, z = m / max(sqrt(v), sigma_min), so that the evidence
            changes its sign at m = 0. With centring, a pair that the policy ranks as labelled, but
            by less than average, counts as evidence of a flip. Not in the paper.
    """

    def __init__(
        self,
        alpha: float,
        sigma_min: float = 1e-3,
        initial: tuple[float, float] | None = None,
        centre: bool = True,
    ) -> None:
        share("alpha", alpha)
        positive("sigma_min", sigma_min)
        if initial is not None:
            if not isinstance(initial, (tuple, list)) or len(initial) != 2:
                raise ValueError(f"initial is a mean and a variance; it is {initial!r}.")
            number("the initial mean", initial[0])
            not_negative("the initial variance", initial[1])
        self.alpha = alpha
        self.sigma_min = sigma_min
        self.centre = truth("centre", centre)
        start = (0.0, 0.0, 0.0) if initial is None else (*initial, 1.0)
        self._average = torch.tensor(start, dtype=torch.float64)
        self._sums = torch.zeros(3, dtype=torch.float64)

    def observe(self, margin: Tensor, distinct: Tensor | None = None) -> None:
        """Add a micro-batch of margins, [B], to the sums of the step that is under way.

        `distinct`, [B], says whether a pair's responses differ in their tokens; None where all do.
        """
        # A clone, as inference-mode tensors must not end up in the state.
        values = margin.detach().to(torch.float64)
        # Masked by weights: boolean indexing would synchronise with the device.
        ones = torch.ones_like(values) if distinct is None else distinct.to(values.dtype)
        values = ones * values
        sums = torch.stack((ones.sum(), values.sum(), values.square().sum()))
        self._sums = self._sums.to(values.device) + sums

    def preview(self) -> Tensor:
        """The averages as they would be if the step ended now: [3], float64."""
        count, total, squares = sum_over_ranks(self._sums)
        average = self._average.to(count.device)
        mean = total / count.clamp(min=1)
        # Rounding can leave a tiny negative variance where all margins are equal.
        variance = (squares / count.clamp(min=1) - mean.square()).clamp(min=0)
        batch = torch.stack((mean, variance, torch.ones_like(mean)))
        moved = self.alpha * average + (1 - self.alpha) * batch
        return torch.where(count > 0, moved, average)  # a step without pairs says nothing

    def commit(self, average: Tensor | None = None) -> None:
        """End the step: move the EMA by the margins seen since the last commit.

        `average` is what `preview` gave, if nothing was observed since: it saves a collective.
        """
        self._average = self.preview() if average is None else average
        self._sums = torch.zeros_like(self._average)

    def statistics(self, average: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(mean, standard deviation) without the floor, float64 scalars; NaN before any commit."""
        mean, variance, mass = self._average if average is None else average
        return mean / mass, (variance / mass).sqrt()

    def standardize(self, margin: Tensor, average: Tensor | None = None) -> Tensor:
        """z = (m - mu) / max(sqrt(v), sigma_min), Eq. (standardized-margin): [B], float64.

        With the committed averages, or with those that `preview` gave.
        """
        average = (self._average if average is None else average).to(margin.device)
        mean, deviation = self.statistics(average)
        values = margin.detach().to(torch.float64)
        centred = values - mean if self.centre else values
        z = centred / deviation.clamp(min=self.sigma_min)
        return torch.where(average[2] > 0, z, torch.zeros_like(z))

    def state_dict(self) -> dict[str, list[float]]:
        """The committed averages; raises RuntimeError in the middle of a step."""
        if self._sums[0] != 0:
            raise RuntimeError("The calibration was to be saved in the middle of a step.")
        return {"average": self._average.tolist()}

    def load_state_dict(self, state: Mapping[str, list[float]]) -> None:
        """Restore what `state_dict` gave; ValueError where it is something else."""
        average = torch.tensor(state.get("average", []), dtype=torch.float64)
        if average.shape != (3,) or not average.isfinite().all():
            raise ValueError(f"This is no state of a margin calibration: {dict(state)!r}.")
        self._average = average
        self._sums = torch.zeros(3, dtype=torch.float64)
