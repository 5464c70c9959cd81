"""Raw rows to validated pairs on disk: every row becomes a pair, or a finding that says why not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset

from plc_core.data import checks
from plc_core.data.contamination import EvaluationPrompts
from plc_core.data.pairs import SCHEMA, DataError, Pairs, set_column
from plc_core.data.rows import normalised
from plc_core.data.rules import FINDINGS, Action, RowError, chosen_actions
from plc_core.data.shapes import plain_row
from plc_core.data.storage import (
    BATCH_BYTES,
    BATCH_ROWS,
    dataset_from_batches,
    mapped_table,
    read_batches,
    scratch_file,
    write_batches,
)


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
    """

    actions: Mapping[str, str] = field(default_factory=dict)
    evaluation: EvaluationPrompts | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    split: str | None = None
    sample: int | None = None
    seed: int = 0


def pairs_from_rows(
    rows: Iterable[Mapping[str, Any] | None],
    source: str,
    split: str = "train",
    options: Options | None = None,
) -> Pairs:
    """Validated pairs of rows in memory; None stands for a blank line, counted in row numbers.

    Raises:
        DataError: where a rule with the action error finds something.
    """
    raw = (RawRow("", number, row, split) for number, row in enumerate(rows, 1) if row is not None)
    return validated(raw, source, options or Options())


def validated(
    rows: Iterable[RawRow], source: str, options: Options, folder: Path | None = None
) -> Pairs:
    """Validated pairs of raw rows, streamed through Arrow files.

    Two passes: rows are normalised and looked at one by one, which leaves a few numbers of each;
    then the rules over all pairs decide, and the kept pairs are written with their marks.

    Args:
        rows: the rows in order.
        source: the source of rows that do not name their own.
        options: what is done with them.
        folder: where pairs.arrow and findings.arrow are kept; None keeps them as long as they are
            used.

    Raises:
        DataError: where a rule with the action error finds something.
    """
    try:
        actions = chosen_actions(options.actions)
    except ValueError as error:
        raise DataError(str(error)) from None
    with scratch_file() as staged, scratch_file() as found:
        with pa.OSFile(str(found), "wb") as sink, pa.ipc.new_stream(sink, FINDINGS) as log:
            reading = _Reading(source, options, actions, log)
            write_batches(staged, _STAGED, reading.staged(rows))
            decided = _Decided(reading.facts, options, actions)
            if decided.kept + decided.dropped + reading.dropped != reading.rows:
                raise AssertionError("A row was lost between reading and writing.")
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
    return Pairs(dataset, findings, reading.rows, {"source": source}, path)


_STAGED = pa.schema(
    [
        *SCHEMA,
        pa.field("reasons", pa.list_(pa.string())),  # of the marks
        pa.field("file", pa.string()),
        pa.field("row", pa.int64()),
    ]
)


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
        self.facts = checks.Facts()
        self.rows = self.dropped = 0
        self._problems: list[dict[str, Any]] = []

    def staged(self, rows: Iterable[RawRow]) -> Iterator[pa.RecordBatch]:
        """The pairs in batches; rows that are none go to the log of findings."""
        batch: list[dict[str, Any]] = []
        size = 0
        for raw in rows:
            self.rows += 1
            pair = self._pair(raw)
            if pair is None:
                continue
            self.facts.add(pair, raw.file, raw.number)
            batch.append(pair)
            size += len(pair["chosen"]) + len(pair["rejected"]) + len(pair["metadata"])
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
            row = plain_row(_renamed(raw.value, self.options.columns))
            pair, marks = normalised(row, self.source or raw.file, raw.split)
        except RowError as problem:
            self._drop(raw, None, problem.rule, str(problem))
            return None
        if self.options.evaluation is not None:
            found = self.options.evaluation.find(pair["prompt"])
            marks += [found] if found else []
        for rule, reason in marks:
            if self.actions[rule] != "keep":
                self._drop(raw, pair["pair_id"], rule, reason)
                return None
        pair["marks"] = [rule for rule, _ in marks]
        pair["reasons"] = [reason for _, reason in marks]
        return pair | {"file": raw.file, "row": raw.number}

    def _drop(self, raw: RawRow, pair: str | None, rule: str, reason: str) -> None:
        if self.actions[rule] == "error":
            file = f" of {raw.file}" if raw.file else ""
            raise DataError(f"Row {raw.number:,}{file}, {rule}: {reason}.")
        self.dropped += 1
        place = {"file": raw.file, "row": raw.number, "pair_id": pair}
        self._problems.append(_finding(rule, reason, "drop", place))
        if len(self._problems) >= BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._problems:
            self.log.write_batch(pa.RecordBatch.from_pylist(self._problems, FINDINGS))
            self._problems = []


