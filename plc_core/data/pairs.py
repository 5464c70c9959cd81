"""What a preference pair is: one schema, a stable id, and pairs on disk with their report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value

from plc_core.data.rules import FINDINGS, Report
from plc_core.data.storage import BATCH_ROWS, dataset_from_batches, read_batches

FEATURES = Features(
    {
        "pair_id": Value("string"),  # 16 hex digits, of the pair as it was read
        "prompt": List({"role": Value("string"), "content": Value("string")}),
        "chosen": Value("string"),  # the answer alone
        "rejected": Value("string"),
        "score_chosen": Value("float64"),  # of the answer that is observed as chosen; null if none
        "score_rejected": Value("float64"),
        "votes": List(Value("string")),  # chosen, rejected or tie, one an annotator; null if none
        "source": Value("string"),
        "split": Value("string"),
        "marks": List(Value("string")),  # the rules of validation that keep and mark the pair
        "flipped": Value("bool"),  # the label was swapped by injected corruption
        "injected_tie": Value("bool"),  # the pair was put in place of another, as an exact tie
        "warm": Value("bool"),  # left clean by corruption and visited first in training
        "oracle_state": Value("string"),  # clean, flip or tie where the truth is known, else null
        "metadata": Value("string"),  # the other columns of the row, as JSON
    }
)
SCHEMA: pa.Schema = FEATURES.arrow_schema

_ORIENTED = (("chosen", "rejected"), ("score_chosen", "score_rejected"))


class DataError(ValueError):
    """Preference data that cannot be used as asked; the message is a sentence for the user."""


@dataclass(frozen=True)
class Pairs:
    """Preference pairs in the schema `FEATURES`, on disk, and what validation found in their rows.

    Attributes:
        dataset: the pairs, mapped from an Arrow file.
        findings: one row a finding, in the schema `rules.FINDINGS`.
        rows_read: rows of the source; each is a kept pair or a finding with the action drop.
        origin: where the pairs come from: name, revision, files with their SHA-256, options.
        path: the Arrow file that holds exactly these pairs, if there is one.
    """

    dataset: Dataset
    findings: pa.Table = field(default_factory=FINDINGS.empty_table)
    rows_read: int = 0
    origin: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def table(self) -> pa.Table:
        """The pairs as one Arrow table in the schema `FEATURES`."""
        return self.dataset.with_format("arrow")[:]

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """The pairs in order, a thousand at a time, without holding more than that in memory."""
        if self.path is not None and self.path.exists():
            for batch in read_batches(self.path):
                yield pa.Table.from_batches([batch]).select(columns or batch.schema.names)
        elif len(self):
            chosen = self.dataset.select_columns(columns) if columns else self.dataset
            yield from chosen.with_format("arrow").iter(BATCH_ROWS)

    def map(self, change: Callable[[pa.Table, int], pa.Table]) -> Pairs:
        """The pairs with each batch replaced by `change(batch, number of its first pair)`.

        The number of pairs may change; the schema may not.
        """

        def changed() -> Iterator[pa.RecordBatch]:
            start = 0
            for batch in self.batches():
                yield from change(batch, start).cast(SCHEMA).combine_chunks().to_batches()
                start += len(batch)

        return replace(self, dataset=dataset_from_batches(SCHEMA, changed()), path=None)

    @property
    def fingerprint(self) -> str:
        """16 hex digits that name these pairs, their order, observed labels and markers."""
        digest = hashlib.sha256()
        names = ["pair_id", "flipped", "injected_tie", "warm", "chosen"]
        for batch in self.batches(names):
            for *markers, chosen in zip(*batch.to_pydict().values(), strict=True):
                # The orientation of a tie is drawn, and no marker says it; of others, flipped does.
                row = [*markers, chosen if markers[2] else None]
                digest.update(json.dumps(row).encode() + b"\n")
        return digest.hexdigest()[:16]

    def report(self) -> Report:
        """What validation found: every rule with its count, rows, reason and action."""
        return Report(self.rows_read, len(self), self.findings, self.origin)


def pair_id(
    prompt: list[dict[str, str]], chosen: str, rejected: str, reasoning: tuple[str, str] = ("", "")
) -> str:
    """16 hex digits of the pair's content in the order in which it was read.

    Corruption keeps the id, so that a pair has one name at every noise rate. Reasoning that came
    with the answers is part of it: pairs that differ there are not the same.
    """
    turns = [[turn["role"], turn["content"]] for turn in prompt]
    content = [turns, chosen, rejected, *(reasoning if any(reasoning) else ())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def repeated_id(first: str, before: int) -> str:
    """The id of a pair that is kept though `before` pairs of the same content come before it.

    Ids are unique, as visits, votes and tokens are found by them. So the id of a repetition, in
    another split or with other votes, hangs on what was read with it.
    """
    if not before:
        return first
    return hashlib.sha256(f"{first} again {before}".encode()).hexdigest()[:16]


def swap(batch: pa.Table, flips: pa.Array) -> pa.Table:
    """A batch with the labels of some pairs reversed: answers, scores and votes change sides."""
    for one, other in _ORIENTED:
        a, b = batch[one], batch[other]
        batch = set_column(batch, one, pc.if_else(flips, b, a))
        batch = set_column(batch, other, pc.if_else(flips, a, b))
    if batch["votes"].null_count == len(batch):
        return batch
    other_side = {"chosen": "rejected", "rejected": "chosen"}
    votes = [
        [other_side.get(vote, vote) for vote in votes] if flip and votes else votes
        for votes, flip in zip(batch["votes"].to_pylist(), flips.to_pylist(), strict=True)
    ]
    return set_column(batch, "votes", pa.array(votes, SCHEMA.field("votes").type))


def set_column(batch: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """A batch with the values of one column replaced."""
    return batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), values)
