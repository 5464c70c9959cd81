"""Logs of a run that are added to line by line, as decisions and verdicts are.

A line is JSON with a checksum, the id of its run and its number in the log: what was said of a pair
in another run may be of other labels or sides, though the pair has the same id; and a line that is
gone, doubled or moved shows in the numbers behind it. What is gone from the end shows in a file
beside the log, `decisions.lines.json` beside `decisions.jsonl`: how many lines it has at least. It
is written after the lines, and before any are taken back, so that a kill in between is no error.

Lines of older versions, and lines that a person mended, have neither number nor id; a log that has
no such file beside it is read as far as it goes. It gets one with its next line. Whoever means to
drop a log's end, or all of it, deletes that file.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from plc_core.storage.checksums import opened_line, sealed_line
from plc_core.storage.files import (
    ForeignFileError,
    RunError,
    UnreadableError,
    is_there,
    read_json,
    unreadable,
    write_json,
)
from plc_core.storage.identity import RUN_ID, RunRecord, is_of_another, origin_of, run_of

T = TypeVar("T")
_NUMBER = "line"
_CUT = "cut"
"""Field of an entry: the number of a line before it that a kill had cut off."""
_WAITS = (0.02, 0.2)  # seconds, for who is adding to a log, or taking lines back, as it is read


class Extent(NamedTuple):
    """How far a log goes."""

    lines: int
    bytes: int


class Line(NamedTuple):
    """What is read of a line of a log."""

    end: int  # the byte after it
    content: Any


def append_entries(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Add entries to the log `path` of a run, all or none; they are on disk when this returns.

    One process at a time. A line before that was cut off by a kill is left to itself.

    Raises:
        RunError: where the disk is full or the file cannot be written; it is as it was then. Where
            it lacks lines that it had.
    """
    run_id = origin_of(path).run_id
    own: dict[str, Any] = {} if run_id is None else {RUN_ID: run_id}
    said = _said(path)
    if said is not None and said.lines and not is_there(path):
        raise _shortened(path, 0, said)
    try:
        # Without a buffer, which would be written once more when the file is closed.
        with path.open("ab+", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            lines, tail = _end_of(file, path, said)
            if said is None:  # from here on its lines are counted
                write_extent(path, Extent(lines, before - len(tail)))
            if tail and not _is_json(tail):
                lines += 1
                own |= {_CUT: lines}
            new = []
            for entry in entries:
                lines += 1
                new.append(sealed_line(entry | own | {_NUMBER: lines}))
                own.pop(_CUT, None)
            rest = (b"\n" if tail else b"") + "".join(new).encode("ascii")
            after = Extent(lines, before + len(rest))
            try:
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                os.truncate(file.fileno(), before)
                raise
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from None
    with contextlib.suppress(RunError):  # the lines are kept; fewer are said, which is no error
        write_extent(path, after)


def _end_of(file: io.FileIO, path: Path, said: Extent | None) -> tuple[int, bytes]:
    """How many lines a log has, and its last one if that has no end."""
    size = file.seek(0, os.SEEK_END)
    last = os.pread(file.fileno(), 1, size - 1) if size else b""
    if said is not None and said.bytes == size and last == b"\n":
        return said.lines, b""
    file.seek(0)  # new, an older version's, after a kill, or mended
    raw = file.read()
    lines = _extent_of(raw).lines
    if said is not None and lines < said.lines:
        raise _shortened(path, lines, said)
    return lines, raw.rpartition(b"\n")[2]


def read_entries(path: Path, what: str, parsed: Callable[[Any], T]) -> list[Line]:
    """The entries of a log, each with what `parsed` makes of it; none where it was never begun.

    Blank lines are passed over, and so is one that a kill cut off while it was written.

    Args:
        what: a line is, in a word.
        parsed: raises ValueError, KeyError, TypeError or AttributeError for what is no entry.

    Raises:
        RunError: naming the line where it is damaged, of another run or not in its place, and
            where lines are gone.
    """
    for wait in (*_WAITS, None):
        said = _said(path)  # before the log, which may become longer meanwhile
        raw = _read(path)
        found = _extent_of(raw).lines
        if said is None or found >= said.lines:
            break
        if wait is None:
            raise _shortened(path, found, said)
        time.sleep(wait)
    return _entries(path, raw, said, what, parsed)


def truncate(path: Path, size: int) -> None:
    """Take the lines after the first `size` bytes from a log.

    Raises RunError where it cannot be written.
    """
    try:
        with path.open("rb") as file:
            write_extent(path, Extent(file.read(size).count(b"\n"), size))
        os.truncate(path, size)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from None


def extent_file(path: Path) -> Path:
    """The file that says how many lines the log `path` has at least."""
    return path.with_suffix(".lines.json")


def write_extent(path: Path, extent: Extent) -> None:
    """Say how many lines the log `path` has at least, and how many bytes those are."""
    write_json(extent_file(path), extent._asdict())


def _said(path: Path) -> Extent | None:
    """How far a log goes at least; None where nothing says it."""
    file = extent_file(path)
    if not is_there(file):
        return None
    try:
        return Extent(**{name: int(value) for name, value in read_json(file, sealed=True).items()})
    except UnreadableError:
        raise
    except (RunError, TypeError, ValueError) as error:
        why = error.why if isinstance(error, ForeignFileError) else "is damaged"
        raise RunError(
            f"{file} {why}: how many lines {path.name} had is "
            "not known. Put a copy of it back; without one, look whether the last lines of "
            f"{path.name} are there, and delete {file.name}: it is made anew with the next line."
        ) from None


def _extent_of(raw: bytes) -> Extent:
    """How far the content of a log goes; a last line without its end counts if it is whole."""
    tail = raw.rpartition(b"\n")[2]
    return Extent(raw.count(b"\n") + bool(tail and _is_json(tail)), len(raw))


def _is_json(line: bytes) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(line)
        return True
    return False


def _shortened(path: Path, lines: int, said: Extent) -> RunError:
    had = f"{said.lines:,} line{'s' if said.lines > 1 else ''}"
    is_now = f"ends after line {lines:,}" if is_there(path) else "is missing"
    return RunError(
        f"{path} {is_now}, and had {had}. Put a copy of it back; to go on with what is left, "
        f"delete {extent_file(path).name} beside it."
    )


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe or a device would never come to an end
            raise RunError(f"{path} cannot be read: it is not a regular file.")
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except PermissionError as error:
        raise unreadable(path, error) from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from None


def _entries(
    path: Path, raw: bytes, said: Extent | None, what: str, parsed: Callable[[Any], T]
) -> list[Line]:
    run = run_of(path)
    found: list[Line] = []
    unread: tuple[int, Exception] | None = None  # a line, which a kill may have cut off
    end = 0
    lines = raw.split(b"\n")  # the last of them has no end yet, and mostly is empty
    for number, line in enumerate(lines, start=1):
        end += len(line) + 1
        if not line.strip():
            continue
        try:
            entry, place, cut = _opened(line, run)
            content = parsed(entry)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if unread is not None:
                break
            unread = number, error
            continue
        if unread is not None and unread[0] != cut:
            break
        unread = None
        if place not in (None, number):
            raise RunError(
                f"{path}, line {number:,}, was written as line {place:,}: lines before it are "
                "gone, or came in. Put a copy of the file back; to go on with what is there, put a "
                "blank line for each that is gone, and take out what came in."
            )
        found.append(Line(end, content))
    if unread is not None and (said is None or unread[0] < len(lines)):
        raise RunError(
            f"{path}, line {unread[0]:,}, is damaged or no {what} ({unread[1]}). Put a copy of the "
            "file back; without one, mend the line and take its checksum away, or leave it blank: "
            "nothing is written over it."
        )
    return found


def _opened(line: bytes, run: RunRecord | None) -> tuple[Any, int | None, int | None]:
    """An entry of a log of `run`, its number, and that of the line before that was cut off.

    Raises ValueError where it is damaged or of another run. A line without a checksum is a
    person's, or an older version's, and is taken as it is.
    """
    entry, sealed = opened_line(line.decode())
    if not isinstance(entry, dict):
        return entry, None, None
    written_for, place, cut = (entry.pop(name, None) for name in (RUN_ID, _NUMBER, _CUT))
    if not sealed:
        return entry, None, None
    if written_for is not None and is_of_another(run, written_for):
        raise ValueError("it was written in another run, whose labels may be others")
    return entry, place, cut
