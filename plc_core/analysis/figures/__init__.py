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
from plc_core.analysis.figures.calibration import reliability, state_confusion
from plc_core.analysis.figures.dynamics import dynamics_over_kl, training_dynamics
from plc_core.analysis.figures.judges import judges_side_by_side
from plc_core.analysis.figures.methods import seed_dots, win_rate_against_kl, win_rate_dots
from plc_core.analysis.figures.objectives import objective_curves
from plc_core.analysis.figures.pairs import length_differences
from plc_core.analysis.figures.rewards import reward_against_kl
from plc_core.analysis.figures.sensitivity import sweep_panels
from plc_core.analysis.figures.stages import sft_curves
from plc_core.analysis.figures.studies import (
    correction_phases,
    direction_kept,
    disagreement,
    dose_response,
    group_means,
)
from plc_core.analysis.figures.style import RUN_COLOURS, STATE_COLOURS
from plc_core.analysis.figures.training import pair_trajectory, q_against_z, training_curves
from plc_core.analysis.figures.win_rates import win_rate_radar, win_rates_by_dose

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
