"""Raw rows to validated pairs on disk: every row becomes a pair, or a finding that says why not."""

from __future__ import annotations

import marshal
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from plc_core.data import cross_pair_checks as checks
from plc_core.data.bounds import Bounds
from plc_core.data.cells import read_cells
from plc_core.data.contamination import EvaluationPrompts
from plc_core.data.cross_pair_checks import Facts
from plc_core.data.pairs import (
    BATCH_BYTES,
    BATCH_ROWS,
    SCHEMA,
    DataError,
    Pairs,
    dataset_from_batches,
    mapped_table,
    read_batches,
    repeated_id,
    scratch_file,
    set_column,
    write_batches,
)
from plc_core.data.rows import normalised, renamed
from plc_core.data.rules import FINDINGS, Action, RowError, chosen_actions
from plc_core.data.shapes import plain_row
from plc_core.storage.files import RunError


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


def pairs_from_rows(
    rows: Iterable[Mapping[str, Any]],
    source: str,
    split: str = "train",
    options: Options | None = None,
) -> Pairs:
    """Validated pairs of rows in memory, numbered from 1.

    Raises:
        DataError: where a rule with the action error finds something.
    """
    raw = (RawRow("", number, row, split) for number, row in enumerate(rows, 1))
    return validated(raw, source, options or Options())


def validated(
    rows: Iterable[RawRow], source: str, options: Options, folder: Path | None = None
) -> Pairs:
    """Validated pairs of raw rows, streamed through Arrow files.

    Two passes: rows are normalised and looked at one by one, which leaves a few numbers of each;
    then the rules over all pairs decide, and the kept pairs are written with their marks.

    Args:
        source: the source of rows that do not name their own.
        folder: where pairs.arrow and findings.arrow are kept; None keeps them as long as they are
            used.

    Raises:
        DataError: where a rule with the action error finds something.
    """
    actions = chosen_actions(options.actions)
    try:
        with scratch_file() as staged, scratch_file() as found:
            with pa.OSFile(str(found), "wb") as sink, pa.ipc.new_stream(sink, FINDINGS) as log:
                reading = _Reading(source, options, actions, log)
                write_batches(staged, _STAGED, reading.staged(rows))
                decided = _Decided(reading.facts, options, actions)
                batches = decided.pairs(staged, log)
                if folder is None:
                    dataset, path = dataset_from_batches(SCHEMA, batches), None
                else:
                    path = folder / "pairs.arrow"
                    write_batches(path, SCHEMA, batches)
                    dataset = Dataset.from_file(str(path))
            if folder is not None:
                shutil.copyfile(found, folder / "findings.arrow")
            findings = mapped_table(found)
    except OSError as error:
        raise RunError(f"The pairs cannot be written ({error}). Is the disk full?") from None
    left_out = pc.sum(pc.equal(findings["action"], "drop")).as_py() or 0
    if len(dataset) + left_out != reading.rows:
        raise AssertionError(f"{reading.rows} rows came in, {len(dataset)} + {left_out} out.")
    return Pairs(dataset, findings, reading.rows, {"source": source}, path)


# ---- the first pass ------------------------------------------------------------------------------

_STAGED = pa.schema(
    [
        *SCHEMA,
        pa.field("reasons", pa.list_(pa.string())),  # of the marks
        pa.field("file", pa.string()),
        pa.field("row", pa.int64()),
    ]
)


_SMALL_ROW, _KEPT_ROWS = 1_000, 1_000  # bytes of a row that is kept with what became of it; rows
_MOST_CHARACTERS = 2**29  # of up to four bytes; offsets of text in an Arrow batch end at 2 GiB


class _Reading:
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
                yield pa.RecordBatch.from_pylist(batch, _STAGED)
                batch, size = [], 0
        if batch:
            yield pa.RecordBatch.from_pylist(batch, _STAGED)
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


def _characters(pair: Mapping[str, Any]) -> int:
    texts = [turn["content"] for turn in pair["prompt"]]
    return sum(map(len, (*texts, pair["chosen"], pair["rejected"], pair["metadata"])))


