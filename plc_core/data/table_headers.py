"""What Parquet and Arrow files unpack to, by the headers of their pieces, which are not unpacked.

A column of a billion equal values takes some hundred bytes in either format, and the readers of
pyarrow allocate what a header asks for. So every header is read before: of Parquet's pages (in
Thrift's compact protocol) and of Arrow's messages (flatbuffers), of each the few fields that say
sizes. Both formats are frozen: see parquet.thrift (PageHeader) and Arrow's Message.fbs.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow.parquet as pq

from plc_core.data.pairs import DataError

_AT_ONCE = 2**28  # bytes of pages that are unpacked side by side, one a column
_WHOLE = 2**29  # bytes of what can only be unpacked whole: lists in a row group, an Arrow batch
_VALUES = 2**26  # values that are decoded at once
_BATCH = 2**26  # bytes that a batch of rows is meant to hold
_ROWS, _COLUMNS = 500, 10_000
_DICTIONARY = 2**16  # bytes of values from which a column stays a dictionary while it is read
_HEADER = 2**24
_DELTA_STRINGS = 7  # DELTA_BYTE_ARRAY: each value is a share of the one before it and a rest
_MEND = (
    "Write it anew in smaller pieces: pyarrow.parquet.write_table(table, path, row_group_size=1000)"
)
_MEND_ARROW = "Write it anew in smaller pieces: writer.write_table(table, max_chunksize=1000)"


def check_columns(path: Path, count: int) -> None:
    """DataError for a table of too many columns: each takes memory in every row."""
    if count > _COLUMNS:
        raise DataError(
            f"{path} has {count:,} columns; at most {_COLUMNS:,} are read. Is it a table of pairs?"
        )


def check_names(path: Path, names: Sequence[str]) -> None:
    """DataError for a table with two columns of one name, of which its rows would have the last."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise DataError(f"{path} has two columns of the name {twice[0]!r}.")


