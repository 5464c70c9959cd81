"""A run folder's name, and the making of a new one."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plc_core.progress import batch_of
from plc_core.runs.earlier import set_aside
from plc_core.runs.run import SCHEMA, Run, open_run
from plc_core.runs.status import now
from plc_core.storage.files import RunError, write_json
from plc_core.storage.identity import RUN_FILE, RUN_ID, new_run_id, origin_of

UNSTARTED = "unstarted"
"""The kind of a run whose job failed before it began."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,127}")


def resolve(root: Path | str, name: str) -> Path:
    """The folder of the run `name` below `root`; RunError for a name that could leave `root`."""
    if not _NAME.fullmatch(name):
        raise RunError(
            f"The run name {name!r} is not usable: use the letters a to z and A to Z, the "
            "digits 0 to 9 and . _ = + -, starting with a letter or digit, at most 128 characters."
        )
    base = Path(root).resolve()
    path = base / name
    try:
        inside = path.resolve().parent == base
    except (OSError, RuntimeError):  # a link to itself
        inside = False
    if not inside:
        raise RunError(f"The run {name!r} leads outside {base}; it was not opened.")
    return path


def check_root(root: Path) -> None:
    """Make the folder of runs where there is none; RunError where none can be written there."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{root} cannot hold runs: {error.strerror}.") from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise RunError(f"{root} cannot hold runs: you may not write there.")


def create_run(root: Path | str, name: str, info: Mapping[str, Any]) -> Run:
    """Make the folder of a new run and write run.json; RunError where the name is taken.

    A name is free again where nothing would be lost: after a run that ended before its first
    step, and for an analysis, after an earlier one (kept aside in a batch: `runs.earlier`).
    """
    path = resolve(root, name)
    check_root(path.parent)
    info = {"schema": SCHEMA, "name": name, "created": now(), "checksums": "crc32", **info}
    if path.is_dir() and _is_replaceable(path, str(info.get("kind"))):
        # Tables of earlier parameters may not pass for these; a report stays until the next batch.
        if batch_of(path) and info.get("kind") == "analysis":
            set_aside(path)
        shutil.rmtree(path / "tables", ignore_errors=True)
        # The folder keeps its id: a kill between the two files leaves none of another run.
        run = Run(path, info | {RUN_ID: origin_of(path / RUN_FILE).run_id})
        _queue(run, batch_of(path))
        write_json(path / RUN_FILE, run.info)
        return run
    run = Run(path, info | {RUN_ID: new_run_id()})
    # Moved to its place when it is whole: a kill leaves no name that is taken by nothing.
    beside = path.with_name(f".{name}.{secrets.token_hex(4)}.tmp")
    try:
        beside.mkdir()
        write_json(beside / RUN_FILE, run.info)  # before the others, which get its id
        _queue(Run(beside, run.info), batch_of(path))
        beside.rename(path)
    except OSError as error:
        problem = taken(path) if path.exists() else f"{path} cannot be made: {error.strerror}."
        raise RunError(problem) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return run


def _queue(run: Run, by: str | None) -> None:
    # A person's analysis in a notebook stays queued, whatever became of its process.
    known = by or run.info.get("kind") != "analysis"
    process = {"pid": os.getpid(), "host": socket.gethostname()} if known else {}
    run.set_status(state="queued", reason=None, by=by, **process)


def taken(path: Path) -> str:
    """The sentence for a run folder that exists already."""
    sentence = (
        f"A run named {path.name!r} exists in {path.parent}; nothing was changed. Choose another "
        "name, or delete that folder yourself."
    )
    if any(path.glob("checkpoints/checkpoint-*")):
        sentence += " To go on with it from its last checkpoint, set resume to true."
    return sentence


def _is_replaceable(path: Path, kind: str) -> bool:
    try:
        before = open_run(path)
        if before.info.get("kind") == UNSTARTED:
            return True
        if before.info.get("kind") != kind:
            return False
        if kind == "analysis":
            return True
        ended = before.status.get("state") in ("failed", "killed")
    except RunError:
        return False
    # A kill may leave empty folders.
    return ended and not any(any(path.glob(part)) for part in ("visits/*", "checkpoints/*-*"))
