"""Logs of a run that are added to line by line, as decisions and verdicts are.

A line is JSON with a checksum and the id of its run: what was said of a pair in another run may be
of other labels or sides, though the pair has the same id. Lines of older versions have no id.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plc_core.checksums import opened_line, sealed_line
from plc_core.files import RunError
from plc_core.identity import RUN_ID, RunRecord, is_of_another, origin_of


def append_entries(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Add entries to the log `path` of a run, all or none; they are on disk when this returns.

    A line before that was cut off by a kill is left to itself.

    Raises:
        RunError: where the disk is full or the file cannot be written; it is as it was then.
    """
    run_id = origin_of(path).run_id
    own = {} if run_id is None else {RUN_ID: run_id}
    lines = "".join(sealed_line(entry | own) for entry in entries).encode("ascii")
    try:
        # Without a buffer, which would be written once more when the file is closed.
        with path.open("ab+", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            if before:
                file.seek(-1, os.SEEK_END)
                lines = lines if file.read(1) == b"\n" else b"\n" + lines
            try:
                while lines:
                    lines = lines[file.write(lines) :]
                os.fsync(file.fileno())
            except OSError:
                os.truncate(file.fileno(), before)
                raise
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from None


def opened_entry(line: str, run: RunRecord | None) -> Any:
    """An entry of a log of `run`; ValueError where it is damaged or of another run.

    A line without a checksum is a person's, or an older version's, and is taken as it is.
    """
    entry, sealed = opened_line(line)
    if isinstance(entry, dict):
        written_for = entry.pop(RUN_ID, None)
        if sealed and written_for is not None and is_of_another(run, written_for):
            raise ValueError("it was written in another run, whose labels may be others")
    return entry
