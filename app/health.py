"""What a glance at a run's files tells: one that is missing or cut short, before it is opened."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from listing import WITHOUT_VISITS

from plc_core.runs.listing import RunSummary
from plc_core.runs.records import RECORDED, refuse_lost, tables
from plc_core.storage.files import RunError, remedy

MOST_VISIT_FILES = 24
"""So many files of visits are looked at, evenly from the first to the last."""

_MAGIC = b"PAR1"
_TABLES = ("metrics.parquet", "pairs.parquet", "visits")


def damage(run: RunSummary) -> str | None:
    """What is wrong with the files of a run whose record can be read, as a sentence; else None.

    Only their ends are read, and again only where one was changed or damaged: a file that was cut
    short may since have been written to its end, and its folder does not tell.
    """
    if run.problem is not None or run.kind in WITHOUT_VISITS or run.kind == "?":
        return None
    stamps = tuple(_stamp(run.path / name) for name in (*_TABLES, *RECORDED))
    done = run.state == "done"
    return _damage(run.path, stamps, done) and _damage.__wrapped__(run.path, stamps, done)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size


@lru_cache(maxsize=2_000)
def _damage(path: Path, stamps: tuple[tuple[int, int] | None, ...], done: bool) -> str | None:
    missing = [name for name, stamp in zip(_TABLES, stamps, strict=False) if stamp is None]
    if done and missing:
        return f"It is done but has no {' and no '.join(missing)}. {remedy(path / missing[0])}"
    try:
        for folder in RECORDED:
            refuse_lost(path / folder)
    except RunError as error:
        return str(error)
    names = [name for name in _TABLES[:2] if name not in missing]
    names += [f"{folder}/{table.name}" for folder in RECORDED for table in tables(path / folder)]
    cut = [name for name in names if not _whole(path / name)]
    if "visits" not in missing:
        cut += [f"visits/{file.name}" for file in _some_visits(path) if not _whole(file)]
    if not cut:
        return None
    are = "is" if len(cut) == 1 else "are"
    named = " and ".join(cut[:3])
    return f"{named} {are} cut short or no Parquet file. {remedy(path / cut[0])}"


def _some_visits(path: Path) -> list[Path]:
    if (path / "visits").is_symlink():
        return []
    try:
        with os.scandir(path / "visits") as entries:
            names = sorted(e.name for e in entries if e.name[:1].isdigit())
    except OSError:
        return []
    every = max(1, -(-len(names) // MOST_VISIT_FILES))
    some = sorted({*names[::every], *names[-1:]})
    return [path / "visits" / name for name in some if name.endswith(".parquet")]


def _whole(path: Path) -> bool:
    """Whether a Parquet file has its beginning and its end; a link is not followed."""
    if path.is_symlink() or not path.is_file():
        return True  # it is refused where it would be opened
    try:
        with path.open("rb") as file:
            begins = file.read(4) == _MAGIC
            file.seek(0, os.SEEK_END)
            if not begins or file.tell() < 12:
                return False
            file.seek(-4, os.SEEK_END)
            return file.read(4) == _MAGIC
    except OSError:
        return False
