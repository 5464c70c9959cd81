"""Where a pair is routed: energies, q, confidence and weight (Sections 3.3 and 3.5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from plc_core.objective.length_evidence import LengthEvidence
from plc_core.objective.margin_ema import MarginCalibration
from plc_core.objective.ranges import number, truth
from plc_core.objective.recipes import PRIOR, RECIPES, Recipe, Schedule, correction_strength

CalibrationOrder = Literal["auto", "update-first", "score-first"]


class Routing(NamedTuple):
    """How a batch was routed; every field is [B] and detached."""

    z: Tensor  # calibrated margin, in standard deviations
    clean: Tensor  # q_clean
    flip: Tensor  # q_flip
    tie: Tensor  # q_tie
    confidence: Tensor  # C in [0, 1]
    weight: Tensor  # w = gamma_t * C, the share of the corrected loss


def energies(
    z: Tensor, prior: tuple[float, float, float] | tuple[Tensor, Tensor, Tensor], recipe: Recipe
) -> Tensor:
    """The energy scores of clean, flip and tie (Section 3.3): z [B] to [B, 3].

    The prior is three shares, or [B] each. A state with prior 0 has energy -inf, which the softmax
    takes to weight 0.
    """
    # Plain numbers, as a tensor of them would be copied to the device at every call.
    clean, flip, tie = (
        p.log() if isinstance(p, Tensor) else math.log(p) if p else -math.inf for p in prior
    )
    signed, near = z / recipe.tau_dir, -z.abs() / recipe.tau_tie
    return torch.stack((clean + signed, flip - signed, tie + near), -1)


def confidence(q: Tensor, kappa: float) -> Tensor:
    """C(q) = ((max_s q_s - 1/3) / (2/3))^kappa, Eq. (confidence): q [B, 3] to [B]."""
    # Rounding can put the largest of three equal weights just below 1/3, and 0^kappa is safe.
    return (1.5 * (q.amax(-1) - 1 / 3)).clamp(0, 1).pow(kappa)


class Router:
    """Routes margins and keeps their calibration; PLC-DPO trains with it, others log beside it.

    Under a plain objective it is "shadow routing": the same evidence read from an EMA of its own,
    with no influence on the loss.

    Args:
        recipe: a name in `RECIPES` or a `Recipe`.
        prior: pi^0 of clean, flip and tie; sums to 1.
        states: the states that may receive weight; the others get prior 0 and the rest is
            normalised again.
        schedule: the shape of gamma_t after warm-up.
        calibration_order: "update-first" moves the EMA by this batch and then scores it, as
            Algorithm 1 does; under accumulation by the margins of the step seen so far.
            "score-first" scores with the EMA of the previous step, so that the result does not
            depend on how a step is split. "auto" is update-first where the step is one forward,
            and score-first under accumulation.
        sigma_min, initial, centre: see `MarginCalibration`.
        length_normalised: True divides the margin, a sum over tokens, by the tokens of both
            responses and multiplies it by 100; not in the paper. Where sources differ in length, a
            sum is near 0 because a pair is short, and is then taken for a tie.
        length_evidence: True adds what the answers' difference in length says of the label, as
            learnt from the labels so far (see `LengthEvidence`); not in the paper.
        calibrate: False takes the raw margin as z (ablation "Remove EMA calibration"; the recipe's
            alpha = 0 instead standardises by each batch alone).
        gate: False sets the confidence to 1; with warmup = 0 and schedule "constant" it is the
            ablation "Remove warm-up/gate".
        alpha, tau_dir, tau_tie, warmup, gamma_max, kappa: each replaces the recipe's, as in the
            one-dimensional sweeps (Table "One-dimensional retraining sweeps").
    """

    def __init__(
        self,
        recipe: str | Recipe = "aggressive",
        prior: tuple[float, float, float] = PRIOR,
        states: tuple[str, ...] = ("clean", "flip", "tie"),
        schedule: Schedule = "linear",
        calibration_order: CalibrationOrder = "auto",
        sigma_min: float = 1e-3,
        initial: tuple[float, float] | None = None,
        calibrate: bool = True,
        gate: bool = True,
        warmup: float | None = None,
        alpha: float | None = None,
        tau_dir: float | None = None,
        tau_tie: float | None = None,
        gamma_max: float | None = None,
        kappa: float | None = None,
        centre: bool = True,
        length_normalised: bool = False,
        length_evidence: bool = False,
    ) -> None:
        if isinstance(recipe, str):
            if recipe not in RECIPES:
                raise ValueError(f"Unknown recipe {recipe!r}; known are {', '.join(RECIPES)}.")
            recipe = RECIPES[recipe]
        if not isinstance(recipe, Recipe):
            raise ValueError(f"recipe is a name or a Recipe, not {recipe!r}.")
        if schedule not in ("linear", "cosine", "constant"):
            raise ValueError(f"Unknown schedule {schedule!r}; known are linear, cosine, constant.")
        if calibration_order not in ("auto", "update-first", "score-first"):
            raise ValueError(
                f"Unknown calibration_order {calibration_order!r}; known are auto, update-first, "
                "score-first."
            )
        given = {
            "alpha": alpha,
            "tau_dir": tau_dir,
            "tau_tie": tau_tie,
            "warmup": warmup,
            "gamma_max": gamma_max,
            "kappa": kappa,
        }
        changed: dict[str, Any] = {name: x for name, x in given.items() if x is not None}
        self.recipe = replace(recipe, **changed)
        self.prior = _restricted(prior, states)
        self.schedule: Schedule = schedule
        self.calibration_order: CalibrationOrder = calibration_order
        self.calibrate = truth("calibrate", calibrate)
        self.gate = truth("gate", gate)
        self.length_normalised = truth("length_normalised", length_normalised)
        wanted = truth("length_evidence", length_evidence)
        self.length_evidence = LengthEvidence(self.recipe.alpha, sigma_min) if wanted else None
        self.calibration = MarginCalibration(self.recipe.alpha, sigma_min, initial, centre)

    def __call__(
        self,
        margin: Tensor,
        progress: float,
        micro_batch: tuple[int, int] = (0, 1),
        update: bool = True,
        lengths: Tensor | None = None,
        distinct: Tensor | None = None,
        told: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> Routing:
        """Route the margins of a micro-batch, [B].

        Args:
            margin: m = beta * Delta, [B]; read detached.
            progress: completed share of training in [0, 1].
            micro_batch: (index, count) of this forward among those of the optimizer step.
            update: False for evaluation: score with the committed EMA and change nothing.
            lengths: tokens of the chosen and the rejected response, [B, 2]; for the options that
                read them.
            distinct: [B], whether a pair's responses differ in their tokens; the others move no
                statistics. None where all do.
            told: p_flip and p_tie of an audit, [B] each; None, or NaN for a pair, where the
                router's own prior holds.
        """
        evidence = self.evidence(margin, lengths)
        index, count = micro_batch
        calibration = self.calibration
        average = None
        if update:
            if self.length_evidence is not None:
                self.length_evidence.observe(*self._read(margin, lengths), distinct)
            calibration.observe(evidence, distinct)
            order = self.calibration_order
            if order == "update-first" or (order == "auto" and count == 1):
                average = calibration.preview()
        routing = self._route(evidence, progress, average, told)
        if update and index == count - 1:
            calibration.commit(average)
            if self.length_evidence is not None:
                self.length_evidence.commit()
        return routing

    def evidence(self, margin: Tensor, lengths: Tensor | None = None) -> Tensor:
        """What is calibrated, [B]: the margin, unless an option reads the lengths [B, 2] too.

        Raises:
            ValueError: for such an option without lengths.
        """
        if not (self.length_normalised or self.length_evidence):
            return margin
        margin, lengths = self._read(margin, lengths)
        return margin if self.length_evidence is None else self.length_evidence(margin, lengths)

    def _read(self, margin: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if lengths is None or lengths.shape != (len(margin), 2):
            found = None if lengths is None else tuple(lengths.shape)
            raise ValueError(
                "This routing needs the lengths of both responses of each pair, [B, 2]; it was "
                f"given {found} for {len(margin)} pairs."
            )
        return (100 * margin / lengths.sum(-1) if self.length_normalised else margin), lengths

    def pair_priors(
        self, p_flip: Tensor | None, p_tie: Tensor | None, like: Tensor
    ) -> tuple[float, float, float] | tuple[Tensor, Tensor, Tensor]:
        """pi^0 of each pair, [B] each, from what was told of it: (1 - t)(1 - f), (1 - t) f, t.

        t = p_tie and f = p_flip; what is not known (NaN) is the router's own prior, and states that
        it leaves out have no weight. With f = flip / (clean + flip) for all pairs it is the paper's
        prior, which is the same for all.
        """
        if p_flip is None and p_tie is None:
            return self.prior
        clean, flip, tie = self.prior
        unknown = torch.full_like(like, torch.nan)
        f, t = (unknown if x is None else x.to(like) for x in (p_flip, p_tie))
        f = torch.where(f.isnan(), flip / (clean + flip) if clean + flip else 0.0, f) * (flip > 0)
        t = torch.where(t.isnan(), tie, t) * (tie > 0)
        return (1 - t) * (1 - f), (1 - t) * f, t

    def _route(
        self,
        evidence: Tensor,
        progress: float,
        average: Tensor | None,
        told: tuple[Tensor | None, Tensor | None],
    ) -> Routing:
        if self.calibrate:
            z = self.calibration.standardize(evidence, average)
        else:
            z = evidence.detach().to(torch.float64)
        q = energies(z, self.pair_priors(*told, z), self.recipe).softmax(-1)
        clean, flip, tie = q.unbind(-1)
        gate = confidence(q, self.recipe.kappa) if self.gate else torch.ones_like(z)
        return Routing(z, clean, flip, tie, gate, self.strength(progress) * gate)

    def strength(self, progress: float) -> float:
        """gamma_t of this router's recipe and schedule at `progress`; see `correction_strength`."""
        return correction_strength(progress, self.recipe, self.schedule)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the EMAs. gamma_t follows from progress."""
        state: dict[str, Any] = {"calibration": self.calibration.state_dict()}
        if self.length_evidence is not None:
            state["length_evidence"] = self.length_evidence.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; ValueError where it is something else."""
        if "calibration" not in state:
            raise ValueError(f"This is no state of a router: {dict(state)!r}.")
        self.calibration.load_state_dict(state["calibration"])
        if self.length_evidence is None and "length_evidence" in state:
            raise ValueError("The state is of a router with length_evidence; this one is without.")
        if self.length_evidence is not None:
            self.length_evidence.load_state_dict(state.get("length_evidence"))


def _restricted(
    prior: tuple[float, float, float], states: tuple[str, ...]
) -> tuple[float, float, float]:
    if (
        not isinstance(prior, (tuple, list))
        or len(prior) != 3
        or any(not (0 <= number("a prior weight", p) <= 1) for p in prior)
    ):
        raise ValueError(f"The prior is three weights in [0, 1]: clean, flip, tie; got {prior}.")
    if abs(sum(prior) - 1) > 1e-6:
        raise ValueError(f"The prior of clean, flip and tie must sum to 1; {prior} does not.")
    if not (
        isinstance(states, (tuple, list))
        and set(states) <= {"clean", "flip", "tie"}
        and "clean" in states
    ):
        raise ValueError(f"states are among clean, flip, tie and include clean; got {states}.")
    kept = [p if s in states else 0.0 for p, s in zip(prior, ("clean", "flip", "tie"), strict=True)]
    total = sum(kept)
    if total == 0:
        raise ValueError(f"The states {states} have no prior weight in {prior}.")
    return kept[0] / total, kept[1] / total, kept[2] / total