class _Decided:
    """The second pass: which pairs stay, which rules over all pairs they fall under."""

    def __init__(
        self, facts: checks.Facts, options: Options, actions: Mapping[str, Action]
    ) -> None:
        self.facts = facts
        self.alive = np.ones(len(facts), dtype=bool)
        self.found: list[tuple[str, Action, checks.Found]] = []
        rules: dict[str, Callable[[], checks.Found]] = {
            "duplicate": lambda: checks.duplicates(facts, self.alive),
            "near-duplicate": lambda: checks.near_duplicates(facts, self.alive),
            "contradiction": lambda: checks.contradictions(facts, self.alive),
            "cycle": lambda: checks.cycles(facts, self.alive),
            "split-leak": lambda: checks.split_leaks(facts, self.alive),
            "other-split": lambda: checks.other_splits(facts, self.alive, options.split),
            "not-sampled": lambda: checks.not_sampled(
                facts, self.alive, options.sample, options.seed
            ),
        }
        for rule, find in rules.items():
            self._apply(rule, actions[rule], find())

    def _apply(self, rule: str, action: Action, found: checks.Found) -> None:
        if action == "error" and len(found.members):
            place = self.facts.place(int(found.members[0]))
            raise DataError(f"{len(found.members):,} rows, {rule}; {place}: {found.reason(0)}.")
        if action == "drop":
            self.alive[found.members] = False
        self.found.append((rule, action, found))

    @property
    def kept(self) -> int:
        """Pairs that stay."""
        return int(self.alive.sum())

    @property
    def dropped(self) -> int:
        """Pairs listed as left out."""
        return sum(len(found.members) for _, action, found in self.found if action == "drop")

    def pairs(self, staged: Path, log: pa.RecordBatchWriter) -> Iterator[pa.RecordBatch]:
        """The kept pairs with all their marks, batch by batch; the findings go to the log."""
        start = 0
        for batch in read_batches(staged):
            alive = self.alive[start : start + len(batch)]
            names = ["pair_id", "marks", "reasons", "file", "row"]
            rows = batch.select(names).to_pylist()
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
            kept = set_column(kept, "marks", pa.array(names_only, SCHEMA.field("marks").type))
            yield from kept.filter(pa.array(alive)).cast(SCHEMA).combine_chunks().to_batches()
            start += len(batch)

    def _of_batch(self, start: int, end: int) -> Iterator[tuple[str, Action, checks.Found, int]]:
        for rule, action, found in self.found:
            # Members are in order, so that those of a batch lie together.
            low, high = np.searchsorted(found.members, [start, end])
            for place in range(low, high):
                yield rule, action, found, place


def _finding(rule: str, reason: str, action: Action, row: Mapping[str, Any]) -> dict[str, Any]:
    places = {name: row[name] for name in ("file", "row", "pair_id")}
    return {"rule": rule, "action": action, "reason": reason, **places}


def _renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> Mapping[str, Any]:
    if not columns:
        return row
    taken = set(columns.values())
    rest = {name: value for name, value in row.items() if name not in taken and name not in columns}
    return rest | {ours: row.get(theirs) for ours, theirs in columns.items()}
