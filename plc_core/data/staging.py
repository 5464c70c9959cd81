"""The first pass of validation: a row becomes a staged pair and a few hashes, or a finding."""

from __future__ import annotations

import hashlib
import marshal
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plc_core.data.bounds import Bounds
from plc_core.data.cells import read_cells
from plc_core.data.contamination import EvaluationPrompts
from plc_core.data.dialogues import plain_text
from plc_core.data.pairs import SCHEMA, DataError
from plc_core.data.rows import normalised
from plc_core.data.rules import FINDINGS, Action, RowError
from plc_core.data.shapes import plain_row
from plc_core.data.storage import BATCH_BYTES, BATCH_ROWS
from plc_core.data.votes import is_level


class RawRow(NamedTuple):
    """A row as it was read: its file, its number in it from 1, and the split of the file."""

    file: str
    number: int
    value: Any
    split: str = "train"


@dataclass(frozen=True)
class Options:
    """What is done with rows besides reading them.

    Attributes:
        actions: of the rules that shall not have their default.
        evaluation: prompts to find in the training prompts.
        columns: the names of the rows' fields, by the names that are read, as {"prompt": "input"}.
        split: the only split to keep; None keeps all.
        sample: the number of pairs to keep, chosen by hash; None keeps all.
        seed: of the sample.
        bounds: how many rows and pairs there may be.
    """

    actions: Mapping[str, str] = field(default_factory=dict)
    evaluation: EvaluationPrompts | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    split: str | None = None
    sample: int | None = None
    seed: int = 0
    bounds: Bounds = field(default_factory=Bounds)


STAGED = pa.schema(
    [
        *SCHEMA,
        pa.field("reasons", pa.list_(pa.string())),  # of the marks
        pa.field("file", pa.string()),
        pa.field("row", pa.int64()),
    ]
)


_SMALL_ROW, _KEPT_ROWS = 1_000, 1_000  # bytes of a row that is kept with what became of it; rows
_MOST_CHARACTERS = 2**29  # of up to four bytes; offsets of text in an Arrow batch end at 2 GiB


class Reading:
    """The first pass: one row after the other."""

    def __init__(
        self,
        source: str,
        options: Options,
        actions: Mapping[str, Action],
        log: pa.RecordBatchWriter,
    ) -> None:
        self.source = source
        self.options = options
        self.actions = actions
        self.log = log
        self.facts = Facts()
        self.rows = 0
        self._problems: list[tuple[Any, ...]] = []  # in the order of FINDINGS
        self._listed: tuple[Any, ...] = ()  # the last of them
        self._left_out: dict[bytes, tuple[Any, ...]] = {}  # what became of rows that are no pairs

    def staged(self, rows: Iterable[RawRow]) -> Iterator[pa.RecordBatch]:
        """The pairs in batches; rows that are none go to the log of findings."""
        batch: list[dict[str, Any]] = []
        size, pair, place = 0, None, ("", "")
        for raw in rows:
            self.rows += 1
            if self.rows > self.options.bounds.rows:
                raise self.options.bounds.too_many(Path(raw.file), "rows")
            if place != (raw.file, raw.split):
                place = raw.file, raw.split
                self._left_out.clear()
            # A small file can hold millions of rows that are none: each becomes what its like did.
            key = _written(raw.value) if pair is None else None
            if key is not None and (known := self._left_out.get(key)):
                self._list((*known[:3], raw.number, *known[4:]))
                continue
            pair = self._pair(raw)
            if pair is None:
                if key is not None and len(self._left_out) < _KEPT_ROWS:
                    self._left_out[key] = self._listed
                continue
            if len(self.facts) == self.options.bounds.pairs:
                raise self.options.bounds.too_many(Path(raw.file), "pairs")
            self.facts.add(pair, raw.file, raw.number)
            batch.append(pair)
            size += _characters(pair)
            if (
                len(batch) >= BATCH_ROWS or 4 * size > BATCH_BYTES
            ):  # a character has 4 bytes at most
                yield pa.RecordBatch.from_pylist(batch, STAGED)
                batch, size = [], 0
        if batch:
            yield pa.RecordBatch.from_pylist(batch, STAGED)
        self._flush()

    def _pair(self, raw: RawRow) -> dict[str, Any] | None:
        try:
            if not isinstance(raw.value, Mapping):
                kind = type(raw.value).__name__
                raise RowError("wrong-type", f"expected an object, found a {kind}")
            row = plain_row(read_cells(renamed(raw.value, self.options.columns)))
            pair, marks = normalised(row, self.source or raw.file, raw.split)
        except RowError as problem:
            self._drop(raw, None, problem.rule, str(problem))
            return None
        if _characters(pair) > _MOST_CHARACTERS:
            self._drop(
                raw, pair["pair_id"], "wrong-type", "its texts have more than 2**29 characters"
            )
            return None
        if self.options.evaluation is not None:
            found = self.options.evaluation.find(pair["prompt"])
            marks += [found] if found else []
        for rule, reason in marks:
            if self.actions[rule] != "keep":
                self._drop(raw, pair["pair_id"], rule, reason)
                return None
        pair["marks"] = [rule for rule, _ in marks]
        pair["reasons"] = [_sayable(reason) for _, reason in marks]
        return pair | {"file": raw.file, "row": raw.number}

    def _drop(self, raw: RawRow, pair: str | None, rule: str, reason: str) -> None:
        if self.actions[rule] == "error":
            file = f" of {raw.file}" if raw.file else ""
            raise DataError(f"Row {raw.number:,}{file}, {rule}: {reason}.")
        self._list((rule, "drop", raw.file, raw.number, pair, _sayable(reason)))

    def _list(self, problem: tuple[Any, ...]) -> None:
        self._problems.append(problem)
        self._listed = problem
        if len(self._problems) >= BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._problems:
            columns = zip(*self._problems, strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, FINDINGS, strict=True)]
            self.log.write_batch(pa.RecordBatch.from_arrays(arrays, schema=FINDINGS))
            self._problems = []


