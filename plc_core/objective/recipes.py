"""The recipes of PLC-DPO, the prior, and the schedule of the correction (Section 3.5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from plc_core.objective.ranges import number, positive, share

Schedule = Literal["linear", "cosine", "constant"]

PRIOR = (0.80, 0.08, 0.12)
"""pi^0 for clean, flip and tie. The paper does not print it; inferred from its statistics."""


@dataclass(frozen=True)
class Recipe:
    """The six hyperparameters of a recipe (Table "PLC-DPO hyperparameter recipes")."""

    alpha: float  # EMA decay of the margin's mean and variance
    tau_dir: float  # temperature of the signed evidence, clean against flip
    tau_tie: float  # temperature of the tie evidence's decay away from z = 0
    warmup: float  # rho_warm, the share of training that is plain DPO
    gamma_max: float  # maximum correction strength
    kappa: float  # confidence power

    def __post_init__(self) -> None:
        for name in ("tau_dir", "tau_tie", "kappa"):
            positive(name, getattr(self, name))
        share("alpha", self.alpha)
        share("warmup", self.warmup)
        if not 0 <= number("gamma_max", self.gamma_max) <= 1:
            raise ValueError(f"gamma_max must be in [0, 1]; it is {self.gamma_max}.")


RECIPES: Mapping[str, Recipe] = {
    # alpha, tau_dir, tau_tie, warmup, gamma_max, kappa
    "conservative": Recipe(0.995, 1.00, 0.85, 0.15, 0.50, 1.5),
    "balanced": Recipe(0.99, 0.75, 1.00, 0.10, 0.70, 1.0),
    "aggressive": Recipe(0.98, 0.55, 1.15, 0.07, 0.85, 0.8),
}


def correction_strength(progress: float, recipe: Recipe, schedule: Schedule = "linear") -> float:
    """gamma_t at the completed share of training `progress` in [0, 1] (Section 3.5, Algorithm 1).

    0 during warm-up; then, with u from 0 to 1 over the rest of training, gamma_max times
    u (linear), (1 - cos(pi u)) / 2 (cosine) or 1 (constant).
    """
    if not 0 <= progress <= 1:
        raise ValueError(f"progress is the completed share of training in [0, 1]; got {progress}.")
    if progress < recipe.warmup:
        return 0.0
    u = (progress - recipe.warmup) / (1 - recipe.warmup)
    rise = {"linear": u, "cosine": (1 - math.cos(math.pi * u)) / 2, "constant": 1.0}[schedule]
    return recipe.gamma_max * rise
