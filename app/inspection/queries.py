"""Orders, counts, samples and columns of a run's pairs, under filters."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from inspection.database import frame, query, quoted
from inspection.digest import TABLE, Digest, mapped
from inspection.sorting import sorted_places
from plc_core.storage.files import RunError

Ints: TypeAlias = NDArray[np.integer]

NUMBERS = (
    *("q_clean", "q_flip", "q_tie", "p_flip", "z", "margin", "confidence", "weight", "correction"),
    *("mean_z", "sd_z", "visits", "last_step", "score_gap", "score_chosen", "score_rejected"),
)
"""The numbers of a pair that a page lists, in its order."""

MARKERS = ("swapped", "not swapped", "injected tie", "warm")
"""What injected corruption may have done to a pair."""

_MARKER_SQL = {
    "swapped": "flipped",
    "not swapped": "NOT flipped",
    "injected tie": "injected_tie",
    "warm": "warm",
}
_MARKER_COLUMN = {"swapped": "flipped", "not swapped": "flipped", "injected tie": "injected_tie"}


@dataclass(frozen=True)
class Rows:
    """Places of pairs, as a search finds them; those of one `name` are the same places."""

    name: str
    places: Ints = field(compare=False, repr=False)


@dataclass(frozen=True)
class Filter:
    """Which pairs: all that fulfil every part; an empty part lets all through.

    `ranges` bound numeric columns, ends included; `ids` are pairs by name, `without` those left
    out; `rows` are places of pairs, as a search in the texts gives them.
    """

    ranges: tuple[tuple[str, float, float], ...] = ()
    sources: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    votes: tuple[str, ...] = ()
    marker: str | None = None
    ids: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    rows: Rows | None = None

    def tables(self) -> dict[str, pa.Table]:
        """What a query with this filter reads beside the pairs."""
        return {} if self.rows is None else {"picked": pa.table({"row": self.rows.places})}


def ordered(digest: Digest, chosen: Filter, order: str, descending: bool) -> Ints:
    """The places of the pairs that the filter lets through, in an order, missing numbers last.

    Equal values are ordered by the pair's place in the run, so that it is the same each time. The
    last few are kept: from page to page and from pair to pair nothing is sorted again.
    """
    return _ordered(digest.folder, digest.columns, chosen, order, descending)


@functools.lru_cache(maxsize=8)
def _ordered(
    folder: Path, columns: tuple[str, ...], chosen: Filter, order: str, descending: bool
) -> Ints:
    where, parameters = _where(columns, chosen)
    by = _checked(columns, order)
    parameters = [str(folder / TABLE), *parameters]
    column = mapped(folder)[by]
    if column.type == pa.float32():
        places = None
        if where:
            sql = f"SELECT row::INT AS row FROM read_parquet($1) {where} ORDER BY row"
            places = query(sql, parameters, chosen.tables())["row"].to_numpy()
        found = sorted_places(column, places, descending)
    else:
        direction = "DESC" if descending else "ASC"
        sql = (
            f"SELECT row::INT AS row FROM read_parquet($1) {where} "
            f"ORDER BY {quoted(by)} {direction} NULLS LAST, row"
        )
        found = query(sql, parameters, chosen.tables())["row"].to_numpy()
    found.flags.writeable = False
    return found


def rows(digest: Digest, places: Sequence[int] | Ints, columns: Sequence[str]) -> pd.DataFrame:
    """Some columns of the pairs at `places`, in that order; those columns that the run has."""
    known = [name for name in columns if name in digest.columns]
    return digest.table.select(known).take(pa.array(places, pa.int64())).to_pandas()


def count(digest: Digest, chosen: Filter) -> int:
    """How many pairs the filter lets through."""
    where, parameters = _where(digest.columns, chosen)
    sql = f"SELECT count(*) AS n FROM read_parquet($1) {where}"
    return int(query(sql, [digest.pairs_path, *parameters], chosen.tables())["n"][0].as_py())


def sample(digest: Digest, chosen: Filter, columns: Sequence[str], most: int) -> pd.DataFrame:
    """At most `most` of the pairs, drawn by a hash of their ids, so the same each time."""
    where, parameters = _where(digest.columns, chosen)
    known = [name for name in dict.fromkeys([*columns, "row"]) if name in digest.columns]
    # The hash's lowest values, found without sorting: a bound that lets a few more through.
    total = count(digest, chosen)
    share = min(1.0, 1.05 * most / total + 0.001) if total else 1.0
    bound = "" if share >= 1 else f"hash(row) <= {int(share * (2**64 - 1))}"
    if bound:
        where = f"{where} AND {bound}" if where else f"WHERE {bound}"
    sql = (
        f"SELECT {', '.join(map(quoted, known))} FROM read_parquet($1) {where} "
        f"ORDER BY hash(row) LIMIT {int(most)}"
    )
    return frame(sql, [digest.pairs_path, *parameters], chosen.tables())


def columns(digest: Digest, names: Sequence[str], chosen: Filter = Filter()) -> pd.DataFrame:
    """Whole columns of the pairs in the run's order, those that the run has."""
    where, parameters = _where(digest.columns, chosen)
    known = [name for name in names if name in digest.columns]
    if not known:
        return pd.DataFrame()
    sql = f"SELECT {', '.join(map(quoted, known))} FROM read_parquet($1) {where} ORDER BY row"
    return frame(sql, [digest.pairs_path, *parameters], chosen.tables())


