"""What was read and validated once is kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset

from plc_core.data.folders import SourceFile
from plc_core.data.pairs import DataError, Pairs
from plc_core.data.storage import mapped_table
from plc_core.files import RunError, cache_dir, read_json, write_json
from plc_core.storage import cached_folder, content_hash


def cached_pairs(
    files: Sequence[SourceFile], origin: dict[str, Any], make: Callable[[Path], Pairs]
) -> Pairs:
    """The pairs that `make` reads from the files into a folder, or what it read there before.

    They are kept by the content of the files, by `origin`, which holds the settings, and by the
    code of this room. Files that are damaged, or were cut off, are made again.

    Raises:
        DataError: where a file changes while it is read.
    """
    before = _states(files)
    origin["files"] = [{"name": f.name, "split": f.split, "sha256": f.digest()} for f in files]

    def write(folder: Path) -> None:
        pairs = make(folder)
        _check_unchanged(files, before)
        write_json(folder / "pairs.json", {"rows_read": pairs.rows_read, "origin": origin})

    folder = cached_folder(cache_dir() / "pairs" / content_hash([_code(), origin])[:16], write)
    try:
        record = read_json(folder / "pairs.json")
        return Pairs(
            Dataset.from_file(str(folder / "pairs.arrow")),
            mapped_table(folder / "findings.arrow"),
            record["rows_read"],
            record["origin"],
            folder / "pairs.arrow",
        )
    except (RunError, OSError, pa.ArrowException):
        raise DataError(f"The cache folder {folder} cannot be read back.") from None


def _states(files: Sequence[SourceFile]) -> list[tuple[int, int]]:
    """Size and time of each file, which change when it is written."""
    try:
        states = [file.path.stat() for file in files]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}.") from None
    return [(state.st_size, state.st_mtime_ns) for state in states]


def _check_unchanged(files: Sequence[SourceFile], before: list[tuple[int, int]]) -> None:
    for file, old, new in zip(files, before, _states(files), strict=True):
        if old != new:
            raise DataError(f"{file.path} changed while it was read. Read it again.")


def _code() -> str:
    """What was read by other code is read again."""
    sources = (path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]
