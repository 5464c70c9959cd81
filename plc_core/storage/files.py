"""Files that are whole or not there, and that tell when their content is not what was written.

JSON and Parquet are written with checksums (`checksums`) and, in a run, with the run's id and their
path in it (`identity`). All are verified whenever they are read; files without, as of older
versions, are read as they are.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from plc_core.storage.checksums import digest_file, digest_line, json_is_whole, sealed_json, sha256
from plc_core.storage.identity import (
    RUN_FILE,
    RUN_ID,
    WRITTEN_AS,
    Origin,
    misfit,
    origin_of,
    run_of,
)
from plc_core.storage.seals import Seal, parquet_seal, seal_parquet


def remedy(path: Path) -> str:
    """What a person can do about a file of a run that is damaged or missing."""
    anew = "delete it and make it anew: its run by the same command under another name."
    if path.name == "status.json":
        anew = (
            "go on with the run (plc train with resume true, or its notebook again): that writes "
            "it anew, and nothing else is lost. A label audit is made anew under another name."
        )
    elif path.parent.name in ("generations", "judgements"):
        anew = "delete it and make it anew by evaluating again."
    elif path.parent.name == "scores":
        anew = "delete it and make it anew by its notebook."
    elif path.parent.name == "blind_check":
        anew = f"delete the folder {path.parent} and check anew."
    elif path.parent.name == "decisions":
        anew = "delete it: exporting makes it anew."
    return f"Put a copy of it back; without one, {anew}"


class RunError(Exception):
    """A run folder, or a file of one, that cannot be used as asked; a sentence for the user."""


class ForeignFileError(RunError):
    """A whole file that was written for another run or place than the one it lies in.

    `written_as` is its path in this run, where it is of this run.
    """

    def __init__(self, path: Path, why: str, written_as: str | None = None) -> None:
        super().__init__(path, why, written_as)  # as given: a pickle makes it anew of these
        self.path, self.why, self.written_as = path, why, written_as

    def __str__(self) -> str:
        return f"{self.path} {self.why}. {remedy(self.path)}"


class UnreadableError(RunError):
    """A file or folder that is there and may not be read by this user."""


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
    """Replace `path` atomically with `content` as JSON, an object with its origin and checksum.

    run.json says its id itself: it is part of its content.
    """
    if isinstance(content, dict):  # these may have come along from a file
        is_run = path.name == RUN_FILE
        own = {"checksum", WRITTEN_AS} if is_run else {"checksum", WRITTEN_AS, RUN_ID}
        content = {name: value for name, value in content.items() if name not in own}
        origin = Origin(content.get(RUN_ID), RUN_FILE) if is_run else origin_of(path)
        if origin.run_id is not None:
            said = {RUN_ID: origin.run_id, WRITTEN_AS: origin.path}
            content |= {name: value for name, value in said.items() if value is not None}
    text = json.dumps(content, indent=1, ensure_ascii=False, default=str)
    if isinstance(content, dict) and content:
        text = sealed_json(text)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def write_table(path: Path, table: pa.Table, rows_a_group: int | None = None) -> None:
    """Replace `path` atomically with `table` as Parquet, with its origin and a checksum.

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
        seal_parquet(temporary, origin_of(path))


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


@contextlib.contextmanager
def replacing_digested(path: Path) -> Iterator[Path]:
    """As `replacing`, for a format without room for a checksum: its SHA-256 goes beside it.

    A kill leaves no file beside the digest of another.
    """
    beside = digest_file(path)
    with replacing(path) as temporary:
        yield temporary
        line = digest_line(path, sha256(temporary))
        beside.unlink(missing_ok=True)
    with replacing(beside) as temporary:
        temporary.write_bytes(line)


def read_json(path: Path, sealed: bool | None = None) -> dict[str, Any]:
    """The JSON object in `path`; RunError where it is missing, damaged, foreign or no object.

    Args:
        sealed: a file without a checksum counts as damaged. None: only in runs with checksums, and
            not their run.json, which an editor may have formatted anew.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe or a device would never come to an end
            raise OSError("it is not a regular file")
        raw = path.read_bytes()
        content = json.loads(raw.decode())
    except FileNotFoundError:
        if path.name == RUN_FILE:
            raise RunError(
                f"{path.parent} is not a run folder: it has no {path.name}. If it was one, put a "
                "copy of that file back."
            ) from None
        raise RunError(f"{path} is missing. {remedy(path)}") from None
    except PermissionError as error:
        raise unreadable(path, error) from None
    except (OSError, ValueError, RecursionError) as error:  # not text, not JSON, or absurd
        raise RunError(f"{path} cannot be read: {error}. {remedy(path)}") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} should hold a JSON object but holds a {type(content).__name__}.")
    whole = json_is_whole(raw)
    content.pop("checksum", None)
    origin = Origin(content.get(RUN_ID), content.pop(WRITTEN_AS, None))
    if path.name != RUN_FILE:
        content.pop(RUN_ID, None)
    _verify(path, whole, origin, sealed)
    return content


def check_table(path: Path, sealed: bool | None = None) -> None:
    """RunError where a Parquet file is not what was written, or was not written for this place.

    Args:
        sealed: as in `read_json`.
    """
    seal = _seal(path)
    _verify(path, seal.whole, seal.origin, sealed)


def is_sealed(path: Path) -> bool:
    """Whether a Parquet file has a checksum; RunError where it cannot be read."""
    return _seal(path).whole is not None


def read_table(
    path: Path, columns: list[str] | None = None, filters: Any = None, sealed: bool | None = None
) -> pa.Table:
    """The Parquet file `path`; RunError where it cannot be read, or is damaged as `check_table`."""
    check_table(path, sealed)
    try:
        return pq.read_table(
            path, columns=columns, filters=filters, page_checksum_verification=True
        )
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def table_rows(path: Path) -> int:
    """How many rows the Parquet file `path` has; RunError where it cannot be read."""
    check_table(path)
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def table_names(path: Path) -> list[str]:
    """The column names of the Parquet file `path`; RunError where it cannot be read."""
    check_table(path)
    try:
        return pq.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def _seal(path: Path) -> Seal:
    try:
        return parquet_seal(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _verify(path: Path, whole: bool | None, origin: Origin, sealed: bool | None) -> None:
    """RunError where a file is not what was written, or was not written for where it lies.

    One without a checksum is not this project's, or an older version's, and says nothing.
    """
    if whole is False:
        raise RunError(f"{path} is damaged: its content is not what was written. {remedy(path)}")
    if whole is None:
        if sealed is None and path.name != RUN_FILE:
            run = run_of(path)
            sealed = run is not None and run.has_checksums
        if sealed:
            raise RunError(f"{path} is damaged: it has no checksum any more. {remedy(path)}")
    elif (why := misfit(path, origin)) is not None:
        is_of_this_run = origin.run_id == origin_of(path).run_id
        raise ForeignFileError(path, why, origin.path if is_of_this_run else None)


def _unreadable(path: Path, error: Exception) -> RunError:
    """Why a Parquet file cannot be read, in words that are not Arrow's where they are known."""
    if isinstance(error, PermissionError):
        return unreadable(path, error)
    why = getattr(error, "strerror", None) or str(error).rstrip(".")
    if isinstance(error, FileNotFoundError):
        why = "it is not there"
    elif "Parquet" in str(error) and isinstance(error, pa.ArrowInvalid):
        why = "it is cut short or no Parquet file"
    return RunError(f"{path} cannot be read: {why}. {remedy(path)}")
