"""The interface of every objective: a batch's log-probs in, one loss per pair out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plc_core.objective.ranges import number
from plc_core.objective.routing import Router, Routing


class PairLogps(NamedTuple):
    """Log-probabilities of a batch of pairs, summed over the response's tokens: [B] each, nats.

    `p_tie` and `p_flip` come from an audit made before training: the probability that the pair is a
    tie, and that its label is reversed given that it is not. NaN: unknown. Objectives that have a
    noise rate or a prior use these values per pair. (The p_flip of visits is another one, estimated
    while training: `FlipPosterior`.)
    """

    policy_chosen: Tensor
    policy_rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor
    chosen_lengths: Tensor  # tokens, the terminator included
    rejected_lengths: Tensor
    p_flip: Tensor | None = None
    p_tie: Tensor | None = None

    def select(self, rows: Tensor) -> PairLogps:
        """Those of some pairs, by a mask or by their places."""
        return PairLogps(*(None if x is None else x[rows] for x in self))  # type: ignore[arg-type]

    @property
    def lengths(self) -> Tensor:
        """Tokens of both responses, [B, 2], chosen first."""
        return torch.stack((self.chosen_lengths, self.rejected_lengths), 1)


class NonFiniteError(ValueError):
    """Log-probs that are NaN or infinite; `positions` are the pairs' places in the batch."""

    def __init__(self, positions: list[int], where: str = "") -> None:
        shown = ", ".join(map(str, positions[:8])) + (", …" if len(positions) > 8 else "")
        super().__init__(
            f"{len(positions)} pairs of the batch have a log-probability that is not finite (NaN "
            f"or infinite), at positions {shown}{f' of {where}' if where else ''}."
        )
        self.positions = positions


@dataclass(frozen=True)
class ObjectiveOutput:
    """One batch under an objective."""

    loss: Tensor  # [B], differentiable; the step's loss is its mean over the step's batch
    margin: Tensor  # [B], detached: m = beta * Delta of Eq. (mseq), whatever the objective
    routing: Routing | None = None  # None for objectives without routing


@dataclass(frozen=True)
class Step:
    """Where a forward pass stands in training."""

    progress: float  # completed share of training in [0, 1]
    index: int  # of this forward among those of the optimizer step
    count: int
    update: bool  # False for evaluation, which moves no state

    @property
    def ends(self) -> bool:
        """Whether the optimizer step ends with this forward."""
        return self.index == self.count - 1


class Objective(ABC):
    """A loss: a batch's log-probs to one loss per pair.

    An objective is called once per forward; by default a call is a whole optimizer step.
    `beta` scales the margin m; `router` is None for objectives without routing.
    """

    beta: float
    router: Router | None = None

    def __call__(
        self,
        logps: PairLogps,
        progress: float,
        micro_batch: tuple[int, int] = (0, 1),
        update: bool = True,
        distinct: Tensor | None = None,
    ) -> ObjectiveOutput:
        """Losses of a batch.

        Args:
            logps: of the batch.
            progress: completed share of training in [0, 1].
            micro_batch: (index, count) of this forward among those of the optimizer step.
            update: False for evaluation, which moves no state.
            distinct: [B], whether a pair's responses differ in their tokens: the routing is
                calibrated by those alone. None where all do.

        Raises:
            NonFiniteError: naming the pairs, for log-probs on the CPU; elsewhere a check would
                wait for the device, and the trainer makes it once a step.
            ValueError: for tensors of different shapes, or progress outside [0, 1].
        """
        if not 0 <= number("progress", progress) <= 1:
            raise ValueError(f"progress is a share of training in [0, 1]; it is {progress}.")
        if not 0 <= micro_batch[0] < micro_batch[1]:
            raise ValueError(
                f"micro_batch is (index, count), index below count; got {micro_batch}."
            )
        m = sequence_margin(logps, self.beta)
        routing = None
        if self.router is not None:
            told = (logps.p_flip, logps.p_tie)
            routing = self.router(m, progress, micro_batch, update, logps.lengths, distinct, told)
        loss = self.losses(m, logps, Step(progress, *micro_batch, update), routing)
        return ObjectiveOutput(loss, m.detach(), routing)

    @abstractmethod
    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        """The loss of each pair, [B], from its margin m and whatever else the objective reads."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain numbers, lists and strings."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; ValueError where it is something else."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but was given {sorted(state)}.")


def log_ratios(logps: PairLogps) -> tuple[Tensor, Tensor]:
    """log pi/pi_ref of the chosen and the rejected responses: [B] each, fp32 or more, nats."""
    shapes = {tuple(x.shape) for x in logps if x is not None}
    if len(shapes) > 1 or logps.policy_chosen.ndim != 1:
        raise ValueError(f"The tensors of PairLogps must share one shape [B]; got {shapes}.")
    policy_chosen, policy_rejected, reference_chosen, reference_rejected = (
        x.to(torch.promote_types(x.dtype, torch.float32))
        for x in (
            logps.policy_chosen,
            logps.policy_rejected,
            logps.reference_chosen,
            logps.reference_rejected,
        )
    )
    return policy_chosen - reference_chosen, policy_rejected - reference_rejected


def told_or(default: float | Tensor, told: Tensor | None, m: Tensor) -> float | Tensor:
    """[B], what was told of each pair in the precision of m, `default` where that is nothing."""
    if told is None:
        return default
    return torch.where(told.isnan(), default, told.to(m.dtype))


def sequence_margin(logps: PairLogps, beta: float) -> Tensor:
    """m = beta [log pi/pi_ref(chosen) - log pi/pi_ref(rejected)], Eq. (mseq): [B], >= fp32."""
    chosen, rejected = log_ratios(logps)
    m = beta * (chosen - rejected)
    if _on_cpu(m) and not m.isfinite().all():
        raise NonFiniteError(torch.nonzero(~m.isfinite()).flatten().tolist())
    return m


def _on_cpu(m: Tensor) -> bool:
    # Elsewhere a look at the values would wait for the device.
    return m.device.type == "cpu"
