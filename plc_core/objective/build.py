"""Every objective by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plc_core.objective.base import Objective

OBJECTIVES: Mapping[str, str] = {
    "dpo": "pairwise.DPO",
    "cdpo": "pairwise.CDPO",
    "rdpo-robust": "pairwise.RobustDPO",  # Chowdhury et al.'s rDPO
    "rdpo-length": "pairwise.LengthDPO",  # Park et al.'s R-DPO
    "kto-pair": "coupled.KTOPair",
    "rso": "pairwise.RSO",
    "gamma-po": "gamma_po.GammaPO",
    "dr-dpo": "coupled.DrDPO",
    "ropo": "coupled.ROPO",
    "re-po": "coupled.REPO",
    "ipo": "pairwise.IPO",
    "simpo": "pairwise.SimPO",
    "dpo-ln": "pairwise.LengthNormalisedDPO",
    "plc": "plc.PLC",
}
"""The class of each objective, by the module of this room that holds it."""

# What other libraries call it, or take and then ignore.
_HINTS = {
    "label_smoothing": 'use "cdpo" or "rdpo-robust" with epsilon=',
    "loss_type": "the name of the objective is its first argument",
}


def build_objective(name: str, *, beta: float, **options: Any) -> Objective:
    """The objective `name`, with its options checked.

    Args:
        name: a key of `OBJECTIVES`. The paper's "rDPO" is "rdpo-length", which it cites; Chowdhury
            et al.'s loss of that name is "rdpo-robust".
        beta: scale of the margin, positive; the paper's is 0.01 (SimPO's own is near 2).
        options: those of the objective's class: epsilon, alpha, tau, and so on. For "plc" they are
            `correct` and the options of `Router`: recipe, prior, states, schedule,
            calibration_order, sigma_min, initial, calibrate, gate, warmup, centre,
            length_normalised, length_evidence.

    The paper's ablations: name "dpo-ln"; and "plc" with correct=False; states=("clean", "tie");
    states=("clean", "flip"); calibrate=False; or gate=False, warmup=0, schedule="constant".

    Raises:
        ValueError: for an unknown name, a value out of range, or an option that the objective
            would ignore.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"Unknown objective {name!r}; known are {', '.join(OBJECTIVES)}.")
    if name == "plc":
        from plc_core.objective.plc import PLC
        from plc_core.objective.routing import Router

        known = [*inspect.signature(Router).parameters, "correct"]
        _refuse_ignored(name, options, known)
        correct = options.pop("correct", True)
        return PLC(beta, Router(**options), correct)
    objective = objective_class(name)
    known = [p for p in inspect.signature(objective).parameters if p != "beta"]
    _refuse_ignored(name, options, known)
    return objective(beta, **options)


def objective_class(name: str) -> Callable[..., Objective]:
    """The class of an objective, which takes beta and its options."""
    module, _, found = OBJECTIVES[name].partition(".")
    return getattr(import_module(f"plc_core.objective.{module}"), found)


def _refuse_ignored(name: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    for option in options:
        if option not in known:
            has = f"it has {', '.join(known)}" if known else "it has none but beta"
            hint = f"; {_HINTS[option]}" if option in _HINTS else ""
            raise ValueError(f"The objective {name!r} would ignore {option!r}: {has}{hint}.")
