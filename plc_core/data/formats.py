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

from plc_core.data.bounds import Bounded, Bounds
from plc_core.data.cells import read_cells
from plc_core.data.json_text import (
    CHUNK,
    Row,
    json_array,
    json_lines,
    one_value_a_line,
    without_mark,
)
from plc_core.data.pairs import DataError, scratch_file
from plc_core.data.table_headers import check_columns, check_names
from plc_core.data.tables import ARROW, table_rows

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
_OTHERS = {
    b"PK\x03\x04": "a zip file, as .xlsx is",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"\x1f\x8b": "compressed twice",
    b"\x28\xb5\x2f\xfd": "compressed twice",
}
# UTF-32 first: its mark begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


def rows_of_file(
    path: Path,
    encoding: str = "utf-8",
    advance: Callable[[int], None] | None = None,
    bounds: Bounds | None = None,
) -> Iterator[Row]:
    """The rows of a file, one in memory at a time, with messages in cells of text read.

    Args:
        path: the file; its format follows from its first bytes, and for text from its suffix.
        encoding: of text files; a byte order mark is skipped.
        advance: takes how many more bytes of the file were read.
        bounds: how much the file may hold; the defaults of `Bounds` without.

    Raises:
        DataError: naming file, row and byte or character, where the file is damaged, and the bound
            where it holds more than one allows.
    """
    bounds = bounds or Bounds()
    if not _is_encoding(encoding):
        raise DataError(f"There is no encoding {encoding!r} of text.")
    number = read = 0
    try:
        with path.open("rb") as raw:
            size = path.stat().st_size
            for number, value, place in _rows(path, raw, encoding, bounds):
                yield number, read_cells(value) if isinstance(value, dict) else value
                if advance is not None and number % 1000 == 0:
                    now = raw.tell() if place is None else int(place * size)
                    advance(now - read)
                    read = now
            if advance is not None:
                advance(size - read)
    except UnicodeError as error:
        raise _undecodable(path, encoding, error) from None
    except MemoryError:
        where = f"{path}, after row {number:,}" if number else str(path)
        raise DataError(f"{where}: what comes does not fit into memory.") from None
    except (EOFError, zlib.error, pa.ArrowException, OSError, OverflowError) as error:
        where = f"{path}, after row {number:,}" if number else str(path)
        raise DataError(
            f"{where}: the file is damaged, or cannot be read ({error}). Copy or write it anew."
        ) from None


def _is_encoding(name: Any) -> bool:
    try:
        return isinstance(codecs.getincrementaldecoder(name)().decode(b""), str)
    except (LookupError, ValueError, TypeError):
        return False


def _rows(
    path: Path, raw: IO[bytes], encoding: str, bounds: Bounds
) -> Iterator[tuple[int, Any, float | None]]:
    """Each row with its number, and how far into the file it is where the reader cannot say."""
    stream = _decompressed(path, raw, bounds)
    head = stream.peek(8)[:8]
    for magic, what in _OTHERS.items():
        if head.startswith(magic):
            raise DataError(f"{path} is {what}, which is not read here.")
    table = _suffix(path) in (".parquet", ".arrow") or head[:4] == b"PAR1" or head[:6] == ARROW
    parquet = _suffix(path) == ".parquet"
    if not table:
        yield from ((*row, None) for row in _text(path, stream, encoding, bounds))
    elif _compression(raw) is None:
        yield from table_rows(path, head, parquet, bounds)
    else:
        # Tables are read from several places of the file, compressed files from the front only.
        with scratch_file() as whole:
            with whole.open("wb") as sink:
                shutil.copyfileobj(_decompressed(path, raw, bounds), sink)
            yield from table_rows(whole, head, parquet, bounds)