def _written(value: Any) -> bytes | None:
    """A small row as bytes, which are others for 1, 1.0 and true; None for any other row."""
    try:
        written = marshal.dumps(value, 2)  # without references: it hangs on the value alone
    except ValueError:
        return None
    return written if len(written) < _SMALL_ROW else None


def renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> Mapping[str, Any]:
    """A row with its fields under the names that are read, as `Options.columns` maps them."""
    if not columns:
        return row
    taken = set(columns.values())
    # A field that gives way to a mapped one is kept beside it, as metadata.
    rest = {
        f"{name}_unmapped" if name in columns else name: value
        for name, value in row.items()
        if name not in taken
    }
    return rest | {ours: row.get(theirs) for ours, theirs in columns.items()}


def _characters(pair: Mapping[str, Any]) -> int:
    texts = [turn["content"] for turn in pair["prompt"]]
    return sum(map(len, (*texts, pair["chosen"], pair["rejected"], pair["metadata"])))


def finding(rule: str, reason: str, action: Action, row: Mapping[str, Any]) -> dict[str, Any]:
    places = {name: row[name] for name in ("file", "row", "pair_id")}
    return {"rule": rule, "action": action, "reason": _sayable(reason), **places}


def _sayable(reason: str) -> str:
    # Reasons quote the data, which may hold what UTF-8 cannot.
    return reason.encode("utf-8", "backslashreplace").decode()


Numbers: TypeAlias = NDArray[Any]
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Facts:
    """What the rules need of every pair: 64-bit hashes of its texts, its split and its row."""

    def __init__(self) -> None:
        self._columns = {
            name: array("Q") for name in ("pair", "votes", "prompt", "chosen", "rejected", "row")
        }
        self._split, self._file = array("L"), array("L")
        self._tied = array("b")
        self._splits: dict[str, int] = {}
        self._files: dict[str, int] = {}

    def add(self, pair: dict[str, Any], file: str, row: int) -> None:
        """Take the facts of one pair."""
        turns = [(turn["role"], plain_text(turn["content"])) for turn in pair["prompt"]]
        self._columns["pair"].append(int(pair["pair_id"], 16))
        self._columns["prompt"].append(_hash(repr(turns)))
        for side, reasoning in zip(("chosen", "rejected"), pair["reasoning"], strict=True):
            text = plain_text(pair[side])
            self._columns[side].append(_hash(f"{reasoning}\0{text}" if reasoning else text))
        votes = pair["votes"] or []
        self._columns["votes"].append(_hash(repr(sorted(votes))))
        self._columns["row"].append(row)
        self._tied.append(is_level(votes))
        self._split.append(self._splits.setdefault(pair["split"], len(self._splits)))
        self._file.append(self._files.setdefault(file, len(self._files)))

    def __len__(self) -> int:
        return len(self._split)

    @cached_property
    def splits(self) -> list[str]:
        """The names of the splits, by their numbers."""
        return list(self._splits)

    @cached_property
    def files(self) -> list[str]:
        """The names of the files, by their numbers."""
        return list(self._files)

    def __getitem__(self, name: str) -> Numbers:
        return np.frombuffer(self._columns[name], np.uint64) if len(self) else np.empty(0, "u8")

    @property
    def voted(self) -> Numbers:
        """Whether each pair has votes."""
        return self["votes"] != np.uint64(_hash(repr([])))

    @property
    def tied(self) -> Numbers:
        """Whether each pair's votes are level, so that its orientation says nothing."""
        return np.array(self._tied, dtype=bool)

    @property
    def split(self) -> Numbers:
        """Number of each pair's split in `splits`."""
        return np.array(self._split, np.int64)

    def split_of(self, number: int) -> int:
        """The number of a pair's split in `splits`."""
        return self._split[number]

    def place(self, number: int) -> str:
        """Where a pair was read, for a person."""
        file = f" of {self.files[self._file[number]]}" if len(self.files) > 1 else ""
        return f"row {self._columns['row'][number]:,}{file}"


def splitmix64(values: Numbers, seed: int) -> Numbers:
    """A 64-bit hash of each value under a seed, by the finaliser of splitmix64 (Steele 2014)."""
    with np.errstate(over="ignore"):
        x = values.astype(np.uint64) + np.uint64(seed + 1) * _MULTIPLIER
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def mixed(*columns: Numbers) -> Numbers:
    """One hash for each row of several columns of hashes."""
    result = np.zeros_like(columns[0])
    for column in columns:
        result = splitmix64(result ^ column, 0)
    return result


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
