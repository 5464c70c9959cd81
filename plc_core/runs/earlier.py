"""An earlier report is kept whole until the one that replaces it has something to show.

A batch that begins a report under the name of another copies that into `.earlier` of its folder.
Where the new one fails before it has done anything, as for want of runs, the earlier one is put
back, with the reason of that failure as `last_failure` in its run.json; otherwise the folder holds
the new one alone, with its own state and reason, and the copy goes when a new one is finished.

A kill at any time leaves the folder or the copy whole, and no folder that is called done but is
not whole.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from plc_core.runs.status import now
from plc_core.storage.files import RunError, read_json, replacing, write_json

_FOLDER = ".earlier"
_BEGUN = ("run.json", "status.json")
"""All that a report has which has done nothing."""


def set_aside(folder: Path) -> None:
    """Copy a report into `.earlier`, and clear the folder but for its run.json and status.json.

    Of a report that was not finished nothing is copied where an earlier one is there already, which
    may be finished; nor of one that has done nothing.

    Raises:
        RunError: where it cannot be copied, as for want of room; it is still in its place then.
    """
    if _is_finished(folder) or (_content(folder) and not (folder / _FOLDER).exists()):
        whole = folder / f"{_FOLDER}.tmp"  # renamed when it is whole, as the copying may be cut off
        shutil.rmtree(whole, ignore_errors=True)
        try:
            shutil.copytree(
                folder, whole, ignore=lambda _, names: [n for n in names if n[0] == "."]
            )
            forget(folder)
            whole.rename(folder / _FOLDER)
        except OSError as error:
            shutil.rmtree(whole, ignore_errors=True)
            raise _not_copied(folder, error) from None
    # Without report.html it no longer counts as finished, whatever its status says.
    for path in sorted(_content(folder), key=lambda path: path.name != "report.html"):
        _remove(path)


def put_back(folder: Path, failure: str) -> bool:
    """Put the earlier report back that one which has done nothing replaced; False without one.

    Args:
        folder: of the report.
        failure: why the one that has done nothing ended.

    Raises:
        RunError: where it cannot be copied, as for want of room; it is still in `.earlier` then.
    """
    earlier = folder / _FOLDER
    recorded = read_json(folder / "run.json")
    if not earlier.is_dir() or _content(folder) or "runs" in recorded:
        return False
    info = read_json(earlier / "run.json")
    write_json(earlier / "run.json", info | {"last_failure": {"reason": failure, "time": now()}})
    # run.json and then status.json come last, as the one says "done": until then it is not.
    for path in sorted(earlier.iterdir(), key=_order):
        try:
            if path.is_dir():
                shutil.copytree(path, folder / path.name)
            else:
                with replacing(folder / path.name) as copy:
                    shutil.copy2(path, copy)
        except OSError as error:
            raise _not_copied(folder, error) from None
    forget(folder)
    return True


def forget(folder: Path) -> None:
    """Delete the copy of an earlier report."""
    shutil.rmtree(folder / _FOLDER, ignore_errors=True)


def _order(path: Path) -> int:
    return _BEGUN.index(path.name) + 1 if path.name in _BEGUN else 0


def _not_copied(folder: Path, error: OSError) -> RunError:
    return RunError(
        f"The report in {folder} cannot be copied: {error.strerror or error}. It is there still."
    )


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
