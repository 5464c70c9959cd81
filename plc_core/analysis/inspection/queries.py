"""Pages, counts, samples and columns of a run's pairs, under filters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from plc_core.analysis.inspection.database import frame, query, quoted
from plc_core.analysis.inspection.digest import Digest
from plc_core.files import RunError

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
# Quicker than lower(), which copies every text.
_FOUND = "regexp_matches({}, regexp_escape($2), 'i')"
_MARKER_COLUMN = {"swapped": "flipped", "not swapped": "flipped", "injected tie": "injected_tie"}


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
    rows: tuple[int, ...] | None = field(default=None, repr=False)


def count(digest: Digest, chosen: Filter) -> int:
    """How many pairs the filter lets through."""
    where, parameters = _where(digest, chosen)
    sql = f"SELECT count(*) AS n FROM read_parquet($1) {where}"
    return int(query(sql, [digest.pairs_path, *parameters])["n"][0].as_py())


def page(
    digest: Digest,
    chosen: Filter,
    columns: Sequence[str],
    order: str,
    descending: bool,
    start: int,
    length: int,
) -> pd.DataFrame:
    """Rows `start` to `start + length` of the pairs in an order, missing numbers last.

    Equal values are ordered by the pair's place in the run, so that a page is the same each time.
    """
    where, parameters = _where(digest, chosen)
    known = [name for name in columns if name in digest.columns]
    by = quoted(_checked(digest, order))
    direction = "DESC" if descending else "ASC"
    ordered = f"ORDER BY {by} {direction} NULLS LAST, row"
    # First which rows, then their columns: the columns of all rows need not be sorted along.
    sql = (
        f"SELECT {', '.join(map(quoted, known))} FROM read_parquet($1) WHERE row IN (SELECT row "
        f"FROM read_parquet($1) {where} {ordered} LIMIT {int(length)} OFFSET {int(start)}) "
        f"{ordered}"
    )
    return frame(sql, [digest.pairs_path, *parameters])


def place(digest: Digest, chosen: Filter, order: str, descending: bool, row: int) -> int | None:
    """How many pairs come before the pair of `row` in a page's order; None where it is left out."""
    where, parameters = _where(digest, chosen)
    by = quoted(_checked(digest, order))
    before = f"p.{by} > o.v" if descending else f"p.{by} < o.v"
    sql = (
        f"WITH p AS (SELECT row, {by} FROM read_parquet($1) {where}), "
        f"o AS (SELECT {by} AS v FROM p WHERE row = {int(row)}) "
        f"SELECT (SELECT count(*) FROM o) AS here, count(*) FILTER (WHERE {before} "
        f"OR (p.{by} IS NOT DISTINCT FROM o.v AND p.row < {int(row)}) "
        f"OR (o.v IS NULL AND p.{by} IS NOT NULL)) AS n FROM p LEFT JOIN o ON true"
    )
    found = query(sql, [digest.pairs_path, *parameters])
    return int(found["n"][0].as_py()) if found["here"][0].as_py() else None


def sample(digest: Digest, chosen: Filter, columns: Sequence[str], most: int) -> pd.DataFrame:
    """At most `most` of the pairs, drawn by a hash of their ids, so the same each time."""
    where, parameters = _where(digest, chosen)
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
    return frame(sql, [digest.pairs_path, *parameters])


def columns(digest: Digest, names: Sequence[str], chosen: Filter = Filter()) -> pd.DataFrame:
    """Whole columns of the pairs in the run's order, those that the run has."""
    where, parameters = _where(digest, chosen)
    known = [name for name in names if name in digest.columns]
    if not known:
        return pd.DataFrame()
    sql = f"SELECT {', '.join(map(quoted, known))} FROM read_parquet($1) {where} ORDER BY row"
    return frame(sql, [digest.pairs_path, *parameters])


def values(digest: Digest, name: str, most: int = 200) -> list[str]:
    """The values of a text column, the most frequent first."""
    if name not in digest.columns:
        return []
    column = quoted(name)
    source = f"SELECT {column} AS v FROM read_parquet($1)"
    if name == "marks":
        source = f"SELECT unnest({column}) AS v FROM read_parquet($1)"
    sql = (
        f"SELECT v FROM ({source}) WHERE v IS NOT NULL GROUP BY v "
        f"ORDER BY count(*) DESC, v LIMIT {int(most)}"
    )
    return [str(value) for value in query(sql, [digest.pairs_path])["v"].to_pylist()]