def _suffix(path: Path) -> str:
    """The suffix that names the format, behind that of a compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zst", ".zstd"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _text(path: Path, stream: io.BufferedReader, encoding: str, bounds: Bounds) -> Iterator[Row]:
    if _suffix(path) in (".csv", ".tsv"):
        return _csv(path, stream, encoding, bounds)
    start = stream.peek(CHUNK)[:CHUNK].decode(encoding, "ignore").lstrip("\ufeff \t\r\n")
    if start.startswith("[") and not one_value_a_line(start):
        return json_array(path, stream, encoding, bounds)
    return json_lines(path, stream, encoding, bounds)


def _decompressed(path: Path, raw: IO[bytes], bounds: Bounds) -> io.BufferedReader:
    kind = _compression(raw)
    if kind is None:
        return io.BufferedReader(raw, CHUNK)  # type: ignore[arg-type]  # a file is a raw stream too
    stream: Any = gzip.GzipFile(fileobj=raw)
    if kind == "zstd":
        stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    return io.BufferedReader(Bounded(stream, path, bounds), CHUNK)


def _compression(raw: IO[bytes]) -> str | None:
    raw.seek(0)
    head = raw.read(4)
    raw.seek(0)
    return next((kind for magic, kind in _COMPRESSED.items() if head.startswith(magic)), None)


def _undecodable(path: Path, encoding: str, problem: UnicodeError) -> DataError:
    """Where a text is not in its encoding; looked for again, as it is decoded in pieces."""
    row, line, place, found = 1, 0, 0, None  # `line`: where it begins
    decoder = codecs.getincrementaldecoder(encoding)()
    with path.open("rb") as raw:
        stream = _decompressed(path, raw, Bounds(unpacked_gb=2**30))
        likely = _likely_encoding(stream.peek(4)[:4])
        while piece := stream.readline(CHUNK):
            waiting = len(decoder.getstate()[0])
            try:
                decoder.decode(piece)
            except UnicodeError as error:
                found = place - waiting + getattr(error, "start", 0)
                break
            place += len(piece)
            if piece.endswith(b"\n"):
                row, line = row + 1, place
    if found is None:
        row, line, found = row - (line == place), place, place
    where = f"line {row}, byte {found - line} of it and {found} of the file"
    return DataError(
        f"{path}, {where}: not {encoding} ({problem}). "
        f'Say encoding="{likely}" to load_pairs, or whatever it is written in; for a command write '
        f"it in UTF-8 first: iconv -f {likely} -t utf-8."
    )


def _likely_encoding(head: bytes) -> str:
    """What a text that is not UTF-8 is most likely written in, by its byte order mark."""
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    return "latin-1"


def _csv(path: Path, stream: io.BufferedReader, encoding: str, bounds: Bounds) -> Iterator[Row]:
    """Rows by the header's names, as csv.DictReader gives them; blank lines are none."""
    text = io.TextIOWrapper(stream, without_mark(encoding), newline="")
    limit = csv.field_size_limit(2**31 - 1)
    header = re.split(rb"[\r\n]", stream.peek(CHUNK)[:CHUNK])[0].decode(encoding, "ignore")
    delimiter = "\t" if _suffix(path) == ".tsv" else _delimiter(header.lstrip("\ufeff"))
    most, number, blank, held = bounds.row_bytes, 0, 0, 0

    def lines() -> Iterator[str]:
        nonlocal held
        while line := text.readline(most + 1):
            held += len(line)
            if held > most:
                raise bounds.row_too_large(f"{path}, row {number + 1:,}")
            yield line

    try:
        reader = csv.reader(lines(), delimiter=delimiter, strict=True)
        names = next(reader, [])
        check_columns(path, len(names))
        check_names(path, names)
        missing = dict.fromkeys(names)
        for cells in reader:
            held = 0
            if not cells:
                blank += 1
                if blank > bounds.rows:
                    raise bounds.too_many(path, "rows")
                continue
            number += 1
            row: dict[Any, Any] = dict(zip(names, cells, strict=False))
            if len(cells) > len(names):
                row[None] = cells[len(names) :]
            yield number, row if len(cells) >= len(names) else missing | row
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
