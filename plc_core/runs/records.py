"""Beside each table of answers and judgements lies a JSON file that says how it was made.

The record is written after its table, so a record alone says that the table is gone. No torch here.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from plc_core.storage.files import RunError, is_there, paths_in, remedy

RECORDED = ("generations", "judgements")
"""The folders of a run whose tables have records."""

ANSWER = ("prompt_id", "turn", "policy", "decoding")
"""The columns that name an answer in these tables."""


def tables(folder: Path) -> list[Path]:
    """The tables of one of the folders `RECORDED` whose records are there, gone or not.

    Raises RunError where it may not be read.
    """
    return [record.with_suffix(".parquet") for record in paths_in(folder, "[!.]*.json")]


def lost_tables(folder: Path) -> list[Path]:
    """Those of the `tables` that are gone."""
    return [table for table in tables(folder) if not is_there(table)]


def refuse_lost(folder: Path) -> None:
    """RunError where a table of `folder` is gone: it would pass for one that was never made."""
    for table in lost_tables(folder):
        raise RunError(
            f"{table} is missing, and {table.stem}.json beside it says how it was made. "
            f"{remedy(table)} To do without it, delete that file as well."
        )


def refuse_other_answers(path: Path, own: pd.DataFrame, of: Path, others: pd.DataFrame) -> None:
    """RunError where two tables of a run are not about the same answers: one is an earlier copy.

    Args:
        own, others: rows of the tables `path` and `of`, one an answer; compared by what both have
            of prompt_id, turn, policy and decoding.
    """
    keys = [name for name in ANSWER if name in own and name in others]
    rows = [sorted(table[keys].itertuples(index=False, name=None)) for table in (own, others)]
    if rows[0] != rows[1]:
        raise RunError(
            f"{path} is about {len(own):,} answers, and {of} about {len(others):,}, not the same "
            f"ones: one of both is an earlier copy. {remedy(path)}"
        )
