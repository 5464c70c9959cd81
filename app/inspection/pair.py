"""The one pair on the screen: its texts and its visits, read from where they lie."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from inspection.digest import Digest
from plc_core.storage.files import RunError, check_table, remedy

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

    Raises:
        RunError: where the texts are damaged or gone.
    """
    path = str(run / "pairs.parquet")
    texts = [last_turn(prompt) for prompt in _values(path, places, "prompt")]
    blank = [number for number, text in enumerate(texts) if not text.strip()]
    for number, chosen in zip(blank, _values(path, places[blank], "chosen"), strict=True):
        texts[number] = chosen if isinstance(chosen, str) else ""
    return [beginning(text) for text in texts]


def beginning(text: str) -> str:
    """The first words of a text, on one line."""
    return " ".join(text.strip()[:SNIPPET].split())


def last_turn(prompt: Any) -> str:
    """A prompt that is text; else the content of its last turn, empty where there is no text."""
    if isinstance(prompt, str):
        return prompt
    last = prompt[-1] if isinstance(prompt, list) and prompt else None
    content = last.get("content") if isinstance(last, dict) else None
    return content if isinstance(content, str) else ""


def _values(path: str, places: NDArray[np.integer], column: str) -> list[Any]:
    """A column of some rows of a Parquet file, of whose row groups only those are decoded.

    None for what is no Unicode, and in all rows where the file has no such column.
    """
    found: list[Any] = [None] * len(places)
    with _opened(path) as (file, ends):
        if column not in file.schema_arrow.names:
            return found
        groups = np.searchsorted(ends, places, side="right")
        for group in np.unique(groups):
            if group == len(ends):
                raise _shortened(path)
            part = file.read_row_group(int(group), [column], use_threads=False)[column]
            for number in np.flatnonzero(groups == group):
                place = int(places[number] - (ends[group - 1] if group else 0))
                with contextlib.suppress(UnicodeDecodeError):
                    found[number] = part[place].as_py()
    return found


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
    with _opened(path) as (file, ends):
        group = int(np.searchsorted(ends, place, side="right"))
        if group == len(ends):
            raise _shortened(path)
        start = int(ends[group - 1]) if group else 0
        return file.read_row_group(group, use_threads=False).slice(place - start, 1)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[pq.ParquetFile, NDArray[np.int64]]]:
    """A Parquet file, and where each of its row groups ends.

    Raises:
        RunError: where it is damaged or no longer there.
    """
    check_table(Path(path))
    try:
        with pa.OSFile(path) as source:
            state = os.fstat(source.fileno())
            footer = _footer(path, state.st_ino, state.st_mtime_ns, state.st_size)
            with pq.ParquetFile(
                source, metadata=footer.metadata, page_checksum_verification=True
            ) as file:
                yield file, footer.ends
    except (OSError, pa.ArrowException) as error:
        logger.warning("%s: %s", path, error)
        said = f"{path} cannot be read: it is damaged, or no longer there. {remedy(Path(path))}"
        raise RunError(said) from None


class _Footer(NamedTuple):
    metadata: pq.FileMetaData
    ends: NDArray[np.int64]


@functools.lru_cache(maxsize=64)
def _footer(path: str, inode: int, changed: int, size: int) -> _Footer:
    """The footer of a file: that of a million pairs takes longer to read than a pair of it."""
    metadata = pq.read_metadata(path)
    groups = range(metadata.num_row_groups)
    return _Footer(metadata, np.cumsum([metadata.row_group(group).num_rows for group in groups]))


def _shortened(path: str) -> RunError:
    return RunError(f"{path} has fewer rows than when it was read first. Load the page again.")
