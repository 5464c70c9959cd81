"""Where a file was written: a whole file in the place of another is not read in silence.

A run draws an id when it begins, `run_id` in its run.json, and keeps it when it is resumed,
renamed, moved or copied. Every table and JSON file that is written below its folder gets that id
and its path from that folder. Where one is read, both are compared with where it lies. Runs of
older versions have no id, and their files no path.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import secrets
import unicodedata
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from plc_core.storage.checksums import json_is_whole

RUN_FILE = "run.json"
MANIFEST = "checksums.json"
"""The list of a folder's files with their checksums (`plc_core.storage.manifest`)."""
RUN_ID = "run_id"
WRITTEN_AS = "written_as"
"""The fields of a JSON file that say its origin."""
_LEVELS = 4  # checkpoints/checkpoint-8/<folder of a library>/<file>


class Origin(NamedTuple):
    """Where a file was written."""

    run_id: str | None = None  # of the run, 16 characters
    path: str | None = None  # below the run's folder; None where that is not known


class RunRecord(NamedTuple):
    """What a run.json says of the files below its folder."""

    folder: Path
    run_id: str | None
    has_checksums: bool


_known: dict[Path, RunRecord] = {}
"""What was last read of a run.json: a training outlives damage to that file."""


def new_run_id() -> str:
    """16 hex digits, drawn by the system."""
    return secrets.token_hex(8)


def has_checksums(info: Mapping[str, Any]) -> bool:
    """Whether the files of the run with this run.json were written with checksums."""
    return info.get("checksums") is not None


def run_of(path: Path) -> RunRecord | None:
    """The run that `path` lies in; None outside of runs, and where its run.json is damaged."""
    for folder in itertools.islice(path.parents, _LEVELS):
        file = folder / RUN_FILE
        try:
            state = file.stat()
        except (OSError, ValueError):
            continue
        with contextlib.suppress(OSError, ValueError, RecursionError):
            _known[file] = _read(file, state.st_mtime_ns, state.st_size, state.st_ino)
        return _known.get(file)
    return None


def is_of_another(run: RunRecord | None, run_id: str | None) -> bool:
    """Whether what says that it is of `run_id` is of another run; False where `run` is unknown."""
    return run is not None and run.run_id != run_id


def origin_of(path: Path) -> Origin:
    """What a file that is written at `path` says of its origin; nothing outside of runs."""
    run = run_of(path)
    return Origin() if run is None else _origin(path, run)


def misfit(path: Path, origin: Origin) -> str | None:
    """Why a file of this project's, which says it is of `origin`, does not belong at `path`.

    None where it does, or where it cannot be known: outside of runs, and of older versions.
    """
    run = run_of(path)
    if run is None:
        return None
    # A run.json is what says the id: it may have been replaced since it was read.
    if path.name != RUN_FILE and is_of_another(run, origin.run_id):
        return (
            f"is of another run: it was not written for the one whose {RUN_FILE} is in this folder"
        )
    here = _origin(path, run).path
    if here is None and path.name == MANIFEST:  # which may have come along with its folder
        here = path.relative_to(run.folder).as_posix()
        if origin.path is None or PurePosixPath(origin.path).name == MANIFEST:
            return None
    if here != origin.path and None not in (here, origin.path):
        return f"was written as {origin.path}, and lies in the place of {here}"
    return None


def _origin(path: Path, run: RunRecord) -> Origin:
    *folders, name = path.relative_to(run.folder).parts
    # Such a folder gets its name when all its files are written.
    is_known = not any(folder.startswith(".") for folder in folders)
    if name == MANIFEST and not re.fullmatch(r"checkpoints/checkpoint-\d+", "/".join(folders)):
        is_known = False  # a copy of a checkpoint is a model wherever no run is resumed from it
    if run.run_id is None or not is_known:
        return Origin(run.run_id)
    text = unicodedata.normalize("NFC", "/".join((*folders, name)))  # file systems differ in it
    return Origin(run.run_id, text.encode(errors="replace").decode())


@functools.lru_cache(maxsize=2**12)
def _read(file: Path, *stamp: int) -> RunRecord:
    if not file.is_file():
        raise OSError("it is not a regular file")
    raw = file.read_bytes()
    content = json.loads(raw.decode())
    if not isinstance(content, dict) or json_is_whole(raw) is False:
        raise ValueError("it is damaged")
    found = content.get(RUN_ID)
    return RunRecord(file.parent, found if isinstance(found, str) else None, has_checksums(content))
