"""The visits of a run: one row a pair and step, in Parquet files named after their steps."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from plc_core.storage.checksums import remembered
from plc_core.storage.files import RunError, check_table, paths_in, read_table, remedy, write_table

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

    `complete` says whether its files should hold every step once; older versions may differ.
    """

    def __init__(self, folder: Path, complete: bool = False) -> None:
        self.folder = folder
        self.complete = complete

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
            table = read_table(part)
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
            RunError: for files that cannot be read, are damaged, hold other steps than their names
                say, or are missing among others.
        """
        names = list(columns) if columns is not None else VISITS_SCHEMA.names
        files = self._parts()
        if self.complete:
            kept = files_to_read(self.folder, (file.name for file in files), trained_steps)
            files = [self.folder / name for name in kept]
        if not files:
            return VISITS_SCHEMA.empty_table().select(names).to_pandas()
        options = pads.ParquetFragmentScanOptions(page_checksum_verification=True)
        chosen = pads.field("pair_id") == pair_id if pair_id is not None else None
        try:
            for file in files:
                check_table(file)
                if _span(file.name) is not None:
                    check_steps(file, remembered(_steps_in, file))
            dataset = pads.dataset(
                [str(file) for file in files],
                schema=VISITS_SCHEMA,
                format=pads.ParquetFileFormat(default_fragment_scan_options=options),
            )
            return dataset.to_table(columns=names, filter=chosen).to_pandas()
        except (OSError, pa.ArrowException) as error:
            raise RunError(
                f"The visits of the run {self.folder.parent.name!r} cannot be read: {error}"
            ) from None

    def _parts(self) -> list[Path]:
        return paths_in(self.folder, "[0-9]*.parquet")


def files_to_read(
    folder: Path, names: Iterable[str], trained_steps: int | None = None
) -> list[str]:
    """The visit files that hold each step once, in order; all where one is of another's making.

    One that is the beginning of a longer one is left out: a kill leaves both where a resumed run
    was about to forget the other's later steps.

    Raises:
        RunError: where the steps in the names have a gap, so that a file is missing, or a step is
            in two files.
    """
    names = sorted(names)
    spans = {name: span for name in names if (span := _span(name)) is not None}
    if len(spans) < len(names):
        return names
    by_start = {first: name for name, (first, _) in spans.items()}  # the longest of each start
    kept = list(by_start.values())
    next_step, next_known = 0, trained_steps or 0
    for index, name in enumerate(kept):
        first, last = spans[name]
        if first > next_step:
            next_known = first
            break
        if first < next_step:
            raise RunError(
                f"{folder / name} has visits of step {first}, which {kept[index - 1]} has as well. "
                "Take the one that is a copy, or was left from before, out of the folder."
            )
        next_step = last + 1
    else:
        if next_step >= (trained_steps or 0):
            return kept
    gone = folder / f"{next_step:08d}-{next_known - 1:08d}.parquet"
    raise RunError(
        f"{folder} has no visits of step {next_step}: {gone.name} is missing, or several files of "
        f"these steps. {remedy(gone)}"
    )


def check_steps(path: Path, steps: tuple[int, int] | None) -> None:
    """RunError where the first and last step that a file holds are not those in its name."""
    if steps is not None and _span(path.name) not in (None, steps):
        raise RunError(
            f"{path} holds steps {steps[0]} to {steps[1]}, and not those in its name. "
            f"{remedy(path)}"
        )


@functools.lru_cache(maxsize=2**16)
def _steps_in(path: Path, *stamp: int) -> tuple[int, int] | None:
    """The first and last step of a file; None where its footer does not say."""
    footer = pq.read_metadata(path)
    if "step" not in footer.schema.names:
        return None
    column = footer.schema.names.index("step")
    groups = [footer.row_group(n).column(column).statistics for n in range(footer.num_row_groups)]
    known = [group for group in groups if group is not None and group.has_min_max]
    return (min(g.min for g in known), max(g.max for g in known)) if known else None


def _span(name: str) -> tuple[int, int] | None:
    """The first and the last step in the name of a file."""
    found = re.fullmatch(r"(\d{8})-(\d{8})\.parquet", name)
    return (int(found[1]), int(found[2])) if found else None
