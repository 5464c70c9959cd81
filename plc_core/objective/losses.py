"""What one pair is worth: the state losses, DPO and PLC-DPO (Sections 3.1, 3.4 and 3.5).

Losses and gradients as functions of the margin m, with H(m) = 1 for m > 0, 0 for m < 0, 1/2 at 0:

    dpo   L     = -log sigma(m)
          dL/dm = -sigma(-m)
    plc   L     = (1 - w) L_dpo + w (q_clean L_clean + q_flip L_flip + q_tie L_tie)
          dL/dm = -sigma(-m) + w (q_flip + q_tie H(m))
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from plc_core.objective.routing import Router, Routing


class PairLogps(NamedTuple):
    """Log-probabilities of a batch of pairs, summed over the response's tokens: [B] each, nats."""

    policy_chosen: Tensor
    policy_rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor
    chosen_lengths: Tensor  # tokens, the terminator included
    rejected_lengths: Tensor


@dataclass(frozen=True)
class ObjectiveOutput:
    """One batch under an objective."""

    loss: Tensor  # [B], differentiable; the step's loss is its mean over the step's batch
    margin: Tensor  # [B], detached
    routing: Routing | None = None  # None for objectives without routing


class Objective(Protocol):
    """The face of every objective.

    `micro_batch` and `update` are those of `Router.__call__`: by default a call is one whole
    optimizer step.
    """

    @property
    def beta(self) -> float: ...

    @property
    def router(self) -> Router | None: ...

    def __call__(
        self,
        logps: PairLogps,
        progress: float,
        micro_batch: tuple[int, int] = (0, 1),
        update: bool = True,
    ) -> ObjectiveOutput: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def sequence_margin(logps: PairLogps, beta: float) -> Tensor:
    """m = beta [log pi/pi_ref(chosen) - log pi/pi_ref(rejected)], Eq. (mseq): [B], >= fp32."""
    policy_chosen, policy_rejected, reference_chosen, reference_rejected = (
        x.to(torch.promote_types(x.dtype, torch.float32)) for x in logps[:4]
    )
    return beta * ((policy_chosen - reference_chosen) - (policy_rejected - reference_rejected))


# softplus(x) is spelled -logsigmoid(-x): PyTorch's softplus is linear above 20, off by 2e-9 there.


def clean_loss(m: Tensor) -> Tensor:
    """L_clean = -log sigma(m), Eq. (lclean); also the DPO loss, Eq. (dpo)."""
    return -logsigmoid(m)


def flip_loss(m: Tensor) -> Tensor:
    """L_flip = -log sigma(-m), Eq. (lflip)."""
    return -logsigmoid(-m)


def tie_loss(m: Tensor) -> Tensor:
    """L_tie = softplus(|m|), Eq. (ltie).

    Its minimum is at the kink m = 0, where PyTorch's gradient of |m| is 0, which is right.
    """
    return -logsigmoid(-m.abs())


class DPO:
    """L = -log sigma(m), Eq. (dpo)."""

    router = None

    def __init__(self, beta: float) -> None:
        self.beta = _positive("beta", beta)

    def __call__(
        self,
        logps: PairLogps,
        progress: float,
        micro_batch: tuple[int, int] = (0, 1),
        update: bool = True,
    ) -> ObjectiveOutput:
        m = sequence_margin(logps, self.beta)
        return ObjectiveOutput(clean_loss(m), m.detach())

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"DPO has no state, but was given {sorted(state)}.")


class PLC:
    """PLC-DPO, Algorithm 1: L = (1 - w) L_dpo + w (q_clean L_clean + q_flip L_flip + q_tie L_tie).

    q and w are detached (Eq. stopgrad); they come from the router's reading of the margin.
    """

    def __init__(self, beta: float, router: Router) -> None:
        self.beta = _positive("beta", beta)
        self.router = router

    def __call__(
        self,
        logps: PairLogps,
        progress: float,
        micro_batch: tuple[int, int] = (0, 1),
        update: bool = True,
    ) -> ObjectiveOutput:
        m = sequence_margin(logps, self.beta)
        routing = self.router(m, progress, micro_batch, update)
        q_clean, q_flip, q_tie, w = (
            x.to(m.dtype) for x in (routing.clean, routing.flip, routing.tie, routing.weight)
        )
        corrected = (
            q_clean * clean_loss(m) + q_flip * flip_loss(m) + q_tie * tie_loss(m)
        )  # Eq. lplc
        loss = (1 - w) * clean_loss(m) + w * corrected  # Eq. (total)
        return ObjectiveOutput(loss, m.detach(), routing)

    def state_dict(self) -> dict[str, Any]:
        return self.router.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.router.load_state_dict(state)


def build_objective(name: str, *, beta: float, **options: Any) -> Objective:
    """The objective `name`: "dpo", or "plc" with the options of `Router`.

    Args:
        name: "dpo" or "plc".
        beta: scale of the margin, positive; the paper's is 0.01.
        options: for "plc": recipe, prior, states, schedule, calibration_order, sigma_min, initial.

    Raises:
        ValueError: for an unknown name, a value out of range, or an option that the objective
            would ignore.
    """
    if name == "plc":
        known = inspect.signature(Router).parameters
        _refuse_unknown(name, options, known)
        return PLC(beta, Router(**options))
    if name == "dpo":
        _refuse_unknown(name, options, ())
        return DPO(beta)
    raise ValueError(f"Unknown objective {name!r}; known are dpo, plc.")


def _refuse_unknown(name: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    ignored = sorted(set(options) - set(known))
    if ignored:
        raise ValueError(f"The objective {name!r} has no option {', '.join(ignored)}.")


def _positive(name: str, value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite; it is {value}.")
    return value
