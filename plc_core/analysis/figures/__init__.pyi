from .audit import (
    flip_distribution,
    flip_reliability,
    routing_by_state,
    tie_ceiling,
    tie_selectivity,
)
from .calibration import reliability, state_confusion
from .dynamics import dynamics_over_kl, training_dynamics
from .judges import judges_side_by_side
from .methods import seed_dots, win_rate_against_kl, win_rate_dots
from .objectives import objective_curves
from .pairs import length_differences
from .rewards import reward_against_kl
from .sensitivity import sweep_panels
from .stages import sft_curves
from .studies import (
    correction_phases,
    direction_kept,
    disagreement,
    dose_response,
    group_means,
)
from .style import RUN_COLOURS, STATE_COLOURS
from .training import pair_trajectory, q_against_z, training_curves
from .win_rates import win_rate_radar, win_rates_by_dose

__all__ = [
    "RUN_COLOURS",
    "STATE_COLOURS",
    "correction_phases",
    "direction_kept",
    "disagreement",
    "dose_response",
    "dynamics_over_kl",
    "flip_distribution",
    "flip_reliability",
    "group_means",
    "judges_side_by_side",
    "length_differences",
    "objective_curves",
    "pair_trajectory",
    "q_against_z",
    "reliability",
    "reward_against_kl",
    "routing_by_state",
    "seed_dots",
    "sft_curves",
    "state_confusion",
    "sweep_panels",
    "tie_ceiling",
    "tie_selectivity",
    "training_curves",
    "training_dynamics",
    "win_rate_against_kl",
    "win_rate_dots",
    "win_rate_radar",
    "win_rates_by_dose",
]
