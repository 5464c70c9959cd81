"""One DuckDB for the whole process, with little memory and no reach beyond files."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa

from plc_core.files import RunError, cache_dir

THREADS = 2
MEMORY = "500MB"


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(
        config={
            "threads": THREADS,
            "memory_limit": MEMORY,
            "temp_directory": str(cache_dir() / "inspector" / "spill"),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "enable_object_cache": True,
        }
    )


def cursor() -> duckdb.DuckDBPyConnection:
    """A cursor of its own for each caller: DuckDB's are not shared between threads."""
    return _database().cursor()


def query(sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
    """The rows of a query.

    Raises:
        RunError: where a file is missing, damaged, or not as a run writes it.
    """
    try:
        return cursor().sql(sql, params=list(parameters)).to_arrow_table()
    except duckdb.Error as error:
        raise RunError(f"A file of this run cannot be read: {_first_line(error)}") from None


def frame(sql: str, parameters: Sequence[Any] = ()) -> pd.DataFrame:
    """The rows of a query as a data frame; RunError as in `query`."""
    return query(sql, parameters).to_pandas()


def quoted(name: str) -> str:
    """A column's name as SQL writes it, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
