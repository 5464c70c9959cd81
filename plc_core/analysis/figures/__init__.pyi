from .audit import (
    flip_distribution,
    flip_reliability,
    routing_by_state,
    tie_ceiling,
    tie_selectivity,
)
from .calibration import reliability, state_confusion
from .routing_metrics import (
    correction_phases,
    direction_kept,
    disagreement,
    dose_response,
    group_means,
)
from .style import RUN_COLOURS, STATE_COLOURS
from .training import pair_trajectory, q_against_z, training_curves

__all__ = [
    "RUN_COLOURS",
    "STATE_COLOURS",
    "correction_phases",
    "direction_kept",
    "disagreement",
    "dose_response",
    "flip_distribution",
    "flip_reliability",
    "group_means",
    "pair_trajectory",
    "q_against_z",
    "reliability",
    "routing_by_state",
    "state_confusion",
    "tie_ceiling",
    "tie_selectivity",
    "training_curves",
]
