"""Files to raw rows: JSON lines, JSON, CSV, Parquet and Arrow, plain, gzip or zstd, by content."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from plc_core.data.json_text import CHUNK, Row, json_array, json_lines, one_value_a_line
from plc_core.data.pairs import DataError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


def rows_of_file(
    path: Path, encoding: str = "utf-8", advance: Callable[[int], None] | None = None
) -> Iterator[Row]:
    """The rows of a file, one in memory at a time; blank lines have a number and no row.

    Args:
        path: the file; its format follows from its first bytes, and for text from its suffix.
        encoding: of text files; a byte order mark is skipped.
        advance: takes how many more bytes of the file were read.

    Raises:
        DataError: naming file, row and byte or character, where the file is damaged.
    """
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise DataError(f"There is no encoding {encoding!r}.") from None
    number = read = 0
    with path.open("rb") as raw:
        head = raw.read(8)
        raw.seek(0)
        try:
            if head[:4] == b"PAR1":
                rows = _parquet(path)
            elif head[:6] == b"ARROW1" or _suffix(path) == ".arrow":
                rows = _arrow(path)
            else:
                rows = _text(path, raw, encoding)
            for number, value in rows:
                yield number, value
                if advance is not None and number % 1000 == 0:
                    advance(raw.tell() - read)
                    read = raw.tell()
        except UnicodeDecodeError:
            raise _undecodable(path, encoding) from None
        except (EOFError, zlib.error, pa.ArrowException, OSError) as error:
            where = f"{path}, after row {number:,}"
            raise DataError(f"{where}: the file is damaged ({error}).") from None
        if advance is not None:
            advance(path.stat().st_size - read)


def _suffix(path: Path) -> str:
    """The suffix that names the format, behind that of a compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zst", ".zstd"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _text(path: Path, raw: IO[bytes], encoding: str) -> Iterator[Row]:
    stream = _decompressed(raw)
    if _suffix(path) in (".csv", ".tsv"):
        return _csv(path, stream, encoding)
    start = stream.peek(CHUNK)[:CHUNK].lstrip(codecs.BOM_UTF8 + b" \t\r\n")
    if start.startswith(b"[") and not one_value_a_line(start):
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
    head = raw.read(4)
    raw.seek(0)
    return next((kind for magic, kind in _COMPRESSED.items() if head.startswith(magic)), None)


def _undecodable(path: Path, encoding: str) -> DataError:
    """Where a text is not in its encoding; looked for again, as it is decoded in pieces."""
    row, offset, byte = 1, 0, 0
    decoder = codecs.getincrementaldecoder(encoding)()
    with path.open("rb") as raw:
        for line in _decompressed(raw):
            try:
                decoder.decode(line)
            except UnicodeDecodeError as error:
                byte = error.start
                break
            offset += len(line)
            row += 1
    return DataError(
        f"{path}, line {row}, byte {byte} of it and {offset + byte} of the file: not {encoding}. "
        'Say encoding="latin-1", or whatever it is written in.'
    )


_MESSAGES = re.compile(r"\s*[\[{]\s*[\[{]?\s*[\"'](role|content|from|value)[\"']\s*:")


def _csv(path: Path, stream: io.BufferedReader, encoding: str) -> Iterator[Row]:
    """Rows by the header's names; a cell may hold messages as JSON, an empty score is none."""
    text = io.TextIOWrapper(stream, "utf-8-sig" if encoding == "utf-8" else encoding, newline="")
    delimiter = "\t" if _suffix(path) == ".tsv" else ","
    limit = csv.field_size_limit(2**31 - 1)
    number = 0
    try:
        reader = csv.DictReader(text, delimiter=delimiter, strict=True)
        for number, row in enumerate(reader, start=1):
            yield number, {name: _cell(value) for name, value in row.items()}
    except csv.Error as error:
        raise DataError(f"{path}, after row {number}: no CSV ({error}).") from None
    finally:
        csv.field_size_limit(limit)


def _cell(value: Any) -> Any:
    if not isinstance(value, str) or not _MESSAGES.match(value):
        return value
    try:
        return json.loads(value)
    except ValueError:
        # A list as Python prints it would be trained on, brackets and all.
        return _Unreadable(value)


class _Unreadable:
    """Messages in a cell that are no JSON: a value of a type that no field has."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _parquet(path: Path) -> Iterator[Row]:
    with pq.ParquetFile(path) as file:
        yield from _numbered(file.iter_batches(batch_size=500))


def _arrow(path: Path) -> Iterator[Row]:
    with pa.OSFile(str(path), "rb") as source:
        head = source.read(6)
        source.seek(0)
        if head == b"ARROW1":
            file = pa.ipc.open_file(source)
            yield from _numbered(file.get_batch(n) for n in range(file.num_record_batches))
        else:
            yield from _numbered(iter(pa.ipc.open_stream(source)))


def _numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for start in range(0, len(batch), 500):
            for row in batch.slice(start, 500).to_pylist():
                number += 1
                yield number, row
