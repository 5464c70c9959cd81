"""One DuckDB for the whole process, with little memory and no reach beyond files."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa

from plc_core.storage.files import RunError, check_table
from plc_core.storage.paths import cache_dir

THREADS = 2
MEMORY = "500MB"

logger = logging.getLogger(__name__)

_WHERE_MORE = "The server's log has the engine's own words."
_CUT = "is cut short or no Parquet file: it ends without the footer that every whole one has."
_PROBLEMS = {
    "No magic bytes": _CUT,
    "too small to be a Parquet": _CUT,
    "No files found": "is no longer there.",
    "No such file": "is no longer there.",
    "Cannot open file": "cannot be opened.",
    "Could not open file": "cannot be opened.",
    "schema mismatch": "has other columns than the run's other files of its kind.",
    "Schema mismatch": "has other columns than the run's other files of its kind.",
    "Option file_row_number adds": "has a column file_row_number, by which rows are counted here; "
    "give that column another name.",
    "Out of Memory": "asks for more memory than the inspector allows itself "
    f"({MEMORY}); filter the pairs first.",
}
"""By a sign in DuckDB's message: what is wrong, as the end of a sentence on the file."""


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(
        config={
            "threads": THREADS,
            "memory_limit": MEMORY,
            "temp_directory": str(cache_dir() / "inspector" / f"spill-{os.getpid()}"),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "enable_object_cache": True,
        }
    )


def cursor() -> duckdb.DuckDBPyConnection:
    """A cursor of its own for each caller: DuckDB's are not shared between threads."""
    return _database().cursor()


def query(
    sql: str, parameters: Sequence[Any] = (), tables: Mapping[str, pa.Table] | None = None
) -> pa.Table:
    """The rows of a query, which may name the given `tables` too.

    Raises:
        RunError: where a file is missing, damaged, or not as a run writes it.
    """
    connection = cursor()
    for path in _tables(parameters):
        check_table(path)  # DuckDB does not look at checksums
    try:
        for name, table in (tables or {}).items():
            connection.register(name, table)
        return connection.sql(sql, params=list(parameters)).to_arrow_table()
    except duckdb.Error as error:
        raise RunError(_sentence(error, parameters)) from None


def _tables(parameters: Sequence[Any]) -> Iterator[Path]:
    """The Parquet files that a query is given, that are there."""
    for given in parameters:
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, str) and value.endswith(".parquet") and Path(value).is_file():
                yield Path(value)


def frame(
    sql: str, parameters: Sequence[Any] = (), tables: Mapping[str, pa.Table] | None = None
) -> pd.DataFrame:
    """The rows of a query as a data frame; RunError as in `query`."""
    return query(sql, parameters, tables).to_pandas()


def quoted(name: str) -> str:
    """A column's name as SQL writes it, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def _sentence(error: duckdb.Error, parameters: Sequence[Any]) -> str:
    """Which file it was and what is wrong with it, in words that are not the engine's."""
    said = str(error)
    read = [p for p in parameters if isinstance(p, str) and p.endswith(".parquet")]
    read += [p for ps in parameters if isinstance(ps, list) for p in ps if isinstance(p, str)]
    named = sorted((p for p in read if p in said), key=len) or read
    what = named[-1] if named and (len(read) == 1 or named != read) else "A file of this run"
    for sign, sentence in _PROBLEMS.items():
        if sign in said:
            return f"{what} {sentence}"
    logger.warning("A query failed: %s", said)
    return f"{what} cannot be read; it may be damaged, or of another version. {_WHERE_MORE}"
