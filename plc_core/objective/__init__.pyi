from .base import (
    NonFiniteError,
    Objective,
    ObjectiveOutput,
    PairLogps,
    sequence_margin,
)
from .build import OBJECTIVES, build_objective
from .flip_posterior import FlipPosterior, NoiseEstimate
from .margin_ema import MarginCalibration
from .recipes import PRIOR, RECIPES, Recipe
from .routing import Router, Routing

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
