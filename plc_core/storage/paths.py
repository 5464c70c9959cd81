"""Where things lie: the cache, which one process at a time adds to, the project, a user's paths."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from plc_core.storage.files import RunError


def cache_dir() -> Path:
    """Where reusable results are kept: $PLC_CACHE, or plc_core in the user's cache folder."""
    chosen = os.environ.get("PLC_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without one, as in a container
        raise RunError(
            "There is no home folder for the cache. Set PLC_CACHE to a folder."
        ) from None
    return Path(base) / "plc_core"


def unwritable_cache(folder: Path, error: OSError) -> RunError:
    """The sentence for a folder of the cache that cannot be written."""
    return RunError(
        f"The cache folder {folder} cannot be written ({error.strerror}). Set PLC_CACHE to a "
        "folder that can."
    )


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold `path`, in the cache, against other processes, so that it is made once.

    Raises RunError where its folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(path.name + ".lock"))
        lock.acquire()
    except OSError as error:
        raise unwritable_cache(path.parent, error) from None
    try:
        yield
    finally:
        lock.release()


_PACKAGE = Path(__file__).resolve().parents[1]


def checkout() -> Path | None:
    """The checkout that this package runs from; None where it was installed from a wheel."""
    return _PACKAGE.parent if (_PACKAGE.parent / "pyproject.toml").exists() else None


def plc_command() -> str:
    """How `plc` is called here."""
    return ".venv/bin/plc" if checkout() is not None else "plc"


def resource(name: str) -> Path:
    """Where `notebooks`, `app` or `data` are: in the checkout, or else in the installed package."""
    return (checkout() or _PACKAGE / "resources") / name


def importable() -> str:
    """Let this process import the package `notebooks` from where it lies; that folder's path.

    A checkout's folder is on the path of its environment already; a wheel's resources are not.
    """
    folder = str(resource("notebooks").parent)
    if folder not in sys.path:
        sys.path.append(folder)
    return folder


def project_path(path: str) -> Path:
    """An absolute path as it is; a relative one below the checkout, wherever the caller stands.

    Where the package was installed from a wheel it is below the working directory.
    """
    try:
        given = Path(path).expanduser()
        given.is_dir()
    except (RuntimeError, ValueError, OSError) as error:  # of no user, with a NUL, too long
        raise RunError(f"The path {path!r} cannot be used: {error}") from None
    return given if given.is_absolute() else (checkout() or Path.cwd()) / given
