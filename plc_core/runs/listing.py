"""Every run below a folder, also those that cannot be read, kept in one index file.

`runs/.index.json` holds what a list shows of each run, beside the sizes and times of the two files
that it was read from. A reader trusts an entry only where both are unchanged, opens what is new or
changed, and replaces the file whole; deleted, damaged or written by two at once, it is made again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from plc_core.runs import open_run, resolve
from plc_core.storage.files import RunError, is_there, read_json, unreadable, write_json

T = TypeVar("T")
_INDEX = ".index.json"
_INDEX_SCHEMA = 1


@dataclass(frozen=True)
class RunSummary:
    """What a list of runs shows of one folder; `problem` is a sentence where it cannot be read."""

    name: str
    path: Path
    kind: str = "?"
    state: str = "?"
    problem: str | None = None
    created: str | None = None
    step: int | None = None
    total_steps: int | None = None
    heartbeat: str | None = None
    reason: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


def list_runs(root: Path | str) -> list[RunSummary]:
    """Every folder below `root`, newest first; a broken one is listed with its problem.

    Raises RunError where `root` itself may not be read.
    """
    root = Path(root)
    if not is_there(root) or not root.is_dir():
        return []
    try:
        with os.scandir(root) as entries:
            names = [e.name for e in entries if not e.name.startswith(".") and e.is_dir()]
    except OSError as error:
        raise unreadable(root, error) from None
    before = _read_index(root)
    index: dict[str, Any] = {}
    found = []
    for name in names:
        stamp = _stamp(root / name)
        known = before.get(name)
        summary = _known(root, name, known, stamp)
        if summary is None:
            summary = _summarise(root, root / name)
        found.append(summary)
        # What runs may die without a word, and what cannot be read may be mended: looked at anew.
        if stamp and summary.problem is None and summary.state not in ("queued", "running"):
            values = {k: v for k, v in asdict(summary).items() if k != "path"}
            index[name] = {"stamp": stamp, "run": values}
    if index != before:
        with contextlib.suppress(RunError):  # a folder that may only be read is listed too
            write_json(root / _INDEX, {"schema": _INDEX_SCHEMA, "runs": index})
    return sorted(found, key=lambda s: (s.created or "", s.name), reverse=True)


def _read_index(root: Path) -> dict[str, Any]:
    try:
        content = read_json(root / _INDEX)
    except RunError:
        return {}
    runs = content.get("runs")
    return runs if content.get("schema") == _INDEX_SCHEMA and isinstance(runs, dict) else {}


def _stamp(folder: Path) -> list[int] | None:
    try:
        if folder.is_symlink():
            return None
        both = [(folder / name).stat() for name in ("run.json", "status.json")]
    except OSError:
        return None
    return [n for stat in both for n in (stat.st_mtime_ns, stat.st_size, stat.st_ino)]


def _known(root: Path, name: str, entry: Any, stamp: list[int] | None) -> RunSummary | None:
    if stamp is None or not isinstance(entry, dict) or entry.get("stamp") != stamp:
        return None
    try:
        return RunSummary(**entry["run"], path=root / name)
    except (KeyError, TypeError):
        return None


def _summarise(root: Path, folder: Path) -> RunSummary:
    kind = "?"
    try:
        run = open_run(resolve(root, folder.name))
        kind = str(run.info.get("kind", "?"))
        status = run.status
        return RunSummary(
            name=folder.name,
            path=folder,
            kind=kind,
            state=str(status.get("state", "?")),
            created=_typed(run.info.get("created"), str),
            step=_typed(status.get("step"), int),
            total_steps=_typed(status.get("total_steps"), int),
            heartbeat=_typed(status.get("heartbeat"), str),
            reason=_typed(status.get("reason"), str),
            config=_typed(run.info.get("config"), dict) or {},
        )
    except RunError as error:
        return RunSummary(name=folder.name, path=folder, kind=kind, problem=str(error))


def _typed(value: Any, kind: type[T]) -> T | None:
    # A run of another's making may hold anything; one odd field must not hide the other runs.
    if isinstance(value, int) and abs(value) > 2**53:
        return None
    return value if isinstance(value, kind) else None
