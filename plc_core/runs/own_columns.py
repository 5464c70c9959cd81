"""The columns that a user's rows had beside the fields of a pair: a run keeps them as JSON text.

Here they become columns again, under their own names and with one type each. No torch here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TAKEN = (
    *("prompt", "chosen", "rejected", "score_chosen", "score_rejected", "votes", "source", "split"),
    *("messages", "completion", "image", "images", "chat_template_kwargs"),
    *("prompt_ids", "chosen_ids", "rejected_ids", "ref_chosen_logps", "ref_rejected_logps"),
)
"""Names that mean something of their own to `load_pairs` or to TRL's `DPOTrainer`."""

_MOST_FIELDS = 256


@dataclass(frozen=True)
class OwnColumns:
    """The user's columns of a run.

    Attributes:
        types: by name; None where no type holds all values, which are then text or JSON text.
        sides: pairs of columns that describe the chosen and the rejected answer.
    """

    types: dict[str, pa.DataType | None]
    sides: tuple[tuple[str, str], ...]

    def table(self, metadata: pa.ChunkedArray | None) -> pa.Table:
        """The columns of a batch of pairs, of which `metadata` is what the run keeps."""
        if metadata is None or not self.types:
            return pa.table({})
        rows = _rows(metadata)
        return pa.table(
            {
                name: pa.array([row.get(name) for row in rows], kind)
                if kind is not None
                else pa.array([_text(row.get(name)) for row in rows], pa.string())
                for name, kind in self.types.items()
            }
        )

    def name(self, name: str) -> str:
        """The name that a column gets in an export: `own_<name>` where its own is `TAKEN`."""
        return f"own_{name}" if name in TAKEN else name


def own_columns(file: pq.ParquetFile, earlier: Collection[str] = ()) -> OwnColumns:
    """The user's columns of the pairs in `file`, from all rows.

    Args:
        file: pairs.parquet of a run.
        earlier: columns that an earlier export of this program added, told by `run_pair_id`.
    """
    types: dict[str, pa.DataType | None] = {}
    if "metadata" in file.schema_arrow.names:
        for batch in file.iter_batches(columns=["metadata"]):
            rows = _rows(batch.column(0))
            for name in dict.fromkeys(name for row in rows for name in row):
                found = _type_of([row.get(name) for row in rows])
                types[name] = _joined(types[name], found) if name in types else found
    if "run_pair_id" in types:
        types = {name: kind for name, kind in types.items() if name not in earlier}
    # A struct of very many fields, or of none, is not a column that a table can have.
    types = {name: kind if _is_plain(kind) else None for name, kind in types.items()}
    named = [(name, name.replace("chosen", "rejected")) for name in types if "chosen" in name]
    sides = tuple((one, other) for one, other in named if other in types)
    for one, other in sides:
        types[one] = types[other] = _joined(types[one], types[other])
    return OwnColumns(types, sides)


def _rows(metadata: pa.Array | pa.ChunkedArray) -> list[dict[str, Any]]:
    """The user's columns of each row; none where a run holds something else there."""
    rows = []
    for text in metadata.to_pylist():
        row: Any = {}
        if isinstance(text, str) and text not in ("", "{}"):
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(text)
        rows.append(row if isinstance(row, dict) else {})
    return rows


def _type_of(values: list[Any]) -> pa.DataType | None:
    try:
        return pa.array(values).type
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None  # of several kinds, too large a number, or text that is not Unicode


def _joined(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    if one is None or other is None or one == other:
        return one if one == other else None
    schemas = [pa.schema([("x", kind)]) for kind in (one, other)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return None


def _is_plain(kind: pa.DataType | None) -> bool:
    def fields(of: pa.DataType) -> float:
        if pa.types.is_list(of):
            return fields(of.value_type)
        if pa.types.is_struct(of):
            return sum(fields(field.type) for field in of) if of.num_fields else float("inf")
        return 1

    return kind is not None and fields(kind) <= _MOST_FIELDS


def _text(value: Any) -> str | None:
    """A value of a column without a type of its own: text as it is, anything else as JSON."""
    if value is None:
        return None
    said = value if isinstance(value, str) else json.dumps(value)
    # A lone surrogate is in no Parquet file.
    return said.encode("utf-8", "backslashreplace").decode()
