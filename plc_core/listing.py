"""Every run below a folder, also those that cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from plc_core.files import RunError
from plc_core.runs import open_run, resolve

T = TypeVar("T")


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
    """Every folder below `root`, newest first; a broken one is listed with its problem."""
    root = Path(root)
    if not root.is_dir():
        return []
    folders = [p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")]
    found = [_summarise(root, folder) for folder in folders]
    return sorted(found, key=lambda s: (s.created or "", s.name), reverse=True)


def _summarise(root: Path, folder: Path) -> RunSummary:
    try:
        run = open_run(resolve(root, folder.name))
        status = run.status
        return RunSummary(
            name=folder.name,
            path=folder,
            kind=str(run.info.get("kind", "?")),
            state=str(status.get("state", "?")),
            created=_typed(run.info.get("created"), str),
            step=_typed(status.get("step"), int),
            total_steps=_typed(status.get("total_steps"), int),
            heartbeat=_typed(status.get("heartbeat"), str),
            reason=_typed(status.get("reason"), str),
            config=_typed(run.info.get("config"), dict) or {},
        )
    except RunError as error:
        return RunSummary(name=folder.name, path=folder, problem=str(error))


def _typed(value: Any, kind: type[T]) -> T | None:
    # A run of another's making may hold anything; one odd field must not hide the other runs.
    if isinstance(value, int) and abs(value) > 2**53:
        return None
    return value if isinstance(value, kind) else None
