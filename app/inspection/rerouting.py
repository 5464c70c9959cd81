"""Where a run's stored margins would be routed under other settings, without training again.

The routing is the core's own; its import loads torch, so the functions here do that only when
they are called. The margins stay those of the run: a policy that had been trained under the new
settings would have moved elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

STATES = ("clean", "flip", "tie")


@dataclass(frozen=True)
class Settings:
    """What may be changed: the prior of flip and tie, temperatures, power and strength."""

    prior_flip: float
    prior_tie: float
    tau_dir: float
    tau_tie: float
    kappa: float
    gamma_max: float


@dataclass(frozen=True)
class Stored:
    """The pairs of a run that have a routing, at their last visit: z and progress, [n] each.

    `progress` is the completed share of training; `place` numbers its distinct values `at`.
    """

    z: NDArray[np.float32]
    at: NDArray[np.float64]
    place: NDArray[np.intp]


@dataclass(frozen=True)
class Routed:
    """Every pair's routing: q [n, 3] of clean, flip and tie, and the weight w [n]."""

    q: NDArray[np.float32]
    weight: NDArray[np.float32]

    @cached_property
    def side(self) -> NDArray[np.int8]:
        """The state of the largest q: its place in STATES, [n]."""
        return self.q.argmax(axis=1).astype(np.int8)

    @property
    def reversal(self) -> NDArray[np.float32]:
        """w * q_flip, the share of each pair's loss that is taken reversed, [n]."""
        return self.weight * self.q[:, 1]

    def mass(self) -> dict[str, float]:
        """Means over pairs: q_clean, q_flip, q_tie, and the correction w q_flip and w q_tie."""
        means = {f"q_{s}": q for s, q in zip(STATES, self.q.T, strict=True)}
        means |= {f"w · {name}": self.weight * means[name] for name in ("q_flip", "q_tie")}
        return {name: float(each.mean(dtype=np.float64)) for name, each in means.items()}


def stored(z: NDArray, last_step: NDArray, total_steps: int) -> Stored:
    """What `reroute` reads, from each pair's z and the step of its last visit, [n] each."""
    at, place = np.unique(np.asarray(last_step), return_inverse=True)
    progress = np.minimum(at / max(total_steps, 1), 1.0)
    return Stored(np.array(z, np.float32), progress, place)


def recorded(config: Mapping[str, Any]) -> Settings:
    """The settings that a run was routed with, by its configuration.

    Raises:
        ValueError: for settings that no router takes.
    """
    router = _router(config)
    recipe = router.recipe
    _, flip, tie = router.prior
    return Settings(flip, tie, recipe.tau_dir, recipe.tau_tie, recipe.kappa, recipe.gamma_max)


def reroute(pairs: Stored, config: Mapping[str, Any], settings: Settings) -> Routed:
    """Route the stored pairs under `settings`; what they do not name is the run's own.

    Raises:
        ValueError: for settings that no router takes.
    """
    import torch

    from plc_core.objective.routing import confidence, energies

    router = _router(config, settings)
    # A state after the other in memory: a softmax along rows of three takes six times as long.
    energy = energies(torch.from_numpy(pairs.z), router.prior, router.recipe)
    q = energy.T.contiguous().softmax(0)
    largest = q.amax(0)[:, None]  # all that the confidence asks of q
    certainty = confidence(largest, router.recipe.kappa) if router.gate else torch.ones(q.shape[1])
    strength = np.array([router.strength(float(at)) for at in pairs.at], np.float32)
    return Routed(q.numpy().T, strength[pairs.place] * certainty.numpy())


def changed_sides(z: NDArray, before: Routed, after: Routed) -> pd.DataFrame:
    """Pairs whose largest q is another state's: from, to, pairs, and the z they lie between.

    q is a function of z alone, and each side is one stretch of z: so these bounds let through
    exactly the pairs that changed.
    """
    moved = np.flatnonzero(before.side != after.side)
    names = np.array(STATES)
    table = pd.DataFrame(
        {"from": names[before.side[moved]], "to": names[after.side[moved]], "z": z[moved]}
    )
    groups = table.groupby(["from", "to"])["z"]
    return groups.agg(pairs="size", low="min", high="max").reset_index()


def _router(config: Mapping[str, Any], settings: Settings | None = None) -> Any:
    from plc_core.objective.routing import Router

    options = config.get("objective_options")
    corrects = config.get("objective") == "plc" and isinstance(options, Mapping)
    given = {k: v for k, v in options.items() if k != "correct"} if corrects and options else {}
    for name in ("recipe", "schedule"):
        if config.get(name):
            given.setdefault(name, config[name])
    given["prior"] = tuple(config.get("prior") or ())
    if settings is not None:
        flip, tie = settings.prior_flip, settings.prior_tie
        given["prior"] = (1 - flip - tie, flip, tie)
        given |= {n: getattr(settings, n) for n in ("tau_dir", "tau_tie", "kappa", "gamma_max")}
    return Router(**given)
