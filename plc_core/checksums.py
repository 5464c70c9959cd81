"""CRC-32 checksums of a file's content, kept in the file itself where its format is this project's.

A JSON object ends with the checksum of the text before it as `checksum`, and so does every line of
a JSONL file. A Parquet file has one of all its other bytes in front of its footer, where readers do
not look, and before that where it belongs: its run and its place there (`plc_core.identity`). Of
files of other libraries `plc_core.storage` keeps a list.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import stat
import struct
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

_MARK = b"PLC-CRC\n"
_SEAL = struct.Struct("<8sI")  # the mark, and the checksum
_OWNER = struct.Struct("<8s16s")  # a mark, and the id of a run in ASCII; before the seal
_RUN_MARK = b"PLC-RUN\n"  # of older versions: no place
_PLACE_MARK = b"PLC-OWN\n"  # before it come the place in UTF-8, and how many bytes that has
_LENGTH = struct.Struct("<H")
_TAIL = struct.Struct("<I4s")  # the footer's length and "PAR1", with which a Parquet file ends
_JSON_SEAL = re.compile(rb',\n "([^"\n]{8})": "([0-9a-f]{8})"\n}\n\Z')
_SETTLED_NS = 2_000_000_000
"""Of a file written so short a time ago another change may have the same time."""


def checksum(path: Path) -> int:
    """The CRC-32 of a file's bytes; OSError where it cannot be read.

    Read once by a process, and again when its size or time of change is another.
    """
    return int(_remembered(_crc_of_file, path))


class Owner(NamedTuple):
    """Where a file belongs."""

    run_id: str | None  # of its run, 16 signs
    place: str | None = None  # its path below the run's folder; None where that is not known


NOWHERE = Owner(None)


class Seal(NamedTuple):
    """What a Parquet file says of itself."""

    whole: bool | None  # whether it is what was written; None where it has no checksum
    owner: Owner  # what it was written for


def seal_parquet(path: Path, owner: Owner = NOWHERE) -> None:
    """Put a checksum of all bytes of a Parquet file into it, and the run and place it is for."""
    with path.open("r+b") as file:
        start = _footer(file)
        file.seek(start)
        footer = file.read()
        if owner.run_id is not None:
            named = _packed(owner.run_id, owner.place)
            file.seek(start)
            file.write(named + footer)
            start += len(named)
        seal = _SEAL.pack(_MARK, _crc(file))
        file.seek(start)
        file.write(seal + footer)


def parquet_seal(path: Path) -> Seal:
    """Whether a Parquet file is what was written, and for which run.

    Raises:
        OSError: where it cannot be read.
        ValueError: where it is cut short or no Parquet file.
    """
    seal: Seal = _remembered(_seal_of, path)
    return seal


def sealed_json(text: str) -> str:
    """A JSON object of one field or more, indented by 1, with its checksum as the last field."""
    body = text.removesuffix("\n}")
    return f'{body},\n "checksum": "{zlib.crc32(body.encode()):08x}"\n}}'


def json_is_whole(raw: bytes) -> bool | None:
    """Whether an object of `sealed_json` is what was written; None where it has no checksum."""
    seal = _JSON_SEAL.search(raw)
    if seal is None:
        return None
    same, named = int(seal[2], 16) == zlib.crc32(raw[: seal.start()]), seal[1] == b"checksum"
    # Its name may be what was damaged; any other field may be last in a file of older versions.
    return same and named if same or named else None


def sealed_line(entry: dict[str, Any]) -> str:
    """A line of a JSONL file with its checksum, in ASCII: any text of any user can be written."""
    return json.dumps(entry | {"checksum": _of_entry(entry)}) + "\n"


def opened_line(line: str) -> tuple[Any, bool]:
    """What `sealed_line` wrote, and whether it has a checksum.

    Raises ValueError where it is no JSON, or was changed since.
    """
    entry = json.loads(line)
    found = entry.pop("checksum", None) if isinstance(entry, dict) else None
    if found not in (None, _of_entry(entry)):
        raise ValueError("its checksum is of something else: it is damaged, or was edited")
    return entry, found is not None


def _of_entry(entry: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(entry).encode()):08x}"


def _remembered(read: Callable[..., Any], path: Path) -> Any:
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):  # a pipe or a device would never come to an end
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    stamp = (state.st_size, state.st_mtime_ns, state.st_ino)
    settled = time.time_ns() - state.st_mtime_ns > _SETTLED_NS
    return (read if settled else read.__wrapped__)(path, *stamp)  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=2**16)
def _crc_of_file(path: Path, *stamp: int) -> int:
    with path.open("rb") as file:
        return _crc(file)


@functools.lru_cache(maxsize=2**16)
def _seal_of(path: Path, *stamp: int) -> Seal:
    with path.open("rb") as file:
        end = _footer(file)
        start = end - _SEAL.size
        if start < 0:
            return Seal(None, NOWHERE)
        file.seek(start)
        mark, value = _SEAL.unpack(file.read(_SEAL.size))
        if mark != _MARK:
            return Seal(None, NOWHERE)
        owner = _owner(file, start)
        return Seal(bool(value == _crc(file, (start, end))), owner)


def _packed(run_id: str, place: str | None) -> bytes:
    if place is None:
        return _OWNER.pack(_RUN_MARK, run_id.encode())
    text = place.encode()
    return text + _LENGTH.pack(len(text)) + _OWNER.pack(_PLACE_MARK, run_id.encode())


def _owner(file: BinaryIO, end: int) -> Owner:
    """What `_packed` wrote before the byte `end`."""
    raw = _before(file, end, _OWNER.size)
    mark, run_id = raw[: len(_RUN_MARK)], raw[len(_RUN_MARK) :].decode("ascii", "replace")
    if mark not in (_RUN_MARK, _PLACE_MARK):
        return NOWHERE
    if mark == _RUN_MARK:
        return Owner(run_id)
    end -= _OWNER.size
    length = int.from_bytes(_before(file, end, _LENGTH.size), "little")
    return Owner(run_id, _before(file, end - _LENGTH.size, length).decode(errors="replace"))


def _before(file: BinaryIO, end: int, length: int) -> bytes:
    file.seek(max(0, end - length))
    return file.read(end - file.tell())


def _footer(file: BinaryIO) -> int:
    """Where the footer of a Parquet file begins; ValueError where it has none."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL.size))
    tail = file.read()
    if len(tail) == _TAIL.size:
        length, magic = _TAIL.unpack(tail)
        start = size - _TAIL.size - int(length)
        if magic == b"PAR1" and start >= len(magic):
            return start
    raise ValueError("it is cut short or no Parquet file")


def _crc(file: BinaryIO, leave_out: tuple[int, int] = (0, 0)) -> int:
    """The CRC-32 of a file but for the bytes from one place up to another."""
    value = 0
    for start, length in ((0, leave_out[0]), (leave_out[1], sys.maxsize)):
        file.seek(start)
        while block := file.read(min(length, 2**22)):
            value = zlib.crc32(block, value)
            length -= len(block)
    return value
