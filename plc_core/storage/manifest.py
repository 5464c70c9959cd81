"""A folder's list of checksums, `checksums.json`, whoever wrote the files.

It has the CRC-32 of each file, and one of its own. It is written last, so that a kill leaves a
folder without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from plc_core.storage.checksums import checksum
from plc_core.storage.files import (
    ForeignFileError,
    RunError,
    UnreadableError,
    is_there,
    paths_in,
    read_json,
    unreadable,
    write_json,
)
from plc_core.storage.identity import MANIFEST as MANIFEST


def list_checksums(folder: Path, also: str | None = None) -> None:
    """Write down the checksums of all files below `folder`, or add that of one more to its list.

    Raises:
        RunError: where one cannot be read, or the list cannot be written.
    """
    names = sorted(_files(folder)) if also is None else [also]
    try:
        sums = {name: f"{checksum(folder / name):08x}" for name in names}
    except OSError as error:
        raise RunError(f"{error.filename or folder} cannot be read: {error.strerror}.") from None
    write_json(folder / MANIFEST, sums if also is None else (listed(folder) or {}) | sums)


def listed(folder: Path) -> dict[str, str] | None:
    """The files in the folder's list with their checksums; None where it has no list.

    Raises RunError where the list itself is damaged.
    """
    return read_json(folder / MANIFEST, sealed=True) if is_there(folder / MANIFEST) else None


def first_damaged(folder: Path, needed: Callable[[str], bool] = lambda name: True) -> str | None:
    """The first listed file, among those that are `needed`, that is missing or damaged.

    None where all are whole, and where the folder has no list.

    Raises ForeignFileError where the list is of another run or place, and UnreadableError where a
    file may not be read by this user.
    """
    try:
        sums = listed(folder) or {}
    except (ForeignFileError, UnreadableError):
        raise
    except RunError:
        return MANIFEST
    for name, value in sums.items():
        path = folder / name
        try:
            if not needed(name):
                continue
            if f"{checksum(path):08x}" == value:
                path.open("rb").close()  # the checksum may be remembered of when it could be read
                continue
        except PermissionError as error:
            raise unreadable(path, error) from None
        except OSError:
            pass
        return name
    return None


def first_unlisted(folder: Path, looked_for: Callable[[str], bool]) -> str | None:
    """The first file of the folder, among those that are `looked_for`, that its list lacks.

    None where it has no list. Raises as `listed`.
    """
    if (sums := listed(folder)) is None:
        return None
    names = (path.name for path in paths_in(folder) if path.is_file())
    return next((name for name in names if looked_for(name) and name not in sums), None)


def _files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != MANIFEST and not path.name.endswith(".tmp"):
            yield path.relative_to(folder).as_posix()
