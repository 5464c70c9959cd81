"""The run folder: the only contract between training, notebooks and the app.

`runs/<name>/` holds everything that can be said about one run, as plain files:

    run.json            parameters, data, model, versions, hardware, `schema`
    status.json         queued | running | done | failed | killed, with a heartbeat
    metrics.parquet     one row an optimizer step
    pairs.parquet       one row a training pair: id, texts, scores, markers, lengths
    findings.parquet    one row a finding of validation: rule, action, file, row, pair id, reason
    visits/*.parquet    one row a pair and visit: margin, z, q, confidence, weight, log-probs
    generations/        responses to held-out prompts     judgements/   their rewards
    checkpoints/        the trainer's                     notebook.ipynb, report.html

Every file is replaced atomically, so a reader never sees half of one, and has a checksum, which is
verified whenever it is read; a run can be read while it goes on and after it died. No torch here,
and no pickle.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plc_core.runs.provenance import describe_data
from plc_core.runs.status import INPUTS_VARIABLE, StatusFile
from plc_core.runs.visit_files import VisitFiles
from plc_core.storage.files import (
    RunError,
    is_there,
    read_json,
    read_table,
    remedy,
    table_names,
    table_rows,
    write_json,
    write_table,
)
from plc_core.storage.identity import has_checksums

SCHEMA = 1
_FIELDS = {"config": dict, "data": dict, "trained_steps": int}

TEXT_COLUMNS = ("prompt", "chosen", "rejected", "metadata", "votes", "marks")
"""Columns of pairs.parquet that are read for the pair on the screen only."""

LENGTH_COLUMNS = ("chosen_tokens", "rejected_tokens")
"""Columns of pairs.parquet with the tokens of both answers; runs of older versions lack them."""

PAIRS_A_GROUP = 2_000
"""Rows of a row group of pairs.parquet: what is decoded to show the texts of one pair."""


def modified(folder: Path) -> int | None:
    """When the run.json of `folder` was written, in nanoseconds; None where there is none."""
    try:
        return (folder / "run.json").stat().st_mtime_ns
    except OSError:
        return None


def open_run(path: Path | str) -> Run:
    """The run in folder `path`; RunError where it is missing, empty, half-written or too new."""
    path = Path(path)
    if not is_there(path) or not path.is_dir():
        raise RunError(f"There is no run folder at {path}.")
    info = read_json(path / "run.json")
    record, schema = path / "run.json", info.get("schema")
    if not isinstance(schema, int):
        raise RunError(f"{record} is not the record of a run: it names no schema. {remedy(record)}")
    if schema != SCHEMA:
        raise RunError(
            f"{record} has schema {schema!r}, and this version reads schema {SCHEMA}; "
            "update plc_core, or open the run with the version that wrote it."
        )
    for name, kind in _FIELDS.items():
        if not isinstance(info.get(name), (kind, type(None))):
            raise RunError(f"{record} should hold {name} as {kind.__name__}. {remedy(record)}")
    if opened := os.environ.get(INPUTS_VARIABLE):
        with Path(opened).open("a", encoding="utf-8") as file:
            file.write(f"{path.resolve()}\n")
    return Run(path, info)


@functools.lru_cache(maxsize=2)  # every decision of every person asks
def _pair_ids(path: Path, *stamp: int) -> pa.ChunkedArray:
    return read_table(path, ["pair_id"])["pair_id"]


class Run:
    """One run folder. Make it with `create_run`, reopen it with `open_run`."""

    def __init__(self, path: Path, info: dict[str, Any]) -> None:
        self.path = path
        self.info = info
        self._status = StatusFile(path / "status.json")
        self._visits = VisitFiles(path / "visits", self.has_checksums)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def status(self) -> dict[str, Any]:
        """status.json, with state "killed" where the process that was running is gone."""
        return self._status.read()

    def set_status(self, **changes: Any) -> None:
        """Change some fields of status.json and refresh the heartbeat."""
        self._status.change(**changes)

    def running(self, phase: str) -> AbstractContextManager[None]:
        """See `StatusFile.running`."""
        return self._status.running(phase)

    def take_up(self) -> None:
        """Go on with a run that is trained: only its evaluation and report may be missing."""
        self._status.take_up()

    def end(self, state: str, reason: str | None = None) -> None:
        """Write to status.json that the run is done, failed or killed."""
        self._status.end(state, reason)

    @property
    def is_trained(self) -> bool:
        """Whether training came to its end, whatever was done with the run since."""
        return self.info.get("trained_steps") is not None

    @property
    def _had_pairs(self) -> bool:
        return self.is_trained or "audit" in self.info

    @property
    def has_checksums(self) -> bool:
        """Whether its files have checksums; older versions wrote none, and damage is not seen."""
        return has_checksums(self.info)

    @property
    def inputs_unchanged(self) -> bool:
        """Whether the runs that an analysis opened are still those; False where it is unknown."""
        inputs = self.info.get("inputs")
        if not isinstance(inputs, dict):
            return False
        return all(modified(Path(path)) == time for path, time in inputs.items())

    def data_sentence(self) -> str:
        """What the pairs are and what happened to them on the way, for a person."""
        data = self.info.get("data")
        if not data:
            return "No pairs have been read yet."
        return describe_data(data)

    def update_info(self, **changes: Any) -> None:
        """Add what only became known after the folder was made to run.json."""
        self.info = self.info | changes
        write_json(self.path / "run.json", self.info)

    # ---- writing ------------------------------------------------------------------------------

    def write_pairs(self, table: pa.Table) -> None:
        """Write pairs.parquet."""
        write_table(self.path / "pairs.parquet", table, PAIRS_A_GROUP)

    def write_findings(self, table: pa.Table) -> None:
        """Write findings.parquet."""
        write_table(self.path / "findings.parquet", table)

    def append_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add one row an optimizer step to metrics.parquet."""
        if rows:
            frame = pd.concat([self.metrics(), pd.DataFrame(rows)], ignore_index=True)
            write_table(
                self.path / "metrics.parquet", pa.Table.from_pandas(frame, preserve_index=False)
            )

    def append_visits(self, columns: Mapping[str, Iterable[Any]]) -> None:
        """Add the visits of some whole steps as one file named after them."""
        self._visits.append(columns)

    def truncate_after(self, steps: int) -> None:
        """Forget metrics and visits of step `steps` and later: a resumed run makes them again."""
        kept = self.metrics()
        if len(kept):
            kept = kept[kept["step"] < steps]
            write_table(
                self.path / "metrics.parquet", pa.Table.from_pandas(kept, preserve_index=False)
            )
        self._visits.truncate_after(steps)

    # ---- reading ------------------------------------------------------------------------------

    def metrics(self) -> pd.DataFrame:
        """One row an optimizer step; empty while there is none."""
        path = self.metrics_file()
        return pd.DataFrame() if path is None else self.read_table(path).to_pandas()

    def metrics_file(self) -> Path | None:
        """Where the metrics are, None while there are none.

        RunError where they are gone, or of fewer steps than were trained: an earlier copy.
        """
        path, steps = self.path / "metrics.parquet", self.info.get("trained_steps") or 0
        if not self._has(path, self.is_trained):
            return None
        if self.has_checksums and (rows := table_rows(path)) < steps:
            raise RunError(
                f"{path} has {rows:,} of the {steps:,} steps that were trained: it is an earlier "
                f"copy. {remedy(path)}"
            )
        return path

    def pairs(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The training pairs; without `columns`, all but the texts."""
        path = self.path / "pairs.parquet"
        if columns is None and path.exists():
            columns = [c for c in table_names(path) if c not in TEXT_COLUMNS]
        found = self._table(path.name, self._had_pairs, columns)
        if found is None:
            raise RunError(f"The run {self.name!r} has no pairs.parquet yet.")
        return found.to_pandas()

    def pair(self, pair_id: str) -> dict[str, Any]:
        """One pair with its texts; RunError for an id that this run does not have."""
        path = self.path / "pairs.parquet"
        found = self._table(path.name, self._had_pairs, filters=[("pair_id", "=", pair_id)])
        rows = [] if found is None else found.to_pylist()
        if not rows:
            raise RunError(f"{path} has no pair {pair_id!r}; their ids are its column pair_id.")
        return rows[0]

    def unknown_pairs(self, pair_ids: Collection[str]) -> list[str]:
        """Those of some ids that no pair of this run has."""
        path = self.path / "pairs.parquet"
        try:
            wanted = pa.array(pair_ids, pa.string())
        except UnicodeEncodeError:  # a lone surrogate, which no file can hold
            return list(pair_ids)
        if not self._has(path, self._had_pairs):
            return list(pair_ids)
        state = path.stat()
        ids = _pair_ids(path, state.st_mtime_ns, state.st_size)
        known = set(pc.filter(ids, pc.is_in(ids, wanted)).to_pylist())
        return [name for name in pair_ids if name not in known]

    def findings(self, pair_id: str | None = None) -> pd.DataFrame:
        """What validation found in the rows read, or in one pair; empty where nothing is kept."""
        filters = [("pair_id", "=", pair_id)] if pair_id is not None else None
        found = self._table("findings.parquet", "data" in self.info, filters=filters)
        if found is None:
            return pd.DataFrame(columns=["rule", "action", "file", "row", "pair_id", "reason"])
        return found.to_pandas()

    def visits(
        self, columns: Sequence[str] | None = None, pair_id: str | None = None
    ) -> pd.DataFrame:
        """The visits in training order, of all pairs or of one; empty while there are none."""
        return self._visits.read(columns, pair_id, self.info.get("trained_steps"))

    def table(self, relative: str) -> pd.DataFrame:
        """Another Parquet file of the run by its path, as `judgements/gold-world.parquet`."""
        path = self.path / relative
        if not is_there(path):
            raise RunError(f"{path} is missing. {remedy(path)}")
        return self.read_table(path).to_pandas()

    def read_table(
        self, path: Path, columns: Sequence[str] | None = None, filters: Any = None
    ) -> pa.Table:
        """A Parquet file of the run; see `files.read_table`."""
        return read_table(path, None if columns is None else list(columns), filters)

    def _table(
        self,
        relative: str,
        expected: bool = False,
        columns: Sequence[str] | None = None,
        filters: Any = None,
    ) -> pa.Table | None:
        """A Parquet file of the run, None without one; RunError where it is damaged.

        Args:
            expected: a run with checksums has this file by now: it is an error without.
        """
        path = self.path / relative
        return self.read_table(path, columns, filters) if self._has(path, expected) else None

    def _has(self, path: Path, expected: bool) -> bool:
        if is_there(path):
            return True
        if expected and self.has_checksums:
            raise RunError(f"{path} is missing. {remedy(path)}")
        return False
