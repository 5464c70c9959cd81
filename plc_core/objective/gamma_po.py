"""γ-PO: a target margin for each pair, from a pool of recent margins (Sun et al. 2025)."""

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
)
from plc_core.objective.ranges import not_negative, positive
from plc_core.objective.reduction import gather_over_ranks
from plc_core.objective.routing import Routing
from plc_core.objective.state_losses import clean_loss

POOL = 256  # margins that a step's targets are computed from
QUEUE = 2048  # margins that are remembered
_FIRST_DRAWS = 8
_ITERATIONS = 20


def dynamic_targets(pool: Tensor, gamma_0: float, tau: float) -> Tensor:
    """gamma_i of each margin in the pool, [N] to [N]: larger for larger margins, mean gamma_0.

    20 steps of exponentiated gradient on p, with gamma_i = gamma_0 N p_i; its fixed point is
    p_i ~ exp(-(gamma_0 / tau) s(gamma_i - r_i)). As published, the value returned is the one
    before the last update.
    """
    n = len(pool)
    log_p = torch.full_like(pool, -math.log(n))
    gamma = torch.full_like(pool, gamma_0)
    step = min(0.5 / tau, 1.0)
    for _ in range(_ITERATIONS):
        p = log_p.exp()
        gamma = gamma_0 * n * p
        gradient = tau * (1 + (n * (p + 1e-10)).log()) + gamma_0 * torch.sigmoid(gamma - pool)
        log_p = (log_p - step * gradient).log_softmax(0)
    return gamma


class GammaPO(Objective):
    """L = sp(-x), x = m - (gamma_i - gamma_0), gamma_i = `dynamic_targets` of the pool, detached.

    The pool is the step's margins on all ranks and up to 256 less their number from a queue of the
    last 2,048 (at first eight normal draws). DPO at gamma_0 = 0, as tau grows, or where all margins
    are equal; at beta = 0.01 with gamma_0 = 0.25 beta the targets differ by 6e-6, so it is DPO to
    all purposes, and gamma_0 near half the typical |m| is needed for more. Under accumulation the
    pool holds one micro-batch and the steps before, as later margins are not known yet; the queue
    grows at the end of a step.

    Args:
        beta: scale of the margin.
        gamma_0: mean target in units of the margin; None is 0.25 beta, the published ratio.
        tau: temperature of the targets; larger is more equal.
        seed: of the draws, the same on every rank.
    """

    def __init__(
        self, beta: float, gamma_0: float | None = None, tau: float = 1.0, seed: int = 0
    ) -> None:
        self.beta = positive("beta", beta)
        self.gamma_0 = 0.25 * self.beta if gamma_0 is None else not_negative("gamma_0", gamma_0)
        self.tau = positive("tau", tau)
        self._generator = torch.Generator().manual_seed(seed)
        self.queue = torch.randn(_FIRST_DRAWS, generator=self._generator, dtype=torch.float64)
        self._seen: list[Tensor] = []

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        own = m.detach().to(torch.float64)
        everyone, start = gather_over_ranks(own)
        remembered = self._draw(POOL - len(everyone), step.update).to(m.device)
        targets = dynamic_targets(torch.cat((everyone, remembered)), self.gamma_0, self.tau)
        gamma = targets[start : start + len(own)].to(m.dtype)
        if step.update:
            self._remember(everyone, step.ends)
        return clean_loss(m - (gamma - self.gamma_0))

    def _draw(self, count: int, update: bool) -> Tensor:
        if count >= len(self.queue):
            return self.queue
        generator = self._generator
        if not update:
            generator = torch.Generator()
            generator.set_state(self._generator.get_state())
        chosen = torch.randperm(len(self.queue), generator=generator)[: max(count, 0)]
        # Without waiting for the device, as every copy here would otherwise do.
        return self.queue[chosen.to(self.queue.device, non_blocking=True)]

    def _remember(self, margins: Tensor, ends: bool) -> None:
        self._seen.append(margins)
        if ends:
            self.queue = torch.cat([self.queue.to(margins.device), *self._seen])[-QUEUE:]
            self._seen = []

    def state_dict(self) -> dict[str, Any]:
        generator = bytes(self._generator.get_state().tolist()).hex()
        return {"queue": self.queue.tolist(), "generator": generator}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        try:
            queue = torch.tensor(state["queue"], dtype=torch.float64)
            generator = torch.tensor(list(bytes.fromhex(state["generator"])), dtype=torch.uint8)
            self._generator.set_state(generator)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"This is no state of γ-PO: {error}.") from None
        self.queue = queue
        self._seen = []
