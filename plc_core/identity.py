"""Which run a file belongs to: a whole file of another run is not read in silence.

A run draws an id when it begins, `run_id` in its run.json, and keeps it when it is resumed,
renamed, moved or copied. Every table and JSON file that is written below its folder gets that id,
and where one is read it is compared with the id of the folder it lies in. Runs of older versions
have none.
"""

from __future__ import annotations

import functools
import itertools
import json
import secrets
from pathlib import Path

from plc_core.checksums import json_is_whole

RUN_FILE = "run.json"
RUN_ID = "run_id"
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


def is_foreign(path: Path, run_id: str | None) -> bool:
    """Whether a file of this project's, which says it is of `run_id`, lies in another run."""
    home = _home(path)
    return home is not None and home[1] != run_id


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