def constant(digest: Digest, names: Sequence[str]) -> set[str]:
    """Those of the columns that say the same of every pair, or nothing of any."""
    known = [name for name in names if name in digest.columns]
    return set(_constant(digest.pairs_path, tuple(known)))


@functools.lru_cache(maxsize=16)
def _constant(path: str, names: tuple[str, ...]) -> tuple[str, ...]:
    same = (
        f"(count({q}) IN (0, count(*)) AND min({q}) IS NOT DISTINCT FROM max({q})) AS {q}"
        for q in map(quoted, names)
    )
    if not names:
        return ()
    row = query(f"SELECT {', '.join(same)} FROM read_parquet($1)", [path]).to_pylist()[0]
    return tuple(name for name in names if row[name])


def values(digest: Digest, name: str, most: int = 200) -> list[str]:
    """The values of a text column, the most frequent first."""
    return list(_values(digest.pairs_path, name, most)) if name in digest.columns else []


@functools.lru_cache(maxsize=64)
def _values(path: str, name: str, most: int) -> tuple[str, ...]:
    column = quoted(name)
    source = f"SELECT {column} AS v FROM read_parquet($1)"
    if name == "marks":
        source = f"SELECT unnest({column}) AS v FROM read_parquet($1)"
    sql = (
        f"SELECT v FROM ({source}) WHERE v IS NOT NULL GROUP BY v "
        f"ORDER BY count(*) DESC, v LIMIT {int(most)}"
    )
    return tuple(str(value) for value in query(sql, [path])["v"].to_pylist())


def bounds(digest: Digest, name: str) -> tuple[float, float] | None:
    """The smallest and largest finite value of a numeric column; None where it has none."""
    column = quoted(_checked(digest.columns, name))
    sql = (
        f"SELECT min({column})::DOUBLE AS a, max({column})::DOUBLE AS b FROM read_parquet($1) "
        f"WHERE isfinite({column}::DOUBLE)"
    )
    found = query(sql, [digest.pairs_path])
    low, high = found["a"][0].as_py(), found["b"][0].as_py()
    return None if low is None else (float(low), float(high))


def quantile(digest: Digest, name: str, share: float) -> float:
    """The value of a numeric column that `share` of its finite values do not exceed; NaN without.

    It is one of the values, so that a filter up to it is exact.
    """
    column = quoted(_checked(digest.columns, name))
    sql = (
        f"SELECT quantile_disc({column}::DOUBLE, {float(share)!r}) AS v FROM read_parquet($1) "
        f"WHERE isfinite({column}::DOUBLE)"
    )
    value = query(sql, [digest.pairs_path])["v"][0].as_py()
    return math.nan if value is None else float(value)


