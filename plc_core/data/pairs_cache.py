"""What was read and validated once is kept on disk."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset

from plc_core.data.folders import SourceFile
from plc_core.data.pairs import DataError, Pairs
from plc_core.data.storage import mapped_table
from plc_core.files import RunError, cache_dir, checksum, exclusive, read_json, write_json


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
    key = hashlib.sha256(json.dumps([_code(), origin], sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_dir() / "pairs" / key
    with exclusive(folder):
        kept = _read_cache(folder)
        if kept is not None:
            return kept
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{key}.") as temporary:
            new = Path(temporary) / "new"
            new.mkdir()
            pairs = make(new)
            _check_unchanged(files, before)
            sums = {name: checksum(new / name) for name in _ARROW}
            record = {"rows_read": pairs.rows_read, "origin": origin, "checksums": sums}
            write_json(new / "pairs.json", record)
            if folder.is_file():
                folder.unlink()
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
        made = _read_cache(folder)
        if made is None:
            raise DataError(f"The cache folder {folder} cannot be read back.")
        return made


_ARROW = ("pairs.arrow", "findings.arrow")


def _read_cache(folder: Path) -> Pairs | None:
    """What was read before; None where there is nothing, or it is not whole."""
    try:
        record = read_json(folder / "pairs.json")
        # A flipped bit would give other texts, or crash who maps them.
        if any(checksum(folder / name) != record["checksums"][name] for name in _ARROW):
            return None
        return Pairs(
            Dataset.from_file(str(folder / "pairs.arrow")),
            mapped_table(folder / "findings.arrow"),
            record["rows_read"],
            record["origin"],
            folder / "pairs.arrow",
        )
    except (RunError, OSError, KeyError, TypeError, pa.ArrowException):
        return None


def _states(files: Sequence[SourceFile]) -> list[tuple[int, int]]:
    """Size and time of each file, which change when it is written."""
    states = [file.path.stat() for file in files]
    return [(state.st_size, state.st_mtime_ns) for state in states]


def _check_unchanged(files: Sequence[SourceFile], before: list[tuple[int, int]]) -> None:
    for file, old, new in zip(files, before, _states(files), strict=True):
        if old != new:
            raise DataError(f"{file.path} changed while it was read. Read it again.")


def _code() -> str:
    """What was read by other code is read again."""
    sources = (path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]
