"""Files to raw rows: JSON lines, JSON, CSV, Parquet and Arrow, plain, gzip or zstd, by content."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from plc_core.data.cells import read_cells
from plc_core.data.json_text import (
    CHUNK,
    Row,
    json_array,
    json_lines,
    one_value_a_line,
    without_mark,
)
from plc_core.data.pairs import DataError
from plc_core.data.storage import scratch_file

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
_ARROW = b"ARROW1"
_OTHERS = {
    b"PK\x03\x04": "a zip file, as .xlsx is",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"\x1f\x8b": "compressed twice",
    b"\x28\xb5\x2f\xfd": "compressed twice",
}
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


def rows_of_file(
    path: Path, encoding: str = "utf-8", advance: Callable[[int], None] | None = None
) -> Iterator[Row]:
    """The rows of a file, one in memory at a time, with messages in cells of text read.

    Args:
        path: the file; its format follows from its first bytes, and for text from its suffix.
        encoding: of text files; a byte order mark is skipped.
        advance: takes how many more bytes of the file were read.

    Raises:
        DataError: naming file, row and byte or character, where the file is damaged.
    """
    if not _is_encoding(encoding):
        raise DataError(f"There is no encoding {encoding!r} of text.")
    number = read = 0
    try:
        with path.open("rb") as raw:
            size = path.stat().st_size
            for number, value, place in _rows(path, raw, encoding):
                yield number, read_cells(value) if isinstance(value, dict) else value
                if advance is not None and number % 1000 == 0:
                    now = raw.tell() if place is None else int(place * size)
                    advance(now - read)
                    read = now
            if advance is not None:
                advance(size - read)
    except UnicodeError as error:
        raise _undecodable(path, encoding, error) from None
    except (EOFError, zlib.error, pa.ArrowException, OSError, OverflowError) as error:
        where = f"{path}, after row {number:,}" if number else str(path)
        raise DataError(f"{where}: the file is damaged, or cannot be read ({error}).") from None


def _is_encoding(name: Any) -> bool:
    try:
        return isinstance(codecs.getincrementaldecoder(name)().decode(b""), str)
    except (LookupError, ValueError, TypeError):
        return False


def _rows(path: Path, raw: IO[bytes], encoding: str) -> Iterator[tuple[int, Any, float | None]]:
    """Each row with its number, and how far into the file it is where the reader cannot say."""
    stream = _decompressed(raw)
    head = stream.peek(8)[:8]
    for magic, what in _OTHERS.items():
        if head.startswith(magic):
            raise DataError(f"{path} is {what}, which is not read here.")
    table = _suffix(path) in (".parquet", ".arrow") or head[:4] == b"PAR1" or head[:6] == _ARROW
    if not table:
        yield from ((*row, None) for row in _text(path, stream, encoding))
    elif _compression(raw) is None:
        yield from _table(path, head)
    else:
        # Tables are read from several places of the file, compressed files from the front only.
        with scratch_file() as whole:
            with whole.open("wb") as sink:
                shutil.copyfileobj(_decompressed(raw), sink)
            yield from _table(whole, head)


def _suffix(path: Path) -> str:
    """The suffix that names the format, behind that of a compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zst", ".zstd"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _text(path: Path, stream: io.BufferedReader, encoding: str) -> Iterator[Row]:
    if _suffix(path) in (".csv", ".tsv"):
        return _csv(path, stream, encoding)
    start = stream.peek(CHUNK)[:CHUNK].decode(encoding, "ignore").lstrip("\ufeff \t\r\n")
    if start.startswith("[") and not one_value_a_line(start):
        return json_array(path, stream, encoding)
    return json_lines(path, stream, encoding)


def _decompressed(raw: IO[bytes]) -> io.BufferedReader:
    kind = _compression(raw)
    stream: Any = raw
    if kind == "gzip":
        stream = gzip.GzipFile(fileobj=raw)
    elif kind == "zstd":
        stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    return io.BufferedReader(stream, CHUNK)


def _compression(raw: IO[bytes]) -> str | None:
    raw.seek(0)
    head = raw.read(4)
    raw.seek(0)
    return next((kind for magic, kind in _COMPRESSED.items() if head.startswith(magic)), None)


def _undecodable(path: Path, encoding: str, problem: UnicodeError) -> DataError:
    """Where a text is not in its encoding; looked for again, as it is decoded in pieces."""
    row, offset, byte = 1, 0, 0
    decoder = codecs.getincrementaldecoder(encoding)()
    with path.open("rb") as raw:
        for line in _decompressed(raw):
            try:
                decoder.decode(line)
            except UnicodeError as error:
                byte = getattr(error, "start", 0)
                break
            offset += len(line)
            row += 1
        else:
            row, byte = row - 1, 0
    where = f"line {row}, byte {byte} of it and {offset + byte} of the file"
    return DataError(
        f"{path}, {where}: not {encoding} ({problem}). "
        'Say encoding="latin-1", or whatever it is written in.'
    )


def _csv(path: Path, stream: io.BufferedReader, encoding: str) -> Iterator[Row]:
    """Rows by the header's names."""
    text = io.TextIOWrapper(stream, without_mark(encoding), newline="")
    header = re.split(rb"[\r\n]", stream.peek(CHUNK)[:CHUNK])[0].decode(encoding, "ignore")
    delimiter = "\t" if _suffix(path) == ".tsv" else _delimiter(header.lstrip("\ufeff"))
    limit = csv.field_size_limit(2**31 - 1)
    number = 0
    try:
        reader = csv.DictReader(text, delimiter=delimiter, strict=True)
        names = list(reader.fieldnames or ())
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"{path} has two columns of the name {twice[0]!r}.")
        for number, row in enumerate(reader, start=1):
            yield number, row
    except csv.Error as error:
        raise DataError(f"{path}, after row {number}: no CSV ({error}).") from None
    finally:
        csv.field_size_limit(limit)


def _delimiter(header: str) -> str:
    """The comma, or what gives the header more of the names that are looked for."""

    def known(delimiter: str) -> int:
        return len(_COLUMNS.intersection(next(csv.reader([header], delimiter=delimiter), [])))

    best = max(",;\t", key=known)
    return ";" if not known(best) and ";" in header and "," not in header else best


_COLUMNS = {"prompt", "chosen", "rejected", "response_a", "response_b", "votes", "system"}


def _table(path: Path, head: bytes) -> Iterator[tuple[int, Any, float | None]]:
    """Rows of Parquet or Arrow, and their place in the file as a share."""
    if head[:4] == b"PAR1" or (_suffix(path) == ".parquet" and head[:6] != _ARROW):
        with pq.ParquetFile(path) as file:
            for number, row in _numbered(path, file.iter_batches(batch_size=500)):
                yield number, row, number / file.metadata.num_rows
        return
    with pa.OSFile(str(path), "rb") as source:
        if head[:6] == _ARROW:
            reader = pa.ipc.open_file(source)
            batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
        else:
            batches = iter(pa.ipc.open_stream(source))
        for number, row in _numbered(path, batches):
            yield number, row, source.tell() / source.size()


def _numbered(path: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    number = 0
    for batch in batches:
        batch.validate(full=True)  # a damaged one can crash who reads its values
        for start in range(0, len(batch), 500):
            try:
                rows = batch.slice(start, 500).to_pylist()
            except (ValueError, OverflowError, SystemError) as error:
                where = f"rows {number + 1:,} to {number + len(batch) - start:,}"
                raise DataError(f"{path}, {where}: a value cannot be read ({error}).") from None
            for row in rows:
                number += 1
                yield number, row
