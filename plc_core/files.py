"""Files written so that a reader, or a kill, never meets half of one."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock


class RunError(Exception):
    """A run folder, or a file of one, that cannot be used as asked; a sentence for the user."""


def cache_dir() -> Path:
    """Where reusable results are kept: $PLC_CACHE, or plc_core in the user's cache folder."""
    chosen = os.environ.get("PLC_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "plc_core"


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
        raise RunError(
            f"The cache folder {path.parent} cannot be written ({error.strerror}). Set PLC_CACHE "
            "to a folder that can."
        ) from None
    try:
        yield
    finally:
        lock.release()


_PACKAGE = Path(__file__).resolve().parent


def checkout() -> Path | None:
    """The checkout that this package runs from; None where it was installed from a wheel."""
    return _PACKAGE.parent if (_PACKAGE.parent / "pyproject.toml").exists() else None


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


def make_folder(path: Path) -> None:
    """Make the folder `path` in one that is there; RunError where that cannot be."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:  # no right to write there, a file of this name, a full disk
        raise RunError(f"The folder {path} cannot be made: {error.strerror or error}.") from None


def write_json(path: Path, content: Any) -> None:
    """Replace `path` atomically with `content` as JSON."""
    text = json.dumps(content, indent=1, ensure_ascii=False, default=str)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def write_table(path: Path, table: pa.Table, rows_a_group: int | None = None) -> None:
    """Replace `path` atomically with `table` as Parquet, in row groups of at most that many."""
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=rows_a_group)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new file to write; it replaces `path` at the end, or is removed after an error.

    Raises RunError where the disk is full or cannot be written; the old file is left as it was.
    """
    # A random name, as two threads of one process may replace the same file.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; RunError where it is missing, broken or no object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path.parent} is not a run folder: it has no {path.name}.") from None
    except (OSError, ValueError, RecursionError) as error:  # not text, not JSON, or absurd
        raise RunError(f"{path} cannot be read: {error}.") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} should hold a JSON object but holds a {type(content).__name__}.")
    return content


def checksum(path: Path) -> int:
    """The CRC-32 of a file's bytes, which tells a file that was damaged; OSError if unreadable."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(2**22):
            value = zlib.crc32(block, value)
    return value


def read_table(path: Path, columns: list[str] | None = None, filters: Any = None) -> pa.Table:
    """The Parquet file `path`; RunError where it cannot be read."""
    try:
        return pq.read_table(path, columns=columns, filters=filters)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} cannot be read: {_why(error)}.") from None


def table_names(path: Path) -> list[str]:
    """The column names of the Parquet file `path`; RunError where it cannot be read."""
    try:
        return pq.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} cannot be read: {_why(error)}.") from None


def _why(error: OSError | pa.ArrowException) -> str:
    """Why a Parquet file cannot be read, in words that are not Arrow's where they are known."""
    if isinstance(error, FileNotFoundError):
        return "it is not there"
    if isinstance(error, PermissionError):
        return "it may not be read by this user"
    if "Parquet" in str(error) and isinstance(error, pa.ArrowInvalid):
        return "it is cut short or no Parquet file"
    return str(error).rstrip(".")
