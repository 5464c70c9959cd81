"""What all visits of a run say of each pair and of each step, added up file by file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from plc_core.analysis.noise import P_FLIP_FROM
from plc_core.storage.files import RunError

Floats: TypeAlias = NDArray[np.floating]
Ints: TypeAlias = NDArray[np.integer]

VALUES = ("margin", "z", "q_clean", "q_flip", "q_tie", "confidence", "weight")
"""The numbers of a visit that a pair keeps from its last one."""

OPTIONAL = ("p_flip",)
"""Numbers that only some versions write, kept from a pair's first visit: later the policy
remembers the label. Blank where that visit was before `P_FLIP_FROM`."""

MEASURES = ("margin", "z", "confidence", "weight")
"""What is counted over training, in cells of steps by values."""

STEP_CELLS, VALUE_CELLS = 128, 64
_BOUNDS = {"z": (-5.0, 5.0), "confidence": (0.0, 1.0), "weight": (0.0, 1.0)}


@dataclass
class Counts:
    """How often a value fell into each cell of steps by values.

    `table` is [STEP_CELLS, VALUE_CELLS]; a row holds `width` steps, and the columns divide
    [`low`, `high`] evenly, values beyond it counted at its ends. Where steps or margins outgrow
    the table, neighbouring cells are joined, so that every count stays exact.
    """

    low: float
    high: float
    width: int = 1
    table: Ints = field(default_factory=lambda: np.zeros((STEP_CELLS, VALUE_CELLS), np.int64))

    def add(self, steps: Ints, values: Floats, grows: bool) -> None:
        """Count values [n] at their steps [n]; with `grows` the bounds widen to hold them all."""
        known = np.isfinite(values)
        steps, values = steps[known], values[known]
        if not len(values):
            return
        while steps.max() // self.width >= STEP_CELLS:
            joined = self.table[0::2] + self.table[1::2]
            self.table = np.concatenate([joined, np.zeros_like(joined)])
            self.width *= 2
        while grows and np.abs(values).max() > self.high:
            joined = self.table[:, 0::2] + self.table[:, 1::2]
            edge = np.zeros((STEP_CELLS, VALUE_CELLS // 4), np.int64)
            self.table = np.concatenate([edge, joined, edge], axis=1)
            self.low, self.high = 2 * self.low, 2 * self.high
        place = (values - self.low) * (VALUE_CELLS / (self.high - self.low))
        column = np.clip(place.astype(np.int64), 0, VALUE_CELLS - 1)
        cell = steps // self.width * VALUE_CELLS + column
        counted = np.bincount(cell, minlength=self.table.size)
        self.table = self.table + counted.reshape(self.table.shape)


class Tally:
    """The sums of all visits added so far.

    Attributes:
        pairs: arrays [pairs] by name: visits, first_step, last_step (-1 before any visit), VALUES
            of the last visit, OPTIONAL of the first, z_sum, z_squares and z_known (over visits
            whose z is finite), largest_q_tie.
        steps: arrays [steps] by name: visits, routed (visits that have a weight), and the sums of
            q_clean, q_flip, q_tie, weight, weight_flip and weight_tie (weight times q).
        counts: for each of MEASURES its `Counts`.
    """

    def __init__(self, pairs: int) -> None:
        nan = np.float32(np.nan)
        self.pairs: dict[str, NDArray] = {
            "visits": np.zeros(pairs, np.int32),
            "first_step": np.full(pairs, -1, np.int32),
            "last_step": np.full(pairs, -1, np.int32),
            **{name: np.full(pairs, nan, np.float32) for name in (*VALUES, *OPTIONAL)},
            "z_sum": np.zeros(pairs),
            "z_squares": np.zeros(pairs),
            "z_known": np.zeros(pairs, np.int32),
            "largest_q_tie": np.full(pairs, nan, np.float32),
        }
        self.steps: dict[str, NDArray] = {}
        self.counts = {name: Counts(*_BOUNDS.get(name, (-1e-6, 1e-6))) for name in MEASURES}

    def add(self, rows: Ints, visits: Mapping[str, NDArray]) -> None:
        """Add visits in the order in which they were made.

        Args:
            rows: [n], the place of each visit's pair among the pairs.
            visits: arrays [n]: step, VALUES, and OPTIONAL where there are any.

        Raises:
            RunError: for a step that no run has.
        """
        steps = np.asarray(visits["step"], np.int64)
        if len(steps) and not 0 <= steps.min() <= steps.max() < 2**31:
            raise RunError(f"The visits hold the step {steps.min()}, which no training makes.")
        pairs = self.pairs
        size = len(pairs["visits"])
        seen = np.bincount(rows, minlength=size).astype(np.int32)
        fresh = (pairs["visits"] == 0) & (seen > 0)
        early = steps < P_FLIP_FROM
        known = {n: np.where(early, np.nan, visits[n]) for n in OPTIONAL if n in visits}
        for name, values in {"first_step": steps, **known}.items():
            # Of equal places numpy keeps what is assigned last: so first visits come last.
            first = pairs[name].copy()
            first[rows[::-1]] = values[::-1]
            pairs[name][fresh] = first[fresh]
        pairs["last_step"][rows] = steps
        pairs["visits"] += seen
        for name in VALUES:
            pairs[name][rows] = visits[name]
        z = np.asarray(visits["z"], np.float64)
        finite = np.isfinite(z)
        z, of = np.where(finite, z, 0.0), rows
        pairs["z_sum"] += np.bincount(of, z, size)
        pairs["z_squares"] += np.bincount(of, z * z, size)
        pairs["z_known"] += np.bincount(of[finite], minlength=size).astype(np.int32)
        np.fmax.at(pairs["largest_q_tie"], rows, visits["q_tie"])
        self._add_steps(steps, visits)
        for name in MEASURES:
            self.counts[name].add(steps, np.asarray(visits[name], np.float64), name == "margin")

    def _add_steps(self, steps: Ints, visits: Mapping[str, NDArray]) -> None:
        if not len(steps):
            return
        weight = np.nan_to_num(np.asarray(visits["weight"], np.float64))
        flip, tie = (np.nan_to_num(visits[f"q_{name}"]) for name in ("flip", "tie"))
        columns = {
            "visits": np.ones(len(steps)),
            "routed": np.isfinite(np.asarray(visits["weight"], np.float64)).astype(float),
            **{name: np.nan_to_num(visits[name]) for name in ("q_clean", "q_flip", "q_tie")},
            "weight": weight,
            "weight_flip": weight * flip,
            "weight_tie": weight * tie,
        }
        start, end = int(steps.min()), int(steps.max()) + 1
        for name, values in columns.items():
            old = self.steps.get(name, np.zeros(0))
            if len(old) < end:
                # Room for as many again: files come one after another, and copies would add up.
                old = np.concatenate([old, np.zeros(max(end, 2 * len(old)) - len(old))])
            old[start:end] += np.bincount(steps - start, values, end - start)
            self.steps[name] = old

    def pair_columns(self) -> pd.DataFrame:
        """What is said of each pair, a row a pair: mean and spread of z too."""
        pairs = self.pairs
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = pairs["z_sum"] / pairs["z_known"]
            spread = np.sqrt(np.maximum(pairs["z_squares"] / pairs["z_known"] - mean**2, 0))
        return pd.DataFrame(
            pairs
            | {
                "mean_z": mean.astype(np.float32),
                # One visit has no spread, which is not the same as one of 0.
                "sd_z": np.where(pairs["z_known"] > 1, spread, np.nan).astype(np.float32),
                "correction": pairs["weight"] * pairs["q_flip"],
            }
        )

    def step_columns(self) -> pd.DataFrame:
        """The sums of each step that had a visit."""
        table = pd.DataFrame(self.steps)
        if table.empty:
            return pd.DataFrame({"step": np.zeros(0, np.int64)})
        table.insert(0, "step", np.arange(len(table)))
        return table[table["visits"] > 0].reset_index(drop=True)