def bounds(digest: Digest, name: str) -> tuple[float, float] | None:
    """The smallest and largest finite value of a numeric column; None where it has none."""
    column = quoted(_checked(digest, name))
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
    column = quoted(_checked(digest, name))
    sql = (
        f"SELECT quantile_disc({column}::DOUBLE, {float(share)!r}) AS v FROM read_parquet($1) "
        f"WHERE isfinite({column}::DOUBLE)"
    )
    value = query(sql, [digest.pairs_path])["v"][0].as_py()
    return math.nan if value is None else float(value)


def row_of(digest: Digest, pair_id: str) -> int | None:
    """The place of a pair in the run; None for an id that it does not have."""
    sql = "SELECT row FROM read_parquet($1) WHERE pair_id = $2"
    found = query(sql, [digest.pairs_path, pair_id])["row"]
    return int(found[0].as_py()) if len(found) else None


def search(run: Path, text: str) -> tuple[int, ...]:
    """The places of the pairs with `text` in a turn of the prompt or in an answer, in any case.

    All texts of the run are read for it, and none is kept.

    Raises:
        RunError: where the pairs have no texts, or cannot be read.
    """
    path = str(run / "pairs.parquet")
    described = frame("DESCRIBE SELECT * FROM read_parquet($1)", [path])
    types = dict(zip(described["column_name"], described["column_type"], strict=True))
    found = [_FOUND.format(name) for name in ("chosen", "rejected") if types.get(name) == "VARCHAR"]
    if str(types.get("prompt", "")).startswith("STRUCT"):
        inside = _FOUND.format("turn.content")
        found.append(f"len(list_filter(prompt, lambda turn: {inside})) > 0")
    if not found:
        raise RunError(f"{path} has no texts to search in.")
    sql = (
        "SELECT file_row_number AS row FROM read_parquet($1, file_row_number = true) "
        f"WHERE {' OR '.join(found)} ORDER BY row"
    )
    return tuple(query(sql, [path, text])["row"].to_numpy().tolist())


def histogram(digest: Digest, name: str, chosen: Filter, edges: np.ndarray) -> np.ndarray:
    """How many pairs fall between neighbouring `edges` (evenly spaced), those beyond left out."""
    column = quoted(_checked(digest, name))
    where, parameters = _where(digest, chosen)
    low, width, cells = float(edges[0]), float(edges[1] - edges[0]), len(edges) - 1
    inside = f"{column} BETWEEN {low!r} AND {float(edges[-1])!r}"
    where = f"{where} AND {inside}" if where else f"WHERE {inside}"
    sql = (
        f"SELECT least(floor(({column} - {low!r}) / {width!r}), {cells - 1})::INT AS cell, "
        f"count(*) AS n FROM read_parquet($1) {where} GROUP BY cell"
    )
    found = query(sql, [digest.pairs_path, *parameters])
    counts = np.zeros(cells, np.int64)
    counts[found["cell"].to_numpy()] = found["n"].to_numpy()
    return counts


def _where(digest: Digest, chosen: Filter) -> tuple[str, list[Any]]:
    """The condition of a filter and its parameters, numbered from 2."""
    parts: list[str] = []
    parameters: list[Any] = []

    def bind(value: Any) -> str:
        parameters.append(value)
        return f"${len(parameters) + 1}"

    for name, low, high in chosen.ranges:
        column = quoted(_checked(digest, name))
        parts.append(f"{column} BETWEEN {bind(float(low))} AND {bind(float(high))}")
    for name, picked in (
        ("source", chosen.sources),
        ("oracle_state", chosen.states),
        ("vote_group", chosen.votes),
    ):
        if picked and name in digest.columns:
            parts.append(f"{name} IN (SELECT unnest({bind(list(picked))}))")
    if chosen.marks and "marks" in digest.columns:
        parts.append(f"list_has_any(marks, {bind(list(chosen.marks))})")
    if chosen.marker is not None:
        column = _MARKER_COLUMN.get(chosen.marker, chosen.marker)
        known = chosen.marker in _MARKER_SQL and column in digest.columns
        parts.append(_MARKER_SQL[chosen.marker] if known else "false")
    if chosen.ids is not None:
        parts.append(f"pair_id IN (SELECT unnest({bind(list(chosen.ids))}))")
    if chosen.without:
        parts.append(f"pair_id NOT IN (SELECT unnest({bind(list(chosen.without))}))")
    if chosen.rows is not None:
        parts.append(f"row IN (SELECT unnest({bind(list(chosen.rows))}))")
    return ("WHERE " + " AND ".join(parts) if parts else ""), parameters


def _checked(digest: Digest, name: str) -> str:
    if name not in digest.columns:
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
