"""An audit as a run folder: what the inspector opens, and what a blind check is added to.

    pairs.parquet, findings.parquet  as a training run has them
    audit.parquet                    one row a pair: p_flip, p_tie, margin, reason, each evidence,
                                     and the columns that the user's rows had beside the pair
    tables/evidence.csv, noise-by-<column>.csv
    blind_check/                     people's verdicts, once there are some
    cleaned-<policy>.jsonl           the pairs, where the inspector was asked for them

Nothing here needs torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from plc_core.label_audit.blind_check import EDGES, BlindCheck, verified
from plc_core.label_audit.posterior import FlipModel, NoiseRate
from plc_core.runs import Run
from plc_core.runs.own_columns import own_columns
from plc_core.storage.files import RunError, check_table, read_table, remedy, write_table
from plc_core.storage.manifest import MANIFEST, first_damaged, list_checksums

if TYPE_CHECKING:
    from plc_core.label_audit.config import Policy
    from plc_core.label_audit.result import Audit

KIND = "audit"
_BATCH = 1_000


def save_audit(audit: Audit, run: Run, noise_by: Sequence[str] = ("source",)) -> None:
    """Write an audit into its run's folder.

    Args:
        noise_by: columns of the pairs, or of the user's, to tell noise rates by.

    Raises:
        DataError: where the pairs lack such a column.
    """
    groups = {column: audit.noise_by(column) for column in noise_by}
    run.write_pairs(audit.pairs.table)
    run.write_findings(audit.pairs.findings)
    judged = pa.Table.from_pandas(audit.judged(), preserve_index=False)
    write_table(run.path / "audit.parquet", _with_own_columns(judged, run.path / "pairs.parquet"))
    folder = run.path / "tables"
    folder.mkdir(exist_ok=True)
    audit.evidence_table().to_csv(folder / "evidence.csv", index=False)
    for column, table in groups.items():
        table.to_csv(folder / noise_file(column), index=False)
    list_checksums(folder)
    run.update_info(
        data={
            "origin": audit.pairs.origin,
            "fingerprint": audit.pairs.fingerprint,
            "rows_read": audit.pairs.rows_read,
            "rows": len(audit.pairs),
        },
        audit={
            "noise": audit.noise._asdict(),
            "reliability": audit.stack.reliability,
            "scale": list(audit.scale),
            "weights": audit.stack.weights,
            "details": audit.evidence.details,
            "sentences": audit.sentences(),
            "by_group": audit.groups is not None,
        },
    )


def _with_own_columns(judged: pa.Table, pairs: Path) -> pa.Table:
    """The table with the user's columns, by which its rows are found in the user's own files."""
    with pq.ParquetFile(pairs) as file:
        own = own_columns(file)
        batches = file.iter_batches(columns=["metadata"])
        tables = [own.table(pa.chunked_array([batch.column(0)])) for batch in batches]
    if not own.types or not tables:
        return judged
    taken = set(judged.column_names)
    for name, values in zip(own.types, pa.concat_tables(tables).columns, strict=True):
        judged = judged.append_column(f"own_{name}" if name in taken else name, values)
    return judged


def read_noise(path: Path) -> pd.DataFrame:
    """A table of noise rates as `save_audit` wrote it: a group's name is text, as "NA" or "1"."""
    blank = {name: [""] for name in ("rate", "low", "high")}
    return pd.read_csv(path, dtype={"group": str}, keep_default_na=False, na_values=blank)


def noise_file(column: str) -> str:
    """The name of the table of noise rates by a column."""
    return f"noise-by-{''.join(c if c.isalnum() else '-' for c in column)}.csv"


