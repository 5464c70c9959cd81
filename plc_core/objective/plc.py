"""PLC-DPO: Algorithm 1, and its ablations by keyword."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from plc_core.objective.base import (
    Objective,
    PairLogps,
    Step,
)
from plc_core.objective.ranges import positive, truth
from plc_core.objective.routing import Router, Routing
from plc_core.objective.state_losses import clean_loss, flip_loss, tie_loss


class PLC(Objective):
    """L = (1 - w) L_dpo + w (q_clean L_clean + q_flip L_flip + q_tie L_tie).

    q and w are detached (Eq. stopgrad); they come from the router's reading of the margin. With
    H(m) = 1 for m > 0, 0 for m < 0 and 1/2 at 0:

        dL/dm = -sigma(-m) + w (q_flip + q_tie H(m))

    Args:
        beta: scale of the margin; the paper's is 0.01.
        router: where q and w come from; not shared with another objective.
        correct: False leaves the flip and the tie action out, so that a pair is only trained less
            where it is not clean: L = [1 - w (1 - q_clean)] L_dpo. It is the ablation "Confidence
            reweight only" ("downweighting without correction"), which the paper does not spell out.
    """

    router: Router

    def __init__(self, beta: float, router: Router, correct: bool = True) -> None:
        self.beta = positive("beta", beta)
        self.router = router
        self.correct = truth("correct", correct)

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        assert routing is not None  # there is always a router
        q_clean, q_flip, q_tie, w = (
            x.to(m.dtype) for x in (routing.clean, routing.flip, routing.tie, routing.weight)
        )
        corrected: Tensor = q_clean * clean_loss(m)
        if self.correct:
            corrected = corrected + q_flip * flip_loss(m) + q_tie * tie_loss(m)  # Eq. (lplc)
        return (1 - w) * clean_loss(m) + w * corrected  # Eq. (total)

    def state_dict(self) -> dict[str, Any]:
        return self.router.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.router.load_state_dict(state)
