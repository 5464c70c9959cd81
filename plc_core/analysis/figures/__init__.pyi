from .audit import (
    flip_distribution,
    flip_reliability,
    routing_by_state,
    tie_ceiling,
    tie_selectivity,
)
from .routing_metrics import dose_response, group_means
from .style import RUN_COLOURS, STATE_COLOURS, titled
from .training import pair_trajectory, q_against_z, training_curves

__all__ = [
    "RUN_COLOURS",
    "STATE_COLOURS",
    "dose_response",
    "flip_distribution",
    "flip_reliability",
    "group_means",
    "pair_trajectory",
    "q_against_z",
    "routing_by_state",
    "tie_ceiling",
    "tie_selectivity",
    "titled",
    "training_curves",
]
