"""What one pair is worth: routing, calibration and losses, in torch and nothing else."""

from plc_core.objective.calibration import MarginCalibration
from plc_core.objective.losses import (
    DPO,
    PLC,
    Objective,
    ObjectiveOutput,
    PairLogps,
    build_objective,
    clean_loss,
    flip_loss,
    sequence_margin,
    tie_loss,
)
from plc_core.objective.routing import PRIOR, RECIPES, Recipe, Router, Routing

__all__ = [
    "DPO",
    "PLC",
    "PRIOR",
    "RECIPES",
    "MarginCalibration",
    "Objective",
    "ObjectiveOutput",
    "PairLogps",
    "Recipe",
    "Router",
    "Routing",
    "build_objective",
    "clean_loss",
    "flip_loss",
    "sequence_margin",
    "tie_loss",
]
