"""What a preference pair is: one schema, a stable id, and pairs that stream through Arrow files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value

from plc_core.data.rules import FINDINGS, Report
from plc_core.data.rules import DataError as DataError
from plc_core.storage.files import RunError
from plc_core.storage.paths import cache_dir, unwritable_cache

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

BATCH_ROWS = 1000
BATCH_BYTES = 64 * 2**20
"""A batch is closed at either bound: offsets of text in one Arrow batch end at 2 GiB."""

_STALE_SECONDS = 86_400
_ORIENTED = (("chosen", "rejected"), ("score_chosen", "score_rejected"))


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


# ---- Arrow files ---------------------------------------------------------------------------------


def write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write an Arrow stream, the format of `datasets`, and return the number of its rows.

    Raises RunError where the disk is full or cannot be written.
    """
    rows = 0
    try:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}. Is the disk full?") from None
    return rows


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow stream, one in memory at a time.

    Read, not mapped into memory: mapped pages count as resident as long as nobody else needs them.
    """
    with pa.OSFile(str(path), "rb") as source:
        yield from pa.ipc.open_stream(source)


def mapped_table(path: Path) -> pa.Table:
    """The whole of an Arrow stream, mapped into memory: pages are read when they are used."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_stream(source).read_all()


@contextlib.contextmanager
def scratch_file() -> Iterator[Path]:
    """A file in the cache that is gone at the end; who mapped it meanwhile keeps its bytes."""
    folder = cache_dir() / "scratch"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".arrow", delete=False) as file:
            path = Path(file.name)
    except OSError as error:
        raise unwritable_cache(folder, error) from None
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what a process that was killed has left there a day ago or more."""
    for path in folder.glob("*.arrow"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


def dataset_from_batches(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Dataset:
    """A dataset on disk that lives as long as it is used."""
    with scratch_file() as path:
        write_batches(path, schema, batches)
        return Dataset.from_file(str(path))
