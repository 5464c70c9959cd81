"""The one pair on the screen: its texts and its visits, read from where they lie."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from inspection.database import frame
from inspection.digest import Digest
from plc_core.files import RunError, check_table

SNIPPET = 160
logger = logging.getLogger(__name__)


def read_pair(digest: Digest, row: int) -> dict[str, Any]:
    """All columns of the pair at a place, its texts too; one row group is decoded for it."""
    return pair_in(digest.run, row)


def pair_in(run: Path, row: int) -> dict[str, Any]:
    """As `read_pair`, of a run's folder."""
    found = _row(str(run / "pairs.parquet"), row)
    try:
        return found.to_pylist()[0]
    except UnicodeDecodeError:
        return {name: _value(found[name]) for name in found.column_names}


def read_visits(digest: Digest, row: int) -> pd.DataFrame:
    """The visits of the pair at a place, in the order of training; empty while there are none."""
    parts = [_row(str(digest.run / "visits" / name), place) for name, place in digest.places(row)]
    if not parts:
        return pd.DataFrame()
    # A later version may have written more columns than an earlier one that began the run.
    return pa.concat_tables(parts, promote_options="default").to_pandas()


def snippets(run: Path, places: NDArray[np.integer]) -> list[str]:
    """The beginnings of the last turn of the prompts of some pairs, of the chosen answers without
    a prompt; blank where these are no texts.
    """
    wanted = pa.table({"row": places, "place": np.arange(len(places))})
    try:
        found = frame(
            f"SELECT left(coalesce(nullif(trim(list_last(prompt).content), ''), chosen), {SNIPPET})"
            " AS said FROM read_parquet($1, file_row_number = true) AS p "
            "JOIN wanted ON p.file_row_number = wanted.row ORDER BY wanted.place",
            [str(run / "pairs.parquet")],
            {"wanted": wanted},
        )
    except (RunError, UnicodeDecodeError):
        return [""] * len(places)
    return [" ".join(str(text or "").split()) for text in found["said"]]


def _value(column: pa.ChunkedArray) -> Any:
    """The one value of a column, whose text may hold what is no Unicode, as a lone surrogate."""
    try:
        return column[0].as_py()
    except UnicodeDecodeError:
        if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
            return f"This {column.type} holds text that is no Unicode."
        raw: bytes = column[0].as_buffer().to_pybytes()
        try:
            return raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return raw.decode("utf-8", "backslashreplace")


def _row(path: str, place: int) -> pa.Table:
    check_table(Path(path))
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.metadata.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if place < size:
                    return file.read_row_group(group, use_threads=False).slice(place, 1)
                place -= size
    except (OSError, pa.ArrowException) as error:
        logger.warning("%s: %s", path, error)
        raise RunError(f"{path} cannot be read: it is damaged, or no longer there.") from None
    raise RunError(f"{path} has fewer rows than when it was read first. Load the page again.")
