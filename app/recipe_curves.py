"""The routing weights that a run's settings give each z, from its record alone, without torch.

The numbers are those of `plc_core.objective.routing`, which a test holds equal: analysis reads
runs where no model can be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

TEMPERATURES = {
    # tau_dir, tau_tie
    "conservative": (1.00, 0.85),
    "balanced": (0.75, 1.00),
    "aggressive": (0.55, 1.15),
}
"""Table "PLC-DPO hyperparameter recipes": evidence and tie temperatures of each recipe."""

WARMUP = {"conservative": 0.15, "balanced": 0.10, "aggressive": 0.07}
"""Table "PLC-DPO hyperparameter recipes": the share of training that is plain DPO."""

_STATES = ("clean", "flip", "tie")


def recipe_curve(config: Mapping[str, Any], z: np.ndarray | None = None) -> pd.DataFrame:
    """q as a function of z for a run's `config`: columns z, q_clean, q_flip, q_tie.

    Equation "posterior", with the energies of section "Margin-Based Routing Distribution". Without
    `z` it is drawn from -4 to 4. Empty where the configuration names a recipe that is not known.
    """
    grid = np.linspace(-4, 4, 321) if z is None else np.asarray(z, dtype=np.float64)
    temperatures = TEMPERATURES.get(str(config.get("recipe")))
    prior = prior_of(config)
    if temperatures is None or prior is None:
        return pd.DataFrame({name: np.zeros(0) for name in ("z", "q_clean", "q_flip", "q_tie")})
    directed, near = temperatures
    with np.errstate(divide="ignore"):
        energy = np.log(prior) + np.stack([grid / directed, -grid / directed, -abs(grid) / near], 1)
    weights = np.exp(energy - energy.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return pd.DataFrame({"z": grid} | {f"q_{s}": weights[:, i] for i, s in enumerate(_STATES)})


def prior_of(config: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """The prior of clean, flip and tie, with the states that a run left out at 0."""
    options = config.get("objective_options")
    states = options.get("states", _STATES) if isinstance(options, Mapping) else _STATES
    try:
        prior = [float(p) for p in config["prior"]]
        kept = [p if s in states else 0.0 for p, s in zip(prior, _STATES, strict=True)]
        total = sum(kept)
        return (kept[0] / total, kept[1] / total, kept[2] / total)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