@dataclass(frozen=True)
class AuditFolder:
    """An audit read back from its run."""

    run: Run

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a pair, in the order of the pairs: pair_id, p_flip, p_tie, margin, reason, …"""
        path = self.run.path / "audit.parquet"
        return read_table(path).to_pandas()

    @cached_property
    def said(self) -> dict[str, Any]:
        """What run.json says of it."""
        said = self.run.info.get("audit")
        if not isinstance(said, dict):
            raise RunError(f"The run {self.run.name!r} holds no finished audit.")
        return said

    def tables(self) -> Path:
        """The folder of its tables, all of them as they were written.

        Raises:
            RunError: where one is damaged or missing.
        """
        folder = self.run.path / "tables"
        if damaged := first_damaged(folder):
            raise RunError(
                f"{folder / damaged} is damaged or missing: it is not what {MANIFEST} beside it "
                "says. Put a copy of it back; without one, audit again under another name."
            )
        return folder

    def noise_by(self, column: str) -> pd.DataFrame:
        """The noise rate by a column that the audit was asked for; see `Audit.noise_by`.

        Raises:
            RunError: where a table of the audit is damaged, or there is none by the column.
        """
        path = self.tables() / noise_file(column)
        if not path.exists():
            raise RunError(f"The audit {self.run.name!r} has no noise rates by {column!r}.")
        return read_noise(path)

    @property
    def check(self) -> BlindCheck:
        """The blind check, begun or not."""
        return BlindCheck(self.run.path)

    @cached_property
    def _by_evidence(self) -> FlipModel:
        """From margins to probabilities, before a blind check: fitted once, as verdicts come in."""
        margins = self.table["margin"].to_numpy()
        low, high = self.said["scale"]
        return FlipModel(margins, float(self.said["reliability"]), (float(low), float(high)))

    def flips(self) -> FlipModel:
        """From margins to probabilities, moved by what people found in the blind check."""
        model = self._by_evidence
        checked = self.check.checked().dropna(subset="reversed")
        if not len(checked):
            return model
        by_id = self.table.set_index("pair_id")["margin"]
        return model.checked(
            by_id[checked["pair_id"]].to_numpy(), checked["reversed"].to_numpy(dtype=float)
        )

    def p_flip(self) -> np.ndarray:
        """[pairs] after the blind check; as the audit wrote them without one."""
        if not len(self.check.checked()):
            return self.table["p_flip"].to_numpy()
        return self.flips().p_flip(self.table["margin"].to_numpy(), self.groups)

    @property
    def groups(self) -> np.ndarray | None:
        """[pairs] whose noise rates p_flip tells apart, as annotators; None where it tells none."""
        return self.table["group"].to_numpy() if self.said.get("by_group") else None

    def export(self, path: Path | str, policy: Policy = "weight", above: float = 0.5) -> Path:
        """Write the pairs as `Audit.export` does, with p_flip as the blind check has moved it.

        Raises:
            DataError: for another policy.
            RunError: where the pairs cannot be read, or the file not be written.
        """
        # The libraries of data take a second to load, which reading an audit need not.
        from plc_core.label_audit.cleaning import change_by, export_pairs
        from plc_core.label_audit.contradictions import QUESTION, questions, reconciled

        source, path = self.run.path / "pairs.parquet", Path(path)
        check_table(source)
        try:
            with pq.ParquetFile(source) as file:

                def batches(columns: list[str] | None = None) -> Iterator[pa.Table]:
                    for batch in file.iter_batches(_BATCH, columns=columns):
                        yield pa.Table.from_batches([batch])

                ids = [i for batch in batches(["pair_id"]) for i in batch["pair_id"].to_pylist()]
                if ids != self.table["pair_id"].tolist():
                    raise RunError(
                        f"audit.parquet and pairs.parquet in {self.run.path} have other pairs, or "
                        f"another order. {remedy(source)}"
                    )
                p_flip = self.p_flip()
                if len(self.check.checked()):  # each label judged alone again
                    p_flip = reconciled(p_flip, *questions(batches(QUESTION)))
                change = change_by(policy, p_flip, self.table["p_tie"].to_numpy(float), above)
                starts = itertools.count(0, _BATCH)
                export_pairs(map(change, batches(), starts), path)
        except (OSError, pa.ArrowException) as error:
            raise RunError(
                f"The cleaned pairs of {self.run.name!r} cannot be written: {error}"
            ) from None
        return path

    def noise(self) -> NoiseRate:
        """The noise rate, after the blind check where there is one.

        The evidence's posterior, moved by what people found; where that cannot be brought together,
        what people found alone.
        """
        people, moved = self.by_people(), self.flips().noise()
        return people if people is not None and _are_apart(people, moved) else moved

    def by_people(self) -> NoiseRate | None:
        """The noise rate by the verdicts of the blind check alone; None where none is a side."""
        table = self.verified()
        if table.empty or np.isnan(table.iloc[-1]["reversed"]):
            return None
        every = table.iloc[-1]
        rate, low, high = (float(every[name]) for name in ("reversed", "low", "high"))
        return NoiseRate(rate, low, high, len(self.table))

    def is_refuted(self) -> bool:
        """Whether people's verdicts contradict the evidence: its noise rate, although moved by
        them, has no value in common with the interval of theirs.
        """
        people = self.by_people()
        return people is not None and _are_apart(people, self.flips().noise())

    def verified(self) -> pd.DataFrame:
        """What people found, by stratum of suspicion; see `blind_check.verified`."""
        chances = dict(zip(self.table["pair_id"], self.table["p_flip"], strict=True))
        return verified(self.check.checked(), chances)

    def precision(self) -> pd.DataFrame:
        """The row of all pairs of `verified`, of those more likely reversed than not (p_flip from
        0.5 on); without a row where none of them was checked."""
        checked = self.check.checked()
        chances = dict(zip(self.table["pair_id"], self.table["p_flip"], strict=True))
        return verified(checked[checked["stratum"] >= EDGES.index(0.5)], chances).tail(1)


def _are_apart(one: NoiseRate, other: NoiseRate) -> bool:
    """Whether two intervals have no value in common."""
    return one.high < other.low or one.low > other.high
