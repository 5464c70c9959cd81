"""All figures of the notebooks, a table in and a plotly figure out: their own and the shared."""

from notebooks.figures.dynamics import dynamics_over_kl, training_dynamics
from notebooks.figures.judges import judges_side_by_side
from notebooks.figures.label_audit import (
    agreement,
    gains,
    p_flip_histogram,
    precision_by_rank,
    rankings_by_rate,
)
from notebooks.figures.methods import seed_dots, win_rate_against_kl, win_rate_dots
from notebooks.figures.objectives import objective_curves
from notebooks.figures.pairs import length_differences
from notebooks.figures.rewards import reward_against_kl
from notebooks.figures.routing import correction_phases, direction_kept, disagreement
from notebooks.figures.sensitivity import sweep_panels
from notebooks.figures.stages import sft_curves
from notebooks.figures.throughput import throughput_dots
from notebooks.figures.true_states import reliability, state_confusion
from notebooks.figures.win_rates import win_rate_radar, win_rates_by_dose
from plc_core.analysis.figures import (
    dose_response,
    flip_distribution,
    flip_reliability,
    group_means,
    q_against_z,
    routing_by_state,
    tie_selectivity,
    titled,
    training_curves,
)

__all__ = [
    "agreement",
    "correction_phases",
    "direction_kept",
    "disagreement",
    "dose_response",
    "dynamics_over_kl",
    "flip_distribution",
    "flip_reliability",
    "gains",
    "group_means",
    "judges_side_by_side",
    "length_differences",
    "objective_curves",
    "p_flip_histogram",
    "precision_by_rank",
    "q_against_z",
    "rankings_by_rate",
    "reliability",
    "reward_against_kl",
    "routing_by_state",
    "seed_dots",
    "sft_curves",
    "state_confusion",
    "sweep_panels",
    "throughput_dots",
    "tie_selectivity",
    "titled",
    "training_curves",
    "training_dynamics",
    "win_rate_against_kl",
    "win_rate_dots",
    "win_rate_radar",
    "win_rates_by_dose",
]