def _finding(rule: str, reason: str, action: Action, row: Mapping[str, Any]) -> dict[str, Any]:
    places = {name: row[name] for name in ("file", "row", "pair_id")}
    return {"rule": rule, "action": action, "reason": _sayable(reason), **places}


def _sayable(reason: str) -> str:
    # Reasons quote the data, which may hold what UTF-8 cannot.
    return reason.encode("utf-8", "backslashreplace").decode()


# ---- the second pass -----------------------------------------------------------------------------

_RULES: dict[str, Callable[[Facts, checks.Numbers], checks.Found]] = {
    "duplicate": checks.duplicates,
    "other-votes": checks.other_votes,
    "near-duplicate": checks.near_duplicates,
    "contradiction": checks.contradictions,
    "cycle": checks.cycles,
    "split-leak": checks.split_leaks,
}


class _Decided:
    """The second pass: which pairs stay, which rules over all pairs they fall under."""

    def __init__(self, facts: Facts, options: Options, actions: Mapping[str, Action]) -> None:
        self.facts = facts
        self.actions = actions
        self.alive = np.ones(len(facts), dtype=bool)
        self.found: list[tuple[str, Action, checks.Found]] = []
        for rule, find in _RULES.items():
            self._apply(rule, find(facts, self.alive))
        self._apply("other-split", checks.other_splits(facts, self.alive, options.split))
        sampled = checks.not_sampled(facts, self.alive, options.sample, options.seed)
        self._apply("not-sampled", sampled)
        self.repetitions = checks.repetitions(facts, self.alive)

    def _apply(self, rule: str, found: checks.Found) -> None:
        action = self.actions[rule]
        if action == "error" and len(found.members):
            place = self.facts.place(int(found.members[0]))
            raise DataError(f"{len(found.members):,} rows, {rule}; {place}: {found.reason(0)}.")
        if action == "drop":
            self.alive[found.members] = False
        self.found.append((rule, action, found))

    def pairs(self, staged: Path, log: pa.RecordBatchWriter) -> Iterator[pa.RecordBatch]:
        """The kept pairs with all their marks, batch by batch; the findings go to the log."""
        start = 0
        for batch in read_batches(staged):
            alive = self.alive[start : start + len(batch)]
            names = ["pair_id", "marks", "reasons", "file", "row"]
            rows = batch.select(names).to_pylist()
            for row, before in zip(rows, self.repetitions[start : start + len(batch)], strict=True):
                row["pair_id"] = repeated_id(row["pair_id"], int(before))
            marks = [
                [*zip(row["marks"], row["reasons"], strict=True)] if keep else []
                for row, keep in zip(rows, alive, strict=True)
            ]
            findings = []
            for rule, action, place, number in self._of_batch(start, start + len(batch)):
                mark = (rule, place.reason(number))
                row = int(place.members[number]) - start
                if action == "drop":
                    findings.append(_finding(*mark, "drop", rows[row]))
                elif alive[row]:
                    marks[row].append(mark)
            findings += [
                _finding(rule, reason, "keep", row)
                for row, own in zip(rows, marks, strict=True)
                for rule, reason in own
            ]
            log.write_batch(pa.RecordBatch.from_pylist(findings, FINDINGS))
            kept = pa.Table.from_batches([batch]).select(SCHEMA.names)
            names_only = [[rule for rule, _ in own] for own in marks]
            ids = pa.array([row["pair_id"] for row in rows], pa.string())
            kept = set_column(kept, "pair_id", ids)
            kept = set_column(kept, "marks", pa.array(names_only, SCHEMA.field("marks").type))
            yield from kept.filter(pa.array(alive)).cast(SCHEMA).combine_chunks().to_batches()
            start += len(batch)

    def _of_batch(self, start: int, end: int) -> Iterator[tuple[str, Action, checks.Found, int]]:
        for rule, action, found in self.found:
            # Members are in order, so that those of a batch lie together.
            low, high = np.searchsorted(found.members, [start, end])
            for place in range(low, high):
                yield rule, action, found, place
