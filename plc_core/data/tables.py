"""Rows of Parquet and Arrow files, a few in memory at a time however large they are decoded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from plc_core.data.bounds import Bounds
from plc_core.data.json_text import Row
from plc_core.data.pairs import DataError
from plc_core.data.table_headers import check_arrow, check_columns, check_names, parquet_plan

ARROW = b"ARROW1"
_AT_ONCE = 500  # rows
_BYTES_AT_ONCE = 2**24
_MOST_VALUES = 2**24


def table_rows(
    path: Path, head: bytes, parquet: bool, bounds: Bounds
) -> Iterator[tuple[int, Any, float | None]]:
    """Each row with its number, and its place in the file as a share.

    Args:
        path: a file of Parquet, of Arrow's file format or of its stream.
        head: its first bytes.
        parquet: whether its name says Parquet, where its first bytes say nothing.
        bounds: of a row, and of all rows together.

    Raises:
        DataError: where a piece of it holds too much, or a value cannot be read.
    """
    if head[:4] == b"PAR1" or (parquet and head[:6] != ARROW):
        with pq.ParquetFile(path) as file:
            dictionaries, rows_at_once = parquet_plan(path, file)
        with pq.ParquetFile(path, read_dictionary=dictionaries) as file:
            batches = (
                batch
                for group, rows in enumerate(rows_at_once)
                for batch in file.iter_batches(batch_size=rows, row_groups=[group])
            )
            for number, row in _numbered(path, batches, bounds):
                yield number, row, number / max(file.metadata.num_rows, 1)
        return
    start = 8 if head[:6] == ARROW else 0
    with pa.OSFile(str(path), "rb") as source:
        if start:
            pa.ipc.open_file(source)  # a file that was cut off has no end, which a stream may lack
        check_arrow(path, start)
        # The file format is a stream in a frame, and is read as what was checked.
        source.seek(start)
        reader = pa.ipc.open_stream(source)
        check_columns(path, len(reader.schema))
        check_names(path, reader.schema.names)
        for number, row in _numbered(path, iter(reader), bounds):
            yield number, row, source.tell() / source.size()


def _numbered(path: Path, batches: Iterator[pa.RecordBatch], bounds: Bounds) -> Iterator[Row]:
    number, left = 0, bounds.unpacked_bytes
    for batch in batches:
        batch.validate(full=True)  # a damaged one can crash who reads its values
        sizes = _row_bytes(path, batch.to_struct_array())
        ends = np.cumsum(sizes)
        start = 0
        while start < len(batch):
            if sizes[start] > bounds.row_bytes:
                raise bounds.row_too_large(f"{path}, row {number + 1:,}")
            before = ends[start] - sizes[start]
            end = int(np.searchsorted(ends, before + _BYTES_AT_ONCE, "right"))
            end = min(max(end, start + 1), start + _AT_ONCE)
            left -= int(ends[end - 1] - before)
            if left < 0:
                raise bounds.file_too_large(path)
            try:
                rows = batch.slice(start, end - start).to_pylist()
            except (ValueError, OverflowError, SystemError) as error:
                where = f"rows {number + 1:,} to {number + end - start:,}"
                raise DataError(f"{path}, {where}: a value cannot be read ({error}).") from None
            for row in rows:
                number += 1
                yield number, row
            start = end


def _row_bytes(path: Path, array: Any) -> NDArray[np.int64]:
    """About as many bytes as each value of an array would take as JSON."""
    kind = array.type
    if len(array) > _MOST_VALUES:
        raise DataError(
            f"{path}: a batch in it holds {len(array):,} values of a column, more than are decoded "
            "at once. Write it anew in smaller pieces, as of 1,000 rows."
        )
    if isinstance(array, pa.ExtensionArray):
        return _row_bytes(path, array.storage)
    if (width := _fixed_width(kind)) is not None:
        return np.full(len(array), width, np.int64)
    if pa.types.is_dictionary(kind):
        own = np.append(_row_bytes(path, array.dictionary), 2)
        return own[array.indices.cast(pa.int64()).fill_null(len(own) - 1).to_numpy()]
    if _is_text(kind):
        return 2 + pc.binary_length(array).fill_null(0).cast(pa.int64()).to_numpy()
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)
        return 2 + views[array.offset : array.offset + len(array), 0].astype(np.int64)
    if pa.types.is_struct(kind):
        columns = [_row_bytes(path, column) for column in array.flatten()]
        return sum(columns, np.full(len(array), 2 + 4 * len(columns), np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        offsets = array.offsets.to_numpy().astype(np.int64)
        values = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
        widths = [_fixed_width(inner.type) for inner in values]
        found = 2 + np.diff(offsets) * sum(1 + (width or 0) for width in widths)
        for inner, width in zip(values, widths, strict=True):
            if width is None:
                ends = np.append(0, np.cumsum(_row_bytes(path, inner)))
                found += ends[offsets[1:]] - ends[offsets[:-1]]
        return found
    if pa.types.is_fixed_size_list(kind):
        length = kind.list_size
        width = _fixed_width(kind.value_type)
        if width is not None:
            return np.full(len(array), 2 + length * (1 + width), np.int64)
        inner = array.values.slice(array.offset * length, len(array) * length)
        return 2 + _row_bytes(path, inner).reshape(len(array), length).sum(1) + length
    raise DataError(f"{path} has a column of the type {kind}, which is not read here.")


def _fixed_width(kind: pa.DataType) -> int | None:
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return 4
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width) + 2
    return 8 if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) else None


def _is_text(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
        )
    )
