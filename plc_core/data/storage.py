"""Arrow files on disk, through which pairs stream, so that memory does not grow with them."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from datasets import Dataset

from plc_core.files import RunError, cache_dir, unwritable_cache

BATCH_ROWS = 1000
BATCH_BYTES = 64 * 2**20
"""A batch is closed at either bound: offsets of text in one Arrow batch end at 2 GiB."""


_STALE_SECONDS = 86_400


def write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write an Arrow stream, the format of `datasets`, and return the number of its rows.

    Raises RunError where the disk is full or cannot be written.
    """
    rows = 0
    try:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}. Is the disk full?") from None
    return rows


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow stream, one in memory at a time.

    Read, not mapped into memory: mapped pages count as resident as long as nobody else needs them.
    """
    with pa.OSFile(str(path), "rb") as source:
        yield from pa.ipc.open_stream(source)


def mapped_table(path: Path) -> pa.Table:
    """The whole of an Arrow stream, mapped into memory: pages are read when they are used."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_stream(source).read_all()


@contextlib.contextmanager
def scratch_file() -> Iterator[Path]:
    """A file in the cache that is gone at the end; who mapped it meanwhile keeps its bytes."""
    folder = cache_dir() / "scratch"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".arrow", delete=False) as file:
            path = Path(file.name)
    except OSError as error:
        raise unwritable_cache(folder, error) from None
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what a process that was killed has left there a day ago or more."""
    for path in folder.glob("*.arrow"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


def dataset_from_batches(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Dataset:
    """A dataset on disk that lives as long as it is used."""
    with scratch_file() as path:
        write_batches(path, schema, batches)
        return Dataset.from_file(str(path))
