"""The control that moved as far: a plain DPO at the beta whose KL to the reference matches.

What a method wins beyond it is in `notebooks.studies.seed_win_rates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from notebooks.studies.study import JudgedConfig, trained
from plc_core.analysis.statistics import MeanInterval, bootstrap_seeds
from plc_core.evaluation.judged import JudgedRuns
from plc_core.evaluation.results import is_matched
from plc_core.runs import Run
from plc_core.storage.files import RunError

Key = TypeVar("Key")

CONTROL = "KL control (DPO)"
"""The control's name as a method."""

ROUNDS = 2
"""Betas that are tried for a control at most."""

_SLOPE = -0.6
"""d log KL / d log beta of plain DPO, as measured in the embedded world between 0.1 and 0.2: a
first guess, which the control's own KL then corrects."""
_STEEPEST, _FLATTEST = -2.5, -0.2  # what two runs may say of it, so that noise does not run away


class Control(NamedTuple):
    """The plain DPO runs, one a seed, that moved as far as a method's."""

    beta: float
    runs: list[Run]
    kl: MeanInterval  # nats per response, sampled from the policy
    target: MeanInterval  # the method's

    @property
    def matched(self) -> bool:
        """Whether the two KLs are above 0 and differ by at most a tenth of the target."""
        return is_matched(self.kl.mean, self.target.mean)

    @property
    def distance(self) -> float:
        """Between the two KLs, in nats."""
        return abs(self.kl.mean - self.target.mean)

    def __str__(self) -> str:
        verdict = "" if self.matched else ", which is not matched"
        return (
            f"KL control: plain DPO at β={self.beta:g} moved {self.kl.mean:.2f} "
            f"[{self.kl.low:.2f}, {self.kl.high:.2f}] nats per response where the method moved "
            f"{self.target.mean:.2f} [{self.target.low:.2f}, {self.target.high:.2f}]{verdict}."
        )


def mean_kl(runs: Sequence[Run], judged: JudgedRuns) -> MeanInterval:
    """KL to the reference, nats per response: the mean over seeds and sampled responses.

    Prompts of all benchmarks are pooled: how far a policy moved is asked of it, not of a benchmark.
    """
    return bootstrap_seeds([judged.of(run).log_ratios["log_ratio"] for run in runs], seed=0)


def matched_beta(target: float, known: Mapping[float, float]) -> float:
    """The beta at which plain DPO would have a KL of `target`, to two significant digits.

    By a straight line in log beta and log KL through the two known points about the target, or the
    nearest two; through one point with the slope that the embedded world has.

    Args:
        target: nats per response, above 0.
        known: KL of plain DPO by its beta, one at least.

    Raises:
        RunError: where a KL is not above 0, as of a policy that has not moved.
    """
    if not known or not all(kl > 0 for kl in [target, *known.values()]):
        raise RunError(
            f"A control for a KL of {target:.3g} nats cannot be found from "
            f"{dict(known)}: KLs must be above 0. Has the policy moved at all?"
        )
    points = sorted(known.items(), key=lambda p: abs(math.log(p[1] / target)))
    beta, kl = points[0]
    slope = _SLOPE
    others = [p for p in points[1:] if (p[1] > target) != (kl > target)] or points[1:]
    if others and others[0][0] != beta:
        other_beta, other_kl = others[0]
        slope = math.log(other_kl / kl) / math.log(other_beta / beta)
        slope = min(max(slope, _STEEPEST), _FLATTEST)
    found = math.exp(math.log(beta) + math.log(target / kl) / slope)
    return float(f"{found:.2g}")


def find_controls(
    cases: Mapping[Key, tuple[Sequence[Run], Sequence[Sequence[Run]]]],
    train: Callable[[Mapping[Key, float]], Mapping[Key, Sequence[Run]]],
    judged: JudgedRuns,
    rounds: int = ROUNDS,
) -> dict[Key, Control]:
    """The plain DPO runs that moved as far as each of several methods.

    Args:
        cases: for each, the method's runs, one a seed, and plain DPO's on the same data at one beta
            or more, each with one run a seed.
        train: gives plain DPO runs on each case's data at the beta that is asked for it, made where
            they are missing. It is asked for all cases of a round at once.
        judged: where log-ratios are read.
        rounds: betas to try at most for each; one is enough where the first is within a tenth.

    Returns:
        For each the nearest of all, plain DPO itself included; `matched` says whether it is near.
        Where a KL is not above 0, as of policies that have hardly moved, no other beta is tried.

    Raises:
        RunError: from `train`, where runs are missing and not to be made.
    """
    targets = {key: mean_kl(method, judged) for key, (method, _) in cases.items()}
    tried = {
        key: {_beta(o): Control(_beta(o), list(o), mean_kl(o, judged), targets[key]) for o in dpo}
        for key, (_, dpo) in cases.items()
    }
    for _ in range(rounds):
        betas = {key: _next_beta(targets[key].mean, known) for key, known in tried.items()}
        wanted = {key: beta for key, beta in betas.items() if beta is not None}
        if not wanted:
            break
        for key, runs in train(wanted).items():
            control = Control(wanted[key], list(runs), mean_kl(runs, judged), targets[key])
            tried[key][wanted[key]] = control
    return {key: min(known.values(), key=lambda c: c.distance) for key, known in tried.items()}


def _next_beta(target: float, tried: Mapping[float, Control]) -> float | None:
    """The beta to try; None where one matches, KLs say nothing, or it was tried."""
    kls = [target, *(control.kl.mean for control in tried.values())]
    if min(kls) <= 0 or any(control.matched for control in tried.values()):
        return None
    beta = matched_beta(target, {b: c.kl.mean for b, c in tried.items()})
    return None if beta in tried else beta


def _beta(runs: Sequence[Run]) -> float:
    betas = {float(run.info["config"]["beta"]) for run in runs}
    if len(betas) != 1:
        raise RunError(f"Runs of one control have one beta; these have {sorted(betas)}.")
    return betas.pop()


def controls_of(
    config: JudgedConfig,
    cases: Mapping[Key, tuple[list[Run], list[list[Run]]]],
    data: Mapping[Key, dict[str, Any]],
    judged: JudgedRuns,
    names: Mapping[Key, str],
) -> dict[Key, Control]:
    """The controls of several cases (a method's runs, plain DPO's), each the plain DPO on its own
    `data` (parameters of 01_train) that moved as far; what is missing is named by `names`. None
    where the study has `kl_control` off.
    """
    if not config.kl_control:
        return {}
    then = "Other KL controls may follow: run the notebook again for their names."

    def train(betas: Mapping[Key, float]) -> dict[Key, list[Run]]:
        variants = {
            names[key]: {**data[key], "objective": "dpo", "beta": beta}
            for key, beta in betas.items()
        }
        ready = trained(config, variants, then=then)
        return {key: ready[names[key]] for key in betas}

    return find_controls(cases, train, judged)


def controls_follow(config: JudgedConfig, count: int) -> str:
    """The sentence on KL controls, which have no names before the runs that they match exist."""
    if not config.kl_control:
        return ""
    most = count * ROUNDS * len(config.seeds)
    return (
        f"Then up to {most} more follow: the KL controls, plain DPO at a β that depends on how far "
        "these moved. Run the notebook again for their names."
    )
