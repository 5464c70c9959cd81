"""Plotly figures: table in, figure out, for notebook and app alike.

Never a pie or bar of the most likely state: the tie state is the largest weight at no z under any
plausible prior, so such a picture would say "no ties" whatever the data hold.
"""

from plc_core.analysis.figures.audit import (
    flip_distribution,
    flip_reliability,
    routing_by_state,
    tie_ceiling,
    tie_selectivity,
)
from plc_core.analysis.figures.objectives import objective_curves
from plc_core.analysis.figures.pairs import length_differences
from plc_core.analysis.figures.rewards import reward_against_kl
from plc_core.analysis.figures.stages import sft_curves
from plc_core.analysis.figures.style import RUN_COLOURS, STATE_COLOURS
from plc_core.analysis.figures.training import pair_trajectory, q_against_z, training_curves

__all__ = [
    "RUN_COLOURS",
    "STATE_COLOURS",
    "flip_distribution",
    "flip_reliability",
    "length_differences",
    "objective_curves",
    "pair_trajectory",
    "q_against_z",
    "reward_against_kl",
    "routing_by_state",
    "sft_curves",
    "tie_ceiling",
    "tie_selectivity",
    "training_curves",
]
