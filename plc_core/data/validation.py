"""Raw rows to validated pairs on disk: every row becomes a pair, or a finding that says why not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from plc_core.data import checks
from plc_core.data.pairs import SCHEMA, DataError, Pairs, repeated_id, set_column
from plc_core.data.rules import FINDINGS, Action, chosen_actions
from plc_core.data.staging import STAGED, Facts, Options, RawRow, Reading, finding
from plc_core.data.storage import (
    dataset_from_batches,
    mapped_table,
    read_batches,
    scratch_file,
    write_batches,
)
from plc_core.files import RunError


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
    try:
        with scratch_file() as staged, scratch_file() as found:
            with pa.OSFile(str(found), "wb") as sink, pa.ipc.new_stream(sink, FINDINGS) as log:
                reading = Reading(source, options, actions, log)
                write_batches(staged, STAGED, reading.staged(rows))
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


class _Decided:
    """The second pass: which pairs stay, which rules over all pairs they fall under."""

    def __init__(self, facts: Facts, options: Options, actions: Mapping[str, Action]) -> None:
        self.facts = facts
        self.alive = np.ones(len(facts), dtype=bool)
        self.found: list[tuple[str, Action, checks.Found]] = []
        rules: dict[str, Callable[[], checks.Found]] = {
            "duplicate": lambda: checks.duplicates(facts, self.alive),
            "other-votes": lambda: checks.other_votes(facts, self.alive),
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
        self.repetitions = checks.repetitions(facts, self.alive)

    def _apply(self, rule: str, action: Action, found: checks.Found) -> None:
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
                    findings.append(finding(*mark, "drop", rows[row]))
                elif alive[row]:
                    marks[row].append(mark)
            findings += [
                finding(rule, reason, "keep", row)
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
