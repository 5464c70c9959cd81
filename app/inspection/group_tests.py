"""Any measure of the pairs, between any two groups of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pandas as pd

from inspection.digest import Digest
from inspection.queries import (
    NUMBERS,
    Filter,
    Rows,
    columns,
    count,
    quantile,
    values,
)
from plc_core.analysis.statistics import Floats, MannWhitney, Side, holm, mann_whitney
from plc_core.data.slices import slices_of
from plc_core.data.votes import VOTE_GROUPS

ABSOLUTE = ("margin", "z", "score_gap")
"""Measures that are offered without their sign too, as |margin|."""

SHARE = 0.2
WEAK, STRONG = f"weakest {SHARE:.0%} of score gaps", f"strongest {SHARE:.0%} of score gaps"
EVERYTHING = "all pairs"
LOWEST, HIGHEST = f"lowest {SHARE:.0%}", f"highest {SHARE:.0%}"


@dataclass(frozen=True)
class Row:
    """One measure's test, and its p value after Holm's correction over the family."""

    measure: str
    test: MannWhitney
    adjusted: float


@dataclass(frozen=True)
class Bench:
    """The tests of a family of measures between groups A and B.

    A pair is in one group only, as the test takes the groups for independent: of `shared` pairs
    that are in both, none is left in either, unless one group holds all of the other, which is then
    compared with the rest of it. `first_values` are the values of the first measure in A and in B.
    """

    a: str
    b: str
    rows: tuple[Row, ...]
    shared: int
    within: bool  # whether one group holds all pairs of the other
    first_values: tuple[Floats, Floats]

    @property
    def note(self) -> str:
        """What was done about the pairs that are in both groups; "" where there are none."""
        if not self.shared:
            return ""
        said = f"{self.shared:,} pairs are in both groups, and "
        if self.within:
            return said + "count in the smaller one only: it is compared with all others."
        return said + "are left out of both."

    def table(self) -> pd.DataFrame:
        """One row a measure: the groups, every field of the test, and p_holm, unrounded."""
        rows: list[dict[str, Any]] = [
            {"measure": row.measure, "a": self.a, "b": self.b}
            | vars(row.test)
            | {"p_holm": row.adjusted}
            for row in self.rows
        ]
        return pd.DataFrame(rows)


def group_choices(digest: Digest) -> Mapping[str, Filter | None]:
    """The groups that a run's pairs can be put in, by name; None for those `bench` ranks for."""
    found: dict[str, Filter | None] = {}
    for state in values(digest, "oracle_state"):
        found[f"true state {state}"] = Filter(states=(state,))
    if values(digest, "flipped"):
        found |= {
            "label swapped": Filter(marker="swapped"),
            "label not swapped": Filter(marker="not swapped"),
        }
    if count(digest, Filter(marker="injected tie")):
        found["injected tie"] = Filter(marker="injected tie")
    groups = values(digest, "vote_group")
    found |= {f"votes {g}": Filter(votes=(g,)) for g in VOTE_GROUPS if g in groups}
    if "score_gap" in digest.columns:
        found |= {WEAK: None, STRONG: None}
    sources = values(digest, "source", 50)
    if len(sources) > 1:
        found |= {f"source {source}": Filter(sources=(source,)) for source in sources}
    for mark in values(digest, "marks", 50):
        found[f"marked {mark}"] = Filter(marks=(mark,))
    found[EVERYTHING] = Filter()
    numbers = [name for name in NUMBERS if name in digest.columns]
    return found | {f"{end} of {name}": None for name in numbers for end in (LOWEST, HIGHEST)}


def bench(
    digest: Digest,
    measures: Sequence[str],
    a: str,
    b: str,
    side: str,
    saved: Mapping[str, Filter | None] = MappingProxyType({}),
) -> Bench:
    """Mann-Whitney tests of each measure between two groups, corrected by Holm over the measures.

    Args:
        measures: columns, or one of `ABSOLUTE` between bars.
        a, b: names of `group_choices`, or of `saved` filters.
        side: two-sided, greater (A is larger) or less.
    """
    names = [measure.strip("|") for measure in measures]
    parts = [_group(digest, group, names, saved) for group in (a, b)]
    shared = np.intersect1d(parts[0]["row"], parts[1]["row"])
    sizes = [len(part) for part in parts]
    within = len(shared) == min(sizes) < max(sizes)
    parts = [
        part if within and len(part) == min(sizes) else part[~part["row"].isin(shared)]
        for part in parts
    ]
    both: list[tuple[Floats, Floats]] = []
    for measure in measures:
        sides = [part[measure.strip("|")].to_numpy(np.float64) for part in parts]
        if measure.startswith("|"):
            sides = [np.abs(values) for values in sides]
        both.append((sides[0], sides[1]))
    tests = [mann_whitney(*sides, cast(Side, side)) for sides in both]
    adjusted = holm(test.p for test in tests)
    rows = tuple(
        Row(measure, test, float(p))
        for measure, test, p in zip(measures, tests, adjusted, strict=True)
    )
    return Bench(a, b, rows, len(shared), within, both[0])


def _group(
    digest: Digest, group: str, names: Sequence[str], saved: Mapping[str, Filter | None]
) -> pd.DataFrame:
    wanted = list(dict.fromkeys(["row", *names]))
    chosen = {**saved, **group_choices(digest)}[group]
    if chosen is None and group in (WEAK, STRONG):
        rows = _slice(digest, "low" if group == WEAK else "high")
        chosen = Filter(rows=Rows(group, rows))
    elif chosen is None:
        end, _, name = group.partition(" of ")
        edge = quantile(digest, name, SHARE if end == LOWEST else 1 - SHARE)
        bounds = (-math.inf, edge) if end == LOWEST else (edge, math.inf)
        chosen = Filter(ranges=((name, *bounds),))
    return columns(digest, wanted, chosen)


def _slice(digest: Digest, name: str) -> np.ndarray:
    """The places of the pairs in a slice of score gaps, within their source as in the paper."""
    names = ["row", "pair_id", "source", "score_chosen", "score_rejected"]
    table = columns(digest, names)
    keys = table.reindex(columns=names[1:])
    keys["source"] = keys["source"].fillna("unknown") if "source" in table else "all"
    return table.loc[slices_of(keys, SHARE).table["slice"].eq(name).to_numpy(), "row"].to_numpy()
