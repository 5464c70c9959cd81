"""What a Parquet file of this project says of itself, before its footer, where no reader looks.

A checksum of all its other bytes, and before that where it was written (`identity`).
"""

from __future__ import annotations

import functools
import os
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

from plc_core.storage.checksums import crc_of, remembered
from plc_core.storage.identity import Origin

_CHECKSUM = struct.Struct("<8sI")
_CHECKSUM_MARK = b"PLC-CRC\n"
_ORIGIN = struct.Struct("<8s16s")  # a mark, and the id of the run in ASCII; before the checksum
_ORIGIN_MARK = b"PLC-OWN\n"  # before it come the path in UTF-8, and how many bytes that has
_RUN_MARK = b"PLC-RUN\n"  # of older versions: no path
_LENGTH = struct.Struct("<H")
_TAIL = struct.Struct("<I4s")  # the footer's length and "PAR1", with which a Parquet file ends


class Seal(NamedTuple):
    """What a Parquet file says of itself."""

    whole: bool | None = None  # whether it is what was written; None where it has no checksum
    origin: Origin = Origin()


def seal_parquet(path: Path, origin: Origin) -> None:
    """Put a checksum of all bytes of a Parquet file into it, and where it is written."""
    with path.open("r+b") as file:
        start = _footer(file)
        file.seek(start)
        footer = file.read()
        if origin.run_id is not None:
            said = _packed(origin.run_id, origin.path)
            file.seek(start)
            file.write(said + footer)
            start += len(said)
        seal = _CHECKSUM.pack(_CHECKSUM_MARK, crc_of(file))
        file.seek(start)
        file.write(seal + footer)


def parquet_seal(path: Path) -> Seal:
    """Whether a Parquet file is what was written, and where it was.

    Raises:
        OSError: where it cannot be read.
        ValueError: where it is cut short or no Parquet file.
    """
    seal: Seal = remembered(_seal_of, path)
    return seal


@functools.lru_cache(maxsize=2**16)
def _seal_of(path: Path, *stamp: int) -> Seal:
    with path.open("rb") as file:
        end = _footer(file)
        start = end - _CHECKSUM.size
        if start < 0:
            return Seal()
        file.seek(start)
        mark, value = _CHECKSUM.unpack(file.read(_CHECKSUM.size))
        if mark != _CHECKSUM_MARK:
            return Seal()
        origin = _unpacked(file, start)
        return Seal(bool(value == crc_of(file, (start, end))), origin)


def _packed(run_id: str, path: str | None) -> bytes:
    if path is None:
        return _ORIGIN.pack(_RUN_MARK, run_id.encode())
    text = path.encode()
    return text + _LENGTH.pack(len(text)) + _ORIGIN.pack(_ORIGIN_MARK, run_id.encode())


def _unpacked(file: BinaryIO, end: int) -> Origin:
    """What `_packed` wrote before the byte `end`."""
    raw = _before(file, end, _ORIGIN.size)
    mark, run_id = raw[: len(_RUN_MARK)], raw[len(_RUN_MARK) :].decode("ascii", "replace")
    if mark not in (_RUN_MARK, _ORIGIN_MARK):
        return Origin()
    if mark == _RUN_MARK:
        return Origin(run_id)
    end -= _ORIGIN.size
    length = int.from_bytes(_before(file, end, _LENGTH.size), "little")
    return Origin(run_id, _before(file, end - _LENGTH.size, length).decode(errors="replace"))


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
