"""Objectives that couple the pairs of a step, or carry a state from step to step.

They are defined over the optimizer step's batch on all ranks. The loss of a step is the mean of
what they return, [B] a rank, so a batch loss is shared out such that this mean and its gradient
are right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from plc_core.objective.base import (
    Objective,
    PairLogps,
    Step,
    log_ratios,
)
from plc_core.objective.ranges import number, positive, share
from plc_core.objective.reduction import gather_over_ranks, sum_over_ranks
from plc_core.objective.routing import Routing
from plc_core.objective.state_losses import clean_loss, flip_loss


class DrDPO(Objective):
    """L = -b log mean_i exp(-l_i / b), l the DPO losses; Wu et al. 2025.

    Shared out as N w_i l_i with w = softmax(-l / b) detached, shifted by a constant so that the
    mean is L. DPO as b grows. Under accumulation the mean is over one micro-batch on all ranks, as
    the others are not known yet; micro-batches of one pair are plain DPO.
    """

    def __init__(self, beta: float, beta_prime: float = 1.0) -> None:
        self.beta = positive("beta", beta)
        self.beta_prime = positive("beta_prime", beta_prime)

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        loss = clean_loss(m)
        everyone, _ = gather_over_ranks(loss.detach())
        if not len(everyone):
            return loss
        logits = -everyone / self.beta_prime
        batch_loss = -self.beta_prime * (logits.logsumexp(0) - math.log(len(everyone)))
        weights = (-loss.detach() / self.beta_prime - logits.logsumexp(0)).exp()
        value = batch_loss - (logits.softmax(0) * everyone).sum()
        return len(everyone) * weights * loss + value


class KTOPair(Objective):
    """KTO on pairs: the mean of 1 - s(beta (a_w - K_l)) and 1 - s(beta (K_w - a_l)).

    a are the log-ratios of a side, K = max(0, their mean over the batch) of the other side,
    detached: a gradient through K would push the batch's mean, which is meant as a constant.
    Ethayarajh et al. 2024, in the paired form that public trainers once had. Under accumulation K
    is of one micro-batch on all ranks, as the others are not known yet.
    """

    def __init__(self, beta: float) -> None:
        self.beta = positive("beta", beta)

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        chosen, rejected = log_ratios(logps)
        count = torch.ones_like(chosen)
        sums = torch.stack([x.detach().sum() for x in (chosen, rejected, count)])
        sum_chosen, sum_rejected, n = sum_over_ranks(sums)
        kl_chosen, kl_rejected = ((x / n).clamp(min=0) for x in (sum_chosen, sum_rejected))
        chosen_loss = torch.sigmoid(-self.beta * (chosen - kl_rejected))
        rejected_loss = torch.sigmoid(-self.beta * (kl_chosen - rejected))
        return (chosen_loss + rejected_loss) / 2


class ROPO(Objective):
    """L = c [sp(-m) + a s(-m)], c = 4a / (1 + a)^2, so that the largest |dL/dm| is 1.

    The noise-aware loss of Liang et al. 2025, without their rejection sampling. With `trim`, after
    20 % of training, only the floor((1 - trim) N) of a step's N pairs with the smallest losses (the
    largest margins; all of those equal to the last) are kept, at least one, and the mean is over
    them; under accumulation it ranks within one micro-batch on all ranks, as the others are not
    known yet.
    """

    def __init__(self, beta: float, alpha: float = 14.0, trim: float = 0.0) -> None:
        self.beta = positive("beta", beta)
        if not number("alpha", alpha) > 2:
            raise ValueError(f"alpha of ROPO must be above 2; it is {alpha}.")
        self.alpha = alpha
        self.trim = share("trim", trim)

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        norm = 4 * self.alpha / (1 + self.alpha) ** 2
        loss = norm * (clean_loss(m) + self.alpha * torch.sigmoid(-m))
        if self.trim and step.progress >= 0.2:
            loss = loss * self._kept(m.detach())
        return loss

    def _kept(self, m: Tensor) -> Tensor:
        everyone, _ = gather_over_ranks(m)
        if not len(everyone):
            return m
        # The tolerance undoes rounding: 0.8 * 5 is 4 pairs.
        count = max(1, math.floor((1 - self.trim) * len(everyone) + 1e-9))
        threshold = everyone.topk(count).values[-1]
        kept = (everyone >= threshold).to(m.dtype).sum()
        return (m >= threshold) * (len(everyone) / kept)


class REPO(Objective):
    """L = w sp(-m) + (1 - w) sp(m), w = s(m + logit(eta)) detached; RE-PO, Cao et al. 2026.

    eta estimates the data's reliability: after each optimizer step
    eta <- (1 - alpha) eta + alpha mean(w), so alpha weighs the new value. w uses eta as it was
    before the step, so a split of the step changes nothing. DPO at eta = 1. A pair whose
    probability of being reversed is known has one minus it for its own eta.
    """

    def __init__(self, beta: float, eta: float = 0.9, alpha: float = 0.1) -> None:
        self.beta = positive("beta", beta)
        if not 0.5 <= number("eta", eta) <= 1:
            raise ValueError(f"eta, the first guess of the reliability, is in [0.5, 1]; got {eta}.")
        if not 0 <= number("alpha", alpha) <= 1:
            raise ValueError(f"alpha weighs the new reliability and is in [0, 1]; it is {alpha}.")
        self.alpha = alpha
        self._eta = torch.tensor(eta, dtype=torch.float64)
        self._sums = torch.zeros(2, dtype=torch.float64)

    @property
    def eta(self) -> Tensor:
        """The reliability as of the last optimizer step, a float64 scalar."""
        return self._eta

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        eta = self._eta.to(m.device)
        margin = m.detach().to(torch.float64)
        if logps.p_flip is not None:
            eta = torch.where(logps.p_flip.isnan(), eta, 1 - logps.p_flip.to(margin.dtype))
            eta = eta.clamp(1e-6, 1 - 1e-6)
        w = torch.sigmoid(margin + torch.logit(eta))
        if step.update:
            self._observe(w, step.ends)
        w = w.to(m.dtype)
        return w * clean_loss(m) + (1 - w) * flip_loss(m)

    def _observe(self, w: Tensor, ends: bool) -> None:
        self._sums = self._sums.to(w.device) + torch.stack((w.sum(), torch.ones_like(w).sum()))
        if ends:
            total, count = sum_over_ranks(self._sums)
            before = self._eta.to(w.device)
            moved = (1 - self.alpha) * before + self.alpha * total / count.clamp(min=1)
            # At 0 or 1 the logit is infinite and eta could never come back.
            moved = moved.clamp(1e-6, 1 - 1e-6) if self.alpha else before
            self._eta = torch.where(count > 0, moved, before)
            self._sums = torch.zeros_like(self._sums)

    def state_dict(self) -> dict[str, Any]:
        return {"eta": self._eta.item()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"eta"} or not 0 <= state["eta"] <= 1:
            raise ValueError(f"This is no state of RE-PO: {dict(state)!r}.")
        self._eta = torch.tensor(state["eta"], dtype=torch.float64)