def row_of(digest: Digest, pair_id: str) -> int | None:
    """The place of a pair in the run; None for an id that it does not have."""
    try:
        found = int(pc.index(digest.table["pair_id"], pa.scalar(pair_id, pa.string())).as_py())
    except UnicodeEncodeError:  # a lone surrogate is in no id that a file can hold
        return None
    return None if found < 0 else found


def histogram(digest: Digest, name: str, chosen: Filter, edges: np.ndarray) -> np.ndarray:
    """How many pairs fall between neighbouring `edges` (evenly spaced), those beyond left out."""
    column = quoted(_checked(digest.columns, name))
    where, parameters = _where(digest.columns, chosen)
    low, width, cells = float(edges[0]), float(edges[1] - edges[0]), len(edges) - 1
    inside = f"{column} BETWEEN {low!r} AND {float(edges[-1])!r}"
    where = f"{where} AND {inside}" if where else f"WHERE {inside}"
    sql = (
        f"SELECT least(floor(({column} - {low!r}) / {width!r}), {cells - 1})::INT AS cell, "
        f"count(*) AS n FROM read_parquet($1) {where} GROUP BY cell"
    )
    found = query(sql, [digest.pairs_path, *parameters], chosen.tables())
    counts = np.zeros(cells, np.int64)
    counts[found["cell"].to_numpy()] = found["n"].to_numpy()
    return counts


def _where(columns: Collection[str], chosen: Filter) -> tuple[str, list[Any]]:
    """The condition of a filter and its parameters, numbered from 2."""
    parts: list[str] = []
    parameters: list[Any] = []

    def bind(value: Any) -> str:
        parameters.append(value)
        return f"${len(parameters) + 1}"

    for name, low, high in chosen.ranges:
        column = quoted(_checked(columns, name))
        parts.append(f"{column} BETWEEN {bind(float(low))} AND {bind(float(high))}")
    for name, picked in (
        ("source", chosen.sources),
        ("oracle_state", chosen.states),
        ("vote_group", chosen.votes),
    ):
        if picked and name in columns:
            parts.append(f"{name} IN (SELECT unnest({bind(list(picked))}))")
    if chosen.marks and "marks" in columns:
        parts.append(f"list_has_any(marks, {bind(list(chosen.marks))})")
    if chosen.marker is not None:
        column = _MARKER_COLUMN.get(chosen.marker, chosen.marker)
        known = chosen.marker in _MARKER_SQL and column in columns
        parts.append(_MARKER_SQL[chosen.marker] if known else "false")
    if chosen.ids is not None:
        parts.append(f"pair_id IN (SELECT unnest({bind(list(chosen.ids))}))")
    if chosen.without:
        parts.append(f"pair_id NOT IN (SELECT unnest({bind(list(chosen.without))}))")
    if chosen.rows is not None:
        parts.append("row IN (SELECT row FROM picked)")
    return ("WHERE " + " AND ".join(parts) if parts else ""), parameters


def _checked(columns: Collection[str], name: str) -> str:
    if name not in columns:
        raise RunError(f"The pairs of this run have no column {name!r}.")
    return name


def means(digest: Digest, names: Sequence[str]) -> dict[str, float]:
    """The mean of each column over the pairs that have a finite value in it; NaN without any.

    `visited` is the number of pairs that were visited at least once.
    """
    known = [name for name in names if name in digest.columns]
    parts = [
        f"avg({quoted(n)}::DOUBLE) FILTER (WHERE isfinite({quoted(n)}::DOUBLE)) AS {quoted(n)}"
        for n in known
    ]
    parts.append("count(*) FILTER (WHERE visits > 0) AS visited")
    sql = f"SELECT {', '.join(parts)} FROM read_parquet($1)"
    row = query(sql, [digest.pairs_path]).to_pylist()[0]
    return {
        name: float("nan") if row.get(name) is None else row[name] for name in [*names, "visited"]
    }
