"""Where a file belongs: a whole file in the place of another is not read in silence.

A run draws an id when it begins, `run_id` in its run.json, and keeps it when it is resumed,
renamed, moved or copied. Every table and JSON file that is written below its folder gets that id,
and its place: its path from that folder. Where one is read, both are compared with where it lies.
Runs of older versions have no id, and their files no place.
"""

from __future__ import annotations

import functools
import itertools
import json
import secrets
import unicodedata
from pathlib import Path

from plc_core.checksums import NOWHERE, Owner, json_is_whole

RUN_FILE = "run.json"
RUN_ID = "run_id"
PLACE = "written_as"
"""The fields of a JSON file that say where it belongs."""
_LEVELS = 4  # checkpoints/checkpoint-8/<folder of a library>/<file>

_known: dict[Path, str | None] = {}
"""The last id that was read of a run.json: a training outlives damage to that file."""


def new_run_id() -> str:
    """16 hex digits, drawn by the system."""
    return secrets.token_hex(8)


def run_id_of(path: Path) -> str | None:
    """The id of the run that `path` lies in; None outside of runs, and in one without an id."""
    home = _home(path)
    return None if home is None else home[1]


def owner_of(path: Path) -> Owner:
    """Where the file at `path` belongs if it is what was written there; nowhere outside of runs."""
    home = _home(path)
    return NOWHERE if home is None else _owner(path, *home)


def misfit(path: Path, owner: Owner) -> str | None:
    """Why a file of this project's, which says it is of `owner`, does not belong at `path`.

    None where it does, or where it cannot be known: outside of runs, and of older versions.
    """
    home = _home(path)
    if home is None:
        return None
    here = _owner(path, *home)
    if here.run_id != owner.run_id:
        return (
            f"is of another run: it was not written for the one whose {RUN_FILE} is in this folder"
        )
    if here.place != owner.place and None not in (here.place, owner.place):
        return f"was written as {owner.place}, and lies in the place of {here.place}"
    return None


def _owner(path: Path, run_file: Path, run_id: str | None) -> Owner:
    parts = path.relative_to(run_file.parent).parts
    if run_id is None or any(part.startswith(".") for part in parts[:-1]):
        return Owner(run_id)  # such a folder gets its name when all its files are written
    place = unicodedata.normalize("NFC", "/".join(parts))  # as two file systems list one name
    return Owner(run_id, place.encode(errors="replace").decode())


def _home(path: Path) -> tuple[Path, str | None] | None:
    """The nearest run.json above a file, with its id; None where there is none that is whole."""
    for folder in itertools.islice(path.parents, _LEVELS):
        file = folder / RUN_FILE
        try:
            state = file.stat()
        except (OSError, ValueError):
            continue
        try:
            _known[file] = _read(file, state.st_mtime_ns, state.st_size, state.st_ino)
        except (OSError, ValueError, RecursionError):
            if file not in _known:
                return None
        return file, _known[file]
    return None


@functools.lru_cache(maxsize=2**12)
def _read(file: Path, *stamp: int) -> str | None:
    if not file.is_file():
        raise OSError("it is not a regular file")
    raw = file.read_bytes()
    content = json.loads(raw.decode())
    if not isinstance(content, dict) or json_is_whole(raw) is False:
        raise ValueError("it is damaged")
    found = content.get(RUN_ID)
    return found if isinstance(found, str) else None
