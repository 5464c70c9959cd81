"""The visits of a run: one row a pair and step, in Parquet files named after their steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads

from plc_core.files import REMEDY, RunError, check_table, paths_in, read_table, write_table

VISITS_SCHEMA = pa.schema(
    [("pair_id", pa.string()), ("step", pa.int32()), ("epoch", pa.float32())]
    + [
        (name, pa.float32())
        for name in [
            "margin",
            "z",
            "q_clean",
            "q_flip",
            "q_tie",
            "confidence",
            "weight",
            "policy_chosen",
            "policy_rejected",
            "reference_chosen",
            "reference_rejected",
            "p_flip",  # null in runs of older versions
        ]
    ]
)
"""The columns of a file. Log-probs are of whole responses, in nats. A pair with the same tokens on
both sides is no evidence: its z, q, confidence, weight and p_flip are null."""


class VisitFiles:
    """The folder `visits` of one run, which need not be there yet.

    `sealed` says whether its files were written with checksums, and one without is damaged.
    """

    def __init__(self, folder: Path, sealed: bool = False) -> None:
        self.folder = folder
        self.sealed = sealed

    def append(self, columns: Mapping[str, Iterable[Any]]) -> None:
        """Add the visits of some whole steps, each column of VISITS_SCHEMA [N], as one file.

        Raises:
            RunError: where the folder cannot be made or written.
        """
        arrays = [
            # NaN is a number that there is not, as the routing of two equal responses.
            pa.array(columns[field.name], field.type, from_pandas=True)
            for field in VISITS_SCHEMA
        ]
        table = pa.table(arrays, schema=VISITS_SCHEMA)
        if table.num_rows:
            steps = table["step"].to_numpy()
            try:
                self.folder.mkdir(exist_ok=True)
            except OSError as error:
                raise RunError(f"{self.folder} cannot be made: {error.strerror}.") from None
            write_table(self.folder / f"{steps.min():08d}-{steps.max():08d}.parquet", table)

    def truncate_after(self, steps: int) -> None:
        """Forget the visits of step `steps` and later."""
        for part in reversed(self._parts()):
            if (span := _span(part.name)) and span[0] >= steps:  # whatever it holds now
                part.unlink()
                continue
            table = read_table(part, sealed=self.sealed)
            kept = table.filter(pads.field("step") < steps)
            if kept.num_rows == table.num_rows:
                continue
            # The new name ends at an earlier step: written first, so that a kill loses nothing.
            nulls = {name: [None] * len(kept) for name in VISITS_SCHEMA.names}
            self.append(nulls | kept.to_pydict())
            part.unlink()

    def read(
        self,
        columns: Sequence[str] | None = None,
        pair_id: str | None = None,
        trained_steps: int | None = None,
    ) -> pd.DataFrame:
        """The visits in training order, of all pairs or of one; empty while there are none.

        Args:
            trained_steps: of a run that is trained, which has visits of all of them.

        Raises:
            RunError: for files that cannot be read, are damaged, or are missing among others.
        """
        names = list(columns) if columns is not None else VISITS_SCHEMA.names
        files = self._parts()
        if self.sealed:
            check_spans(self.folder, [file.name for file in files], trained_steps)
        if not files:
            return VISITS_SCHEMA.empty_table().select(names).to_pandas()
        for file in files:
            check_table(file, self.sealed)
        options = pads.ParquetFragmentScanOptions(page_checksum_verification=True)
        dataset = pads.dataset(
            [str(file) for file in files],
            schema=VISITS_SCHEMA,
            format=pads.ParquetFileFormat(default_fragment_scan_options=options),
        )
        chosen = pads.field("pair_id") == pair_id if pair_id is not None else None
        try:
            return dataset.to_table(columns=names, filter=chosen).to_pandas()
        except (OSError, pa.ArrowException) as error:
            raise RunError(
                f"The visits of the run {self.folder.parent.name!r} cannot be read: {error}"
            ) from None

    def _parts(self) -> list[Path]:
        return paths_in(self.folder, "[0-9]*.parquet")


def check_spans(folder: Path, names: Iterable[str], trained_steps: int | None = None) -> None:
    """RunError where the steps in the names of visit files have a gap, so that one is missing."""
    next_step = 0
    for name in sorted(names):
        if (span := _span(name)) is None:
            return  # of another's making
        if span[0] > next_step:
            break
        next_step = max(next_step, span[1] + 1)
    else:
        if next_step >= (trained_steps or 0):
            return
    raise RunError(f"{folder} has no visits of step {next_step}: a file is missing. {REMEDY}")


def _span(name: str) -> tuple[int, int] | None:
    """The first and the last step in the name of a file."""
    found = re.fullmatch(r"(\d{8})-(\d{8})\.parquet", name)
    return (int(found[1]), int(found[2])) if found else None
