"""Objectives of one pair alone: DPO and the baselines that change its loss.

With m the margin, s the logistic function and sp(x) = log(1 + e^x):

    dpo          sp(-m)
    cdpo         (1 - e) sp(-m) + e sp(m)
    rdpo-robust  [(1 - e) sp(-m) - e sp(m)] / (1 - 2e)
    rdpo-length  sp(-x), x = m + a (|chosen| - |rejected|)
    rso          max(0, 1 - m)
    ipo          (h - 1/(2 t))^2, h the difference of log-ratios per token
    simpo        sp(-x), x = beta (log pi(chosen)/|chosen| - log pi(rejected)/|rejected|) - g
    dpo-ln       sp(-beta h)
"""

from __future__ import annotations

from torch import Tensor

from plc_core.objective.base import (
    Objective,
    PairLogps,
    Step,
    log_ratios,
    told_or,
)
from plc_core.objective.ranges import not_negative, positive, share
from plc_core.objective.routing import Routing
from plc_core.objective.state_losses import clean_loss, flip_loss


class DPO(Objective):
    """L = sp(-m), Eq. (dpo); Rafailov et al. 2023."""

    def __init__(self, beta: float) -> None:
        self.beta = positive("beta", beta)

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        return clean_loss(m)


class CDPO(Objective):
    """L = (1 - e) sp(-m) + e sp(m): DPO with labels smoothed by e; Mitchell 2023.

    Minimal at m = logit(1 - e), and it pulls larger margins back. DPO at e = 0. A pair whose
    probability of being reversed is known has it for its own e.
    """

    def __init__(self, beta: float, epsilon: float = 0.1) -> None:
        self.beta = positive("beta", beta)
        self.epsilon = share("epsilon", epsilon, below=0.5)

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        epsilon = told_or(self.epsilon, logps.p_flip, m)
        return (1 - epsilon) * clean_loss(m) + epsilon * flip_loss(m)


class RobustDPO(Objective):
    """L = [(1 - e) sp(-m) - e sp(m)] / (1 - 2e); Chowdhury et al. 2024, "rDPO".

    Its mean over labels flipped with probability e is DPO's loss on the clean labels. Unbounded
    below, and stronger than DPO at every m. DPO at e = 0. A pair whose probability of being
    reversed is known has it for its own e, of at most `LARGEST_SHARE`: at a half a label says
    nothing, and its loss would be infinite.
    """

    LARGEST_SHARE = 0.45

    def __init__(self, beta: float, epsilon: float = 0.1) -> None:
        self.beta = positive("beta", beta)
        self.epsilon = share("epsilon", epsilon, below=0.5)

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        told = None if logps.p_flip is None else logps.p_flip.clamp(max=self.LARGEST_SHARE)
        epsilon = told_or(self.epsilon, told, m)
        return ((1 - epsilon) * clean_loss(m) - epsilon * flip_loss(m)) / (1 - 2 * epsilon)


class LengthDPO(Objective):
    """L = sp(-x), x = m + a (|chosen| - |rejected|) in tokens; Park et al. 2024, "R-DPO".

    A pair whose chosen response is the longer one is trained less. DPO at a = 0 or equal lengths.
    """

    def __init__(self, beta: float, alpha: float = 0.01) -> None:
        self.beta = positive("beta", beta)
        self.alpha = not_negative("alpha", alpha)

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        longer = (logps.chosen_lengths - logps.rejected_lengths).to(m.dtype)
        return clean_loss(m + self.alpha * longer)


class RSO(Objective):
    """L = max(0, 1 - m): the hinge of RSO without its rejection sampling; Liu et al. 2024."""

    def __init__(self, beta: float) -> None:
        self.beta = positive("beta", beta)

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        return (1 - m).relu()


class IPO(Objective):
    """L = (h - 1/(2 t))^2 with h the difference of log-ratios per token; Azar et al. 2024.

    The per-token form is the one that its authors confirmed and that public trainers use. `beta`
    scales the logged margin only; what other trainers call beta here is `tau`.
    """

    def __init__(self, beta: float, tau: float = 0.1) -> None:
        self.beta = positive("beta", beta)
        self.tau = positive("tau", tau)

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        return (_per_token_margin(logps) - 1 / (2 * self.tau)).square()


class SimPO(Objective):
    """L = sp(-x), x = beta (log pi(chosen)/|chosen| - log pi(rejected)/|rejected|) - g.

    Meng et al. 2024; no reference. `gamma` is the target margin g itself, in units of x; None is
    half of beta, the published ratio, beside a beta near 2. The logged margin is beta * Delta
    against the reference, as everywhere.
    """

    def __init__(self, beta: float, gamma: float | None = None) -> None:
        self.beta = positive("beta", beta)
        self.gamma = 0.5 * self.beta if gamma is None else not_negative("gamma", gamma)

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        chosen = logps.policy_chosen.to(m.dtype) / logps.chosen_lengths
        rejected = logps.policy_rejected.to(m.dtype) / logps.rejected_lengths
        return clean_loss(self.beta * (chosen - rejected) - self.gamma)


class LengthNormalisedDPO(Objective):
    """L = sp(-beta h), h as in IPO: "DPO-LN only", margin rescaling and no correction.

    The paper's ablation table names it and does not define it; LN is read as length
    normalisation. beta acts on nats per token here, so like scales need a beta larger than DPO's by
    about the length of a response.
    """

    def __init__(self, beta: float) -> None:
        self.beta = positive("beta", beta)

    def losses(self, m: Tensor, logps: PairLogps, step: Step, routing: Routing | None) -> Tensor:
        return clean_loss(self.beta * _per_token_margin(logps))


def _per_token_margin(logps: PairLogps) -> Tensor:
    chosen, rejected = log_ratios(logps)
    return chosen / logps.chosen_lengths - rejected / logps.rejected_lengths
