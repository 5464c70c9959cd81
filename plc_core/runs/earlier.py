"""A finished report is kept whole until the one that replaces it has something to show.

A batch that begins a report under the name of a finished one copies that into `.earlier` of its
folder. Where the new one fails before it has done anything, as for want of runs, the finished one
is put back; otherwise the folder holds the new one alone, with its own state and reason, and the
copy goes when a new one is finished.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from plc_core.files import RunError, read_json

_FOLDER = ".earlier"
_BEGUN = {"run.json", "status.json"}
"""All that a report has which has done nothing."""


def set_aside(folder: Path) -> None:
    """Copy a finished report into `.earlier`, and clear the folder but for its run.json and status.

    Of a report that was not finished nothing is copied, and what was copied before stays.
    """
    if _is_finished(folder):
        whole = folder / f"{_FOLDER}.tmp"  # renamed when it is whole, as the copying may be cut off
        shutil.rmtree(whole, ignore_errors=True)
        shutil.copytree(folder, whole, ignore=lambda _, names: [n for n in names if n[0] == "."])
        forget(folder)
        whole.rename(folder / _FOLDER)
    for path in _content(folder):
        _remove(path)


def put_back(folder: Path) -> bool:
    """Put the finished report back that one which has done nothing replaced; False without one."""
    earlier = folder / _FOLDER
    recorded = read_json(folder / "run.json")
    if not earlier.is_dir() or _content(folder) or "runs" in recorded:
        return False
    # run.json comes last: until then the folder is what it was.
    for path in sorted(earlier.iterdir(), key=lambda path: path.name in _BEGUN):
        path.replace(folder / path.name)
    earlier.rmdir()
    return True


def forget(folder: Path) -> None:
    """Delete the copy of an earlier report."""
    shutil.rmtree(folder / _FOLDER, ignore_errors=True)


def _is_finished(folder: Path) -> bool:
    try:
        done = read_json(folder / "status.json").get("state") == "done"
    except RunError:
        return False
    return done and (folder / "report.html").exists()


def _content(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.name not in _BEGUN and not p.name.startswith(".")]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
