"""The numbers of a run's pairs, and where among them a visit's pair is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from inspection.aggregate import Tally
from inspection.database import frame, query, quoted
from inspection.run_files import RunFiles
from plc_core.runs import TEXT_COLUMNS
from plc_core.storage.files import RunError

_KNOWN = {
    "source": "VARCHAR",
    "split": "VARCHAR",
    "oracle_state": "VARCHAR",
    "flipped": "BOOLEAN",
    "injected_tie": "BOOLEAN",
    "warm": "BOOLEAN",
    "score_chosen": "DOUBLE",
    "score_rejected": "DOUBLE",
}

# `plc_core.data.votes` itself would load the libraries of data, a second and 100 MB.
_VOTES = ("chosen", "rejected", "tie")
# The rule of its `vote_group`; columns named before are known to those after.
_VOTE_GROUP = (
    "CASE WHEN votes IS NULL OR len(votes) < 2 THEN NULL "
    "WHEN len(votes) IN (votes_chosen, votes_rejected) THEN 'unanimous' "
    "WHEN votes_tie > greatest(votes_chosen, votes_rejected) THEN 'tie-majority' "
    "ELSE 'divergent' END"
)


def pair_table(files: RunFiles) -> pa.Table:
    """The columns of the run's pairs that are no texts, in their order, and a hash of the id.

    Raises:
        RunError: where there is no pair_id, or the file cannot be read.
    """
    path = str(files.folder / files.pairs[0])
    described = frame("DESCRIBE SELECT * FROM read_parquet($1)", [path])
    types = dict(zip(described["column_name"], described["column_type"], strict=True))
    if "pair_id" not in types:
        raise RunError(f"{path} lacks the column pair_id, by which visits find their pairs.")
    chosen = ["file_row_number AS row", "CAST(pair_id AS VARCHAR) AS pair_id"]
    chosen += [
        f"TRY_CAST({name} AS {kind}) AS {name}" for name, kind in _KNOWN.items() if name in types
    ]
    if {"score_chosen", "score_rejected"} <= set(types):
        difference = "TRY_CAST(score_chosen AS DOUBLE) - TRY_CAST(score_rejected AS DOUBLE)"
        chosen.append(f"{difference} AS score_gap")
    if types.get("marks") == "VARCHAR[]":
        chosen.append("marks")
    if types.get("votes") == "VARCHAR[]":
        chosen += [f"len(list_filter(votes, lambda x: x = '{v}')) AS votes_{v}" for v in _VOTES]
        chosen.append(f"{_VOTE_GROUP} AS vote_group")
    taken = {"row", "pair_id", "hash", "score_gap", "vote_group", *(f"votes_{v}" for v in _VOTES)}
    taken |= {*_KNOWN, *TEXT_COLUMNS, *Tally(0).pair_columns()}
    numeric = ("DOUBLE", "FLOAT", "INTEGER", "BIGINT", "SMALLINT", "TINYINT", "BOOLEAN")
    # The database tells no "Z" from "z".
    chosen += [quoted(n) for n, kind in types.items() if n.lower() not in taken and kind in numeric]
    table = query(
        f"SELECT {', '.join(chosen)}, hash(CAST(pair_id AS VARCHAR)) AS hash "
        "FROM read_parquet($1, file_row_number = true) ORDER BY file_row_number",
        [path],
    )
    return table.combine_chunks()


class Places:
    """The place of each pair id among the pairs, found by a 64-bit hash of it."""

    def __init__(self, ids: pa.ChunkedArray, hashes: NDArray) -> None:
        self.index = pd.Index(hashes)
        if not self.index.is_unique:
            twice = np.flatnonzero(self.index.duplicated())
            raise RunError(
                f"pairs.parquet has {len(twice):,} repeated ids, the first "
                f"{ids[int(twice[0])].as_py()!r}."
            )

    def of(self, visits: dict[str, NDArray]) -> NDArray:
        """The places of the visits' pairs; RunError for a pair that is not among the pairs."""
        found = self.index.get_indexer(visits["hash"])
        if unknown := int((found < 0).sum()):
            raise RunError(
                f"{unknown:,} visits are to pairs that pairs.parquet does not have; the files are "
                "not of one run."
            )
        return found
