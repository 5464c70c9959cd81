"""The files of a run that are read here, listed without following links."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from plc_core.runs import Run
from plc_core.runs.visit_files import files_to_read
from plc_core.storage.files import RunError, remedy, unreadable

Stamp: TypeAlias = tuple[str, int, int]
"""Name, bytes and time of change of a file: equal stamps, equal content."""


@dataclass(frozen=True)
class RunFiles:
    """The tables of one run: pairs.parquet, and the visits in the order of their steps."""

    folder: Path
    pairs: Stamp
    visits: tuple[Stamp, ...]

    def visit_path(self, name: str) -> str:
        """The path of the visits' file `name`, for DuckDB."""
        return str(self.folder / "visits" / name)


def run_files(run: Run) -> RunFiles:
    """The files of `run`.

    Raises:
        RunError: where it has no pairs yet, a file leads elsewhere, or visits are missing or twice.
    """
    pairs = run.path / "pairs.parquet"
    try:
        state = pairs.lstat()
        if not stat.S_ISREG(state.st_mode):
            raise _leads_elsewhere(pairs)
    except FileNotFoundError:
        if run.is_trained and run.has_checksums:
            raise RunError(f"{pairs} is missing. {remedy(pairs)}") from None
        raise RunError(f"The run {run.name!r} has no pairs.parquet yet.") from None
    except OSError as error:
        raise unreadable(pairs, error) from None
    stamp = (pairs.name, state.st_size, state.st_mtime_ns)
    visits = tuple(sorted(_visits(run.path / "visits")))
    if run.has_checksums:
        names = (name for name, *_ in visits)
        kept = set(files_to_read(run.path / "visits", names, run.info.get("trained_steps")))
        visits = tuple(visit for visit in visits if visit[0] in kept)
    return RunFiles(run.path, stamp, visits)


def _visits(folder: Path) -> list[Stamp]:
    if folder.is_symlink():
        raise _leads_elsewhere(folder)
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not (entry.name[:1].isdigit() and entry.name.endswith(".parquet")):
                    continue
                if not entry.is_file(follow_symlinks=False):
                    raise _leads_elsewhere(Path(entry.path))
                state = entry.stat()
                found.append((entry.name, state.st_size, state.st_mtime_ns))
    except PermissionError as error:
        raise unreadable(folder, error) from None
    except (FileNotFoundError, NotADirectoryError):
        return found  # no visit yet, or one file fewer since a resumed run cut it
    return found


def _leads_elsewhere(path: Path) -> RunError:
    what = "a link and may lead outside its run" if path.is_symlink() else "not a regular file"
    return RunError(f"{path} is {what}; the run was not opened.")
