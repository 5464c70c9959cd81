"""What one pair is worth: routing, calibration and losses, in torch and nothing else."""

from plc_core.objective.base import (
    NonFiniteError,
    Objective,
    ObjectiveOutput,
    PairLogps,
    sequence_margin,
)
from plc_core.objective.build import OBJECTIVES, build_objective
from plc_core.objective.calibration import MarginCalibration
from plc_core.objective.flip_posterior import FlipPosterior, NoiseEstimate
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
