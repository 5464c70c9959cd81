"""What one pair is worth, in torch and nothing else; it knows no other room.

base             the face of every objective: log-probs of a batch in, a loss a pair out
losses           clean, flip and tie loss of a margin
plc, pairwise, coupled, gamma_po
                 the objectives; `build` makes one by its name
routing          recipes, energies, q, confidence, schedule; `margin_ema` standardises the
                 margin, `length_evidence` adds what the lengths say
flip_posterior   how likely a label is reversed, and the noise rate with its interval
reduction        statistics over the ranks
"""

from plc_core.objective.base import (
    NonFiniteError,
    Objective,
    ObjectiveOutput,
    PairLogps,
    sequence_margin,
)
from plc_core.objective.build import OBJECTIVES, build_objective
from plc_core.objective.flip_posterior import FlipPosterior, NoiseEstimate
from plc_core.objective.margin_ema import MarginCalibration
from plc_core.objective.routing import PRIOR, RECIPES, Recipe, Router, Routing

__all__ = [
    "OBJECTIVES",
    "PRIOR",
    "RECIPES",
    "FlipPosterior",
    "MarginCalibration",
    "NoiseEstimate",
    "NonFiniteError",
    "Objective",
    "ObjectiveOutput",
    "PairLogps",
    "Recipe",
    "Router",
    "Routing",
    "build_objective",
    "sequence_margin",
]