def parquet_plan(path: Path, file: pq.ParquetFile) -> tuple[list[str], list[int]]:
    """How a Parquet file is read in little memory.

    Returns:
        The columns to read as dictionaries, and for each row group how many rows to read at once.

    Raises:
        DataError: where a piece of it cannot be read in little memory, or a header is damaged.
    """
    meta = file.metadata
    check_columns(path, meta.num_columns)
    check_names(path, file.schema_arrow.names)
    dictionaries: set[str] = set()
    rows_at_once = []
    with path.open("rb") as raw:
        for group, chunks in enumerate(_chunks(path, raw, meta.num_columns)):
            together = values = whole = density = 0
            for number, chunk in enumerate(chunks):
                column = file.schema.column(number)
                pages = list(_pages(path, raw, chunk))
                largest = max((size for kind, size, _, _ in pages if kind != 2), default=0)
                names = sum(size for kind, size, _, _ in pages if kind == 2)
                together += largest + names
                text = column.physical_type == "BYTE_ARRAY"
                if text and names > _DICTIONARY:
                    dictionaries.add(column.path)
                count = sum(count for kind, _, count, _ in pages if kind != 2)
                if max((count for _, _, count, _ in pages), default=0) > _VALUES:
                    raise _too_large(path, f"a page of the column {column.path!r} unpacks")
                delta = any(encoding == _DELTA_STRINGS for *_, encoding in pages)
                each = max(column.length or 0, 12)
                if column.max_repetition_level:
                    values += count
                    whole += sum(size for _, size, _, _ in pages) + each * count
                    whole += largest * count if delta else 0
                else:
                    sizes = [size / max(count, 1) for kind, size, count, _ in pages if kind != 2]
                    density += int(max(sizes, default=0)) + each + (largest if delta else 0)
            if together > _AT_ONCE:
                raise _too_large(path, f"the pages of row group {group + 1:,} unpack")
            if values > _VALUES or whole > 2 * _WHOLE:
                raise _too_large(path, f"the lists of row group {group + 1:,} unpack")
            rows_at_once.append(max(1, min(_ROWS, _BATCH // max(density, 1))))
    return sorted(dictionaries), rows_at_once


def _too_large(path: Path, what: str) -> DataError:
    return DataError(f"{path}: {what} to more than fits into 2 GB of memory. {_MEND}.")


class _Chunk(NamedTuple):
    """One column of a row group, as the footer says it (parquet.thrift: ColumnMetaData)."""

    num_values: int
    packed: int
    data_page: int
    dictionary_page: int


def _chunks(path: Path, raw: IO[bytes], columns: int) -> list[list[_Chunk]]:
    """The columns of every row group.

    Not by pyarrow's `row_group(…).column(…)`, which aborts the process where the footer of a
    damaged file contradicts itself.
    """
    try:
        raw.seek(-8, os.SEEK_END)
        (length,) = struct.unpack("<I", raw.read(4))
        raw.seek(-8 - length, os.SEEK_END)
        groups = _Compact(raw.read(length)).record().get(4) or []
        found = [
            [_Chunk(*(chunk[3].get(field, 0) for field in (5, 7, 9, 11))) for chunk in group[1]]
            for group in groups
        ]
        numbers = (number for chunks in found for chunk in chunks for number in chunk)
        whole = all(isinstance(number, int) for number in numbers)
    except (OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        whole = False
    if not whole or any(len(chunks) != columns for chunks in found):
        raise DataError(f"{path}: the file is damaged (its footer).")
    return found


def _pages(path: Path, raw: IO[bytes], chunk: _Chunk) -> Iterator[tuple[int, int, int, int]]:
    """Kind (2: a dictionary), unpacked bytes, values and encoding of each page of a column."""
    place = chunk.data_page
    if 0 < chunk.dictionary_page < place:
        place = chunk.dictionary_page
    end = min(place + chunk.packed, os.fstat(raw.fileno()).st_size)
    seen = 0
    while 0 <= place < end and seen < chunk.num_values:
        header, length = _page_header(path, raw, place)
        kind, size, packed = (header.get(number, -1) for number in (1, 2, 3))
        inner = header.get({0: 5, 2: 7, 3: 8}.get(kind, 0))
        inner = inner if isinstance(inner, dict) else {}
        count = inner.get(1, 0)
        if not all(isinstance(n, int) and n >= 0 for n in (kind, size, packed, count)):
            raise DataError(f"{path}: the file is damaged (the header of a page at {place:,}).")
        yield kind, size, count, inner.get(4 if kind == 3 else 2, 0)
        seen += count if kind in (0, 3) else 0
        place += length + packed


def _page_header(path: Path, raw: IO[bytes], place: int) -> tuple[dict[int, Any], int]:
    for most in (2**10, 2**16, _HEADER):
        raw.seek(place)
        compact = _Compact(raw.read(most))
        try:
            return compact.record(), compact.place
        except IndexError:
            continue
        except (ValueError, RecursionError):
            break
    raise DataError(f"{path}: the file is damaged (the header of a page at {place:,}).")


class _Compact:
    """Thrift's compact protocol, as far as headers need it: numbers, records and lists of them."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def record(self) -> dict[int, Any]:
        """The fields of a record by their numbers; None for what is no number and no record."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._number()
            fields[number] = head & 15 == 1 if head & 15 in (1, 2) else self._value(head & 15)
        return fields

    def _byte(self) -> int:
        value = self.data[self.place]
        self.place += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number without an end")

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, count: int) -> None:
        self.place += count
        if self.place > len(self.data):
            raise IndexError

    def _value(self, kind: int) -> Any:
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self._number()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._varint())
        if kind in (9, 10):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            values = [self._value(head & 15) for _ in range(count)]
            return values if head & 15 == 12 else None
        if kind == 12:
            return self.record()
        raise ValueError(f"a field of the kind {kind}")


def check_arrow(path: Path, start: int) -> None:
    """DataError where a batch of an Arrow stream, which begins at `start`, unpacks to too much."""
    names = 0
    with path.open("rb") as raw:
        size = os.fstat(raw.fileno()).st_size
        place = start
        while place < size:
            raw.seek(place)
            head = raw.read(8)
            long = head[:4] == b"\xff\xff\xff\xff"  # since format version 5
            (length,) = struct.unpack("<i", (head[4:] if long else head[:4]).ljust(4, b"\0"))
            if length == 0:
                return
            place += 8 if long else 4
            raw.seek(place)
            if not 0 < length <= min(_HEADER, size - place):
                raise DataError(f"{path}: the file is damaged (a message at byte {place:,}).")
            message = raw.read(length)
            place += length
            try:
                kind, body, unpacked = _unpacked(message, raw, place)
            except (struct.error, IndexError):
                raise DataError(
                    f"{path}: the file is damaged (a message at byte {place:,})."
                ) from None
            names += unpacked if kind == 2 else 0  # dictionaries stay for all that follows
            if max(unpacked, names) > _WHOLE or body < 0:
                raise DataError(
                    f"{path}: a batch in it holds {unpacked / 2**20:,.0f} MiB, more than fits into "
                    f"2 GB of memory. {_MEND_ARROW}."
                )
            place += body


def _unpacked(message: bytes, raw: IO[bytes], body: int) -> tuple[int, int, int]:
    """Kind of a message (2: a dictionary), bytes of its body, and bytes that it unpacks to."""
    root = struct.unpack_from("<I", message, 0)[0]
    kind = _scalar(message, root, 1, "<B")
    length = _scalar(message, root, 3, "<q")
    batch = _table(message, root, 2)
    if kind == 2 and batch is not None:
        batch = _table(message, batch, 1)
    if kind not in (2, 3) or batch is None:
        return kind, length, 0
    if _table(message, batch, 3) is None:  # not compressed
        return kind, length, length
    buffers = _table(message, batch, 2)
    unpacked = 0
    if buffers is None:
        return kind, length, 0
    for number in range(struct.unpack_from("<I", message, buffers)[0]):
        offset, packed = struct.unpack_from("<qq", message, buffers + 4 + 16 * number)
        if packed >= 8:
            raw.seek(body + max(offset, 0))
            (size,) = struct.unpack("<q", raw.read(8))
            unpacked += packed if size < 0 else size
    return kind, length, unpacked


def _field(message: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffers table lies; None where it has its default."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", message, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", message, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None


def _scalar(message: bytes, table: int, number: int, form: str) -> int:
    place = _field(message, table, number)
    return 0 if place is None else int(struct.unpack_from(form, message, place)[0])


def _table(message: bytes, table: int, number: int) -> int | None:
    place = _field(message, table, number)
    return None if place is None else place + struct.unpack_from("<I", message, place)[0]
