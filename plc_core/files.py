"""Files that are whole or not there, and that tell when their content is not what was written.

JSON and Parquet are written with checksums (`plc_core.checksums`) and, in a run, with the run's id
(`plc_core.identity`). Both are verified whenever they are read; files without, as of older
versions, are read as they are.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from plc_core.checksums import json_is_whole, parquet_seal, seal_parquet, sealed_json
from plc_core.identity import RUN_FILE, RUN_ID, is_foreign, run_id_of

REMEDY = (
    "Put a copy of it back; without one, delete it and make it anew: answers and judgements by "
    "evaluating again, other files by training under another name."
)
"""For a file of a run that is damaged or missing."""


class RunError(Exception):
    """A run folder, or a file of one, that cannot be used as asked; a sentence for the user."""


class ForeignFileError(RunError):
    """A whole file that was written for another run than the one it lies in."""


class UnreadableError(RunError):
    """A file or folder that is there and may not be read by this user."""


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


def is_there(path: Path) -> bool:
    """Whether a file or folder is there; RunError where a folder above it may not be read."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(path, error) from None
    return True


def paths_in(folder: Path, pattern: str = "*") -> list[Path]:
    """What a folder holds by names that match `pattern`, sorted; nothing where there is no folder.

    Raises RunError where it may not be read, as what it holds would count as missing.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(folder, error) from None
    return sorted(folder / name for name in fnmatch.filter(names, pattern))


def unreadable(path: Path, error: OSError) -> UnreadableError:
    """The sentence for a file or folder that this user may not read."""
    return UnreadableError(
        f"{path} cannot be read: {error.strerror or error}. Make it readable for the user that you "
        "are here; nothing was changed."
    )


def write_json(path: Path, content: Any) -> None:
    """Replace `path` atomically with `content` as JSON, an object with its run's id and checksum.

    run.json says its id itself: it is part of its content.
    """
    if isinstance(content, dict):  # these may have come along from a file
        own = {"checksum"} if path.name == RUN_FILE else {"checksum", RUN_ID}
        content = {name: value for name, value in content.items() if name not in own}
        run_id = run_id_of(path) if RUN_ID in own else None
        if content and run_id is not None:
            content[RUN_ID] = run_id
    text = json.dumps(content, indent=1, ensure_ascii=False, default=str)
    if isinstance(content, dict) and content:
        text = sealed_json(text)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def write_table(path: Path, table: pa.Table, rows_a_group: int | None = None) -> None:
    """Replace `path` atomically with `table` as Parquet, with its run's id and a checksum.

    Args:
        rows_a_group: rows of a row group at most.
    """
    with replacing(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            row_group_size=rows_a_group,
            write_page_checksum=True,
        )
        seal_parquet(temporary, run_id_of(path))


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


def append_lines(path: Path, lines: bytes) -> None:
    """Add lines to a file, all or none of them; they are on disk when this returns.

    A line before that was cut off by a kill is left to itself.

    Raises:
        RunError: where the disk is full or the file cannot be written; it is as it was then.
    """
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


def read_json(path: Path, sealed: bool = False) -> dict[str, Any]:
    """The JSON object in `path`; RunError where it is missing, damaged, foreign or no object.

    With `sealed`, a file without a checksum counts as damaged.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe or a device would never come to an end
            raise OSError("it is not a regular file")
        raw = path.read_bytes()
        content = json.loads(raw.decode())
    except FileNotFoundError:
        raise RunError(f"{path.parent} is not a run folder: it has no {path.name}.") from None
    except PermissionError as error:
        raise unreadable(path, error) from None
    except (OSError, ValueError, RecursionError) as error:  # not text, not JSON, or absurd
        raise RunError(f"{path} cannot be read: {error}. {REMEDY}") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} should hold a JSON object but holds a {type(content).__name__}.")
    whole = json_is_whole(raw)
    content.pop("checksum", None)
    _verify(path, whole, sealed)
    if path.name != RUN_FILE:
        _verify_owner(path, whole, content.pop(RUN_ID, None))
    return content


def check_table(path: Path, sealed: bool = False) -> None:
    """RunError where a Parquet file is not what was written, or was written for another run.

    Args:
        sealed: a file without a checksum counts as damaged.
    """
    try:
        seal = parquet_seal(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    _verify(path, seal.whole, sealed)
    _verify_owner(path, seal.whole, seal.run_id)


def read_table(
    path: Path, columns: list[str] | None = None, filters: Any = None, sealed: bool = False
) -> pa.Table:
    """The Parquet file `path`; RunError where it cannot be read, or is damaged as `check_table`."""
    check_table(path, sealed)
    try:
        return pq.read_table(
            path, columns=columns, filters=filters, page_checksum_verification=True
        )
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def table_names(path: Path) -> list[str]:
    """The column names of the Parquet file `path`; RunError where it cannot be read."""
    check_table(path)
    try:
        return pq.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def _verify(path: Path, whole: bool | None, sealed: bool) -> None:
    """RunError where a file is not what was written."""
    if whole is False:
        raise RunError(f"{path} is damaged: its content is not what was written. {REMEDY}")
    if whole is None and sealed:
        raise RunError(f"{path} is damaged: it has no checksum any more. {REMEDY}")


def _verify_owner(path: Path, whole: bool | None, run_id: str | None) -> None:
    """ForeignFileError where a file says that it is of another run than the one it lies in.

    One without a checksum is not this project's, or an older version's, and says nothing.
    """
    if whole and is_foreign(path, run_id):
        raise ForeignFileError(
            f"{path} is of another run: it was not written for the one whose {RUN_FILE} is in this "
            f"folder. {REMEDY}"
        )


def _unreadable(path: Path, error: Exception) -> RunError:
    """Why a Parquet file cannot be read, in words that are not Arrow's where they are known."""
    if isinstance(error, PermissionError):
        return unreadable(path, error)
    why = getattr(error, "strerror", None) or str(error).rstrip(".")
    if isinstance(error, FileNotFoundError):
        why = "it is not there"
    elif "Parquet" in str(error) and isinstance(error, pa.ArrowInvalid):
        why = "it is cut short or no Parquet file"
    return RunError(f"{path} cannot be read: {why}. {REMEDY}")
