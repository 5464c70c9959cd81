"""A run's pairs with what all their visits say, kept in the user's cache and brought up to date.

Read once, file by file; a run that goes on adds what is new. The files of a run stay the only
truth: a digest is named after them, and made again where one that was read has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from inspection.aggregate import Counts
from inspection.build import Told, make, saved_counts, saved_rows
from inspection.database import frame
from inspection.run_files import RunFiles, run_files
from plc_core.runs import Run
from plc_core.storage.cache import cached_folder, is_whole
from plc_core.storage.files import read_json
from plc_core.storage.manifest import MANIFEST
from plc_core.storage.paths import cache_dir

VERSION, TABLE = 6, "pairs.parquet"
KEPT_RUNS = 12
"""Digests of so many runs stay in the cache; those used longest ago go first."""


@dataclass(frozen=True)
class Digest:
    """What is kept of one run at one moment, in `folder`.

    pairs.parquet has a row a pair in the run's order: row, pair_id, the columns of the run's
    pairs but the texts, score_gap, votes counted and their group, and `Tally.pair_columns`.
    pairs.arrow is the same table, of which single rows are read. steps.parquet has a row a step.

    `visited` are the visit files read, each with its number of visits.
    """

    folder: Path
    run: Path
    visited: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]
    size: int
    visits: int

    @property
    def pairs_path(self) -> str:
        """The table of one row a pair, for DuckDB."""
        return str(self.folder / TABLE)

    @cached_property
    def table(self) -> pa.Table:
        """The table of one row a pair, as `mapped` gives it."""
        return mapped(self.folder)

    @cached_property
    def last_step(self) -> int | None:
        """The last step that was read."""
        steps = self.steps()["step"]
        return int(steps.iloc[-1]) if len(steps) else None

    def steps(self) -> pd.DataFrame:
        """The sums of each step, as `Tally.step_columns`."""
        return frame("SELECT * FROM read_parquet($1)", [str(self.folder / "steps.parquet")])

    def counts(self, measure: str) -> Counts:
        """How often each value of a measure was seen over training."""
        return saved_counts(self.folder, measure)

    def places(self, row: int) -> list[tuple[str, int]]:
        """Where the visits of the pair in `row` are: the file, and the place in it."""
        found = np.flatnonzero(saved_rows(self.folder) == row)
        ends = np.cumsum([count for _, count in self.visited])
        files = np.searchsorted(ends, found, side="right")
        starts = ends - [count for _, count in self.visited]
        return [
            (self.visited[file][0], int(place - starts[file]))
            for file, place in zip(files, found, strict=True)
        ]


def mapped(folder: Path) -> pa.Table:
    """A digest's table of one row a pair, mapped from disk: only what is taken is read."""
    with pa.memory_map(str(folder / "pairs.arrow")) as file:
        return pa.ipc.open_file(file).read_all()


def digest(run: Run, tell: Told = lambda done, total: None) -> Digest:
    """The digest of `run` as its files are now, from the cache or made.

    Args:
        tell: is called with the visit files read so far and all that are to be read.

    Raises:
        RunError: where a file of the run cannot be read, or lacks a column.
    """
    files = run_files(run)
    home = _home(run, files)
    folder = home / _key(*files.visits)
    if not is_whole(folder):
        cached_folder(folder, lambda new: make(files, _made(home), new, tell))
        _forget_old(home)
    return _open(folder, run.path)


def kept(run: Run) -> Digest | None:
    """The digest of `run` as its files are now, where it is in the cache; RunError as `digest`."""
    files = run_files(run)
    folder = _home(run, files) / _key(*files.visits)
    return _open(folder, run.path) if is_whole(folder) else None


def unread(run: Run) -> int:
    """Bytes of the visits that `digest` would read for `run` now, none of which is kept yet."""
    files = run_files(run)
    size = sum(size for _, size, _ in files.visits)
    for folder in _made(_home(run, files)):
        stamps = [tuple(entry[:3]) for entry in read_json(folder / "digest.json")["stamps"]]
        if tuple(stamps) == files.visits[: len(stamps)]:
            size = min(size, sum(size for _, size, _ in files.visits[len(stamps) :]))
    return size


def newest(run: Run) -> Digest | None:
    """The digest made last of this run's pairs, which may lack the newest visits, if any is kept.

    Raises RunError where the run has no pairs, or a file leads elsewhere.
    """
    made = _made(_home(run, run_files(run)))
    return _open(made[0], run.path) if made else None


def _open(folder: Path, run: Path) -> Digest:
    said = read_json(folder / "digest.json")
    with contextlib.suppress(OSError):
        os.utime(folder.parent)  # by which `_forget_old` knows when the run was looked at
    visited = tuple((str(name), int(count)) for name, count in said["visited"])
    return Digest(folder, run, visited, tuple(said["columns"]), said["size"], said["visits"])


def _home(run: Run, files: RunFiles) -> Path:
    return cache_dir() / "inspector" / _key(run.path.resolve(), files.pairs)


def _key(*parts: Any) -> str:
    return hashlib.sha256(repr((VERSION, parts)).encode()).hexdigest()[:20]


def _made(home: Path) -> list[Path]:
    """The digests of one run's pairs that are whole, the newest first."""
    return [path.parent for path in reversed(_lists(home)) if is_whole(path.parent)]


def _lists(home: Path) -> list[Path]:
    return sorted(home.glob(f"*/{MANIFEST}"), key=lambda path: path.stat().st_mtime)


def _forget_old(home: Path) -> None:
    """Keep the last two states of this run, and the runs that were looked at last."""
    for path in _lists(home)[:-2]:
        shutil.rmtree(path.parent, ignore_errors=True)
    homes = [folder for folder in home.parent.iterdir() if folder.is_dir() and _lists(folder)]
    for folder in sorted(homes, key=lambda path: path.stat().st_mtime)[:-KEPT_RUNS]:
        shutil.rmtree(folder, ignore_errors=True)
