"""JSON lines and JSON arrays, one object in memory at a time, with the place of every fault."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from plc_core.data.bounds import Bounds
from plc_core.data.pairs import DataError

Row: TypeAlias = tuple[int, Any]
"""The number of a row in its file, from 1, and what it holds."""

CHUNK = 2**20  # characters
_SPACE = re.compile(r"[ \t\r\n]*")
_BLANK = " \t\r\n\v\f"
_SINGLE_BYTE = {"utf-8", "utf-8-sig", "ascii", "latin-1", "iso8859-1", "cp1252"}


def without_mark(encoding: str) -> str:
    """The encoding that passes over a byte order mark, where there may be one."""
    return "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding


def json_lines(
    path: Path, stream: io.BufferedReader, encoding: str, bounds: Bounds
) -> Iterator[Row]:
    """The values of a file with one a line; blank lines only count in the numbers."""
    most, number, blank, line = bounds.row_bytes, 0, 0, ""
    lines: Any = stream
    bytewise = codecs.lookup(encoding).name in _SINGLE_BYTE
    if not bytewise:
        # In UTF-16 the byte of a line's end is part of other characters.
        lines = io.TextIOWrapper(stream, encoding, newline="\n")
    try:
        while raw := lines.readline(most + 1):
            number += 1
            if len(raw) > most:
                raise bounds.row_too_large(f"{path}, row {number:,}")
            line = raw if isinstance(raw, str) else raw.decode(encoding)
            line = line.removeprefix("\ufeff") if number == 1 else line
            if line.strip(_BLANK):
                yield number, json.loads(line)
            elif bytewise:
                number += _blank_lines(stream)
            elif (blank := blank + 1) > bounds.rows:
                raise bounds.too_many(path, "rows")
    except (DataError, UnicodeDecodeError):
        raise  # the caller looks for the place of the latter
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, row {number}, character {error.pos + 1}: no JSON object ({error.msg}). Write "
            f"one object a line, or one array of objects.{_hint(number, line)}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}, row {number}: not to be read as JSON ({error}).") from None


def _blank_lines(stream: io.BufferedReader) -> int:
    """Pass over white space that follows, in large pieces; how many lines end in it."""
    ended = 0
    while waiting := stream.peek(CHUNK):
        blank = len(waiting) - len(waiting.lstrip(_BLANK.encode()))
        ended += stream.read(blank).count(b"\n")
        if blank < len(waiting):
            break
    return ended


def _hint(number: int, line: str) -> str:
    if number == 1 and line.strip() in ("{", "["):
        return " This looks like one value over several lines."
    return ""


def json_array(
    path: Path, stream: io.BufferedReader, encoding: str, bounds: Bounds
) -> Iterator[Row]:
    """The objects of one JSON array, read piece by piece."""
    text = io.TextIOWrapper(stream, without_mark(encoding))
    decoder = json.JSONDecoder()
    buffer, start, number, before = "", 0, 0, 0

    def fault(message: str, place: int) -> DataError:
        where = f"element {number + 1}, character {place + 1} of the file"
        return DataError(f"{path}, {where}: {message}.")

    def more() -> bool:
        nonlocal buffer, start, before
        # As much again as is waiting: an element is then looked at a few times at most.
        waiting = len(buffer) - start
        piece = text.read(max(CHUNK, min(waiting, bounds.row_bytes - waiting)))
        before += start
        buffer, start = buffer[start:] + piece, 0
        return bool(piece)

    def next_character() -> str:
        nonlocal start
        while True:
            start = _SPACE.match(buffer, start).end()  # type: ignore[union-attr]
            if start < len(buffer) or not more():
                return buffer[start : start + 1]

    def next_value() -> Any:
        nonlocal start
        while True:
            waiting = start
            try:
                value, end = decoder.raw_decode(buffer, start)
                problem = None
            except json.JSONDecodeError as error:
                end = len(buffer)
                problem = fault(f"no JSON ({error.msg})", before + error.pos)
            if end - start > bounds.row_bytes:
                raise bounds.row_too_large(f"{path}, element {number + 1:,}")
            if problem is None and end < len(buffer):
                start = end
                return value
            # Cut off by the end of the buffer, as it seems; a number might go on behind it too.
            if not more():
                if problem is not None:
                    raise problem
                start = end - waiting
                return value

    try:
        next_character()
        start += 1  # the bracket
        while next_character() != "]":
            value = next_value()
            number += 1
            yield number, value
            separator = next_character()
            if separator == ",":
                start += 1
                if next_character() == "]":
                    raise fault("a comma before the end of the array", before + start)
            elif separator != "]":
                found = repr(separator) if separator else "the end of the file"
                raise fault(
                    f"expected a comma or the end of the array, found {found}", before + start
                )
        start += 1
        if next_character():
            raise fault("something behind the end of the array", before + start)
    except (DataError, UnicodeDecodeError):
        raise  # the caller looks for the place of the latter
    except (RecursionError, ValueError) as error:
        raise fault(f"not to be read as JSON ({error})", before + start) from None


def one_value_a_line(start: str) -> bool:
    """Whether a text that begins with a bracket is JSON lines, its first line a faulty row."""
    line, newline, rest = start.partition("\n")
    if not newline or not rest.strip():
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
