"""The making of a digest: a run's visits read once, file by file, and what they say written down.

Where an earlier digest has read the first of the files, it is gone on from there.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from inspection.aggregate import MEASURES, OPTIONAL, VALUES, Counts, Tally
from inspection.database import query
from inspection.pair_table import Places, pair_table
from inspection.run_files import RunFiles, Stamp
from plc_core.runs.visit_files import check_steps
from plc_core.storage.files import RunError, read_json, write_json

logger = logging.getLogger(__name__)

_FILES_AT_ONCE = 400
ROWS, ROW = "rows.i32", np.dtype("<i4")
"""A file of a digest, and the type of its numbers: the place of each visit's pair."""
Told = Callable[[int, int], None]


def make(files: RunFiles, earlier: Sequence[Path], folder: Path, tell: Told) -> None:
    """Write the digest of a run's `files` to `folder`.

    Args:
        earlier: digests of the run's pairs, the newest first.
        tell: is called with the visit files read so far and all that are to be read.

    Raises:
        RunError: where a file of the run cannot be read, or lacks a column.
    """
    pairs = pair_table(files)
    places = Places(pairs["pair_id"], pairs["hash"].to_numpy())
    pairs = pairs.drop_columns("hash")
    rows = folder / ROWS
    tally, visited = _continued(files, earlier, len(pairs), rows) or (Tally(len(pairs)), [])
    todo = files.visits[len(visited) :]
    parts = [todo[i : i + _FILES_AT_ONCE] for i in range(0, len(todo), _FILES_AT_ONCE)]
    with rows.open("ab") as written:  # as they come: all of them would take much memory
        for number, (part, (visits, counts)) in enumerate(_ahead(files, parts)):
            tell(number * _FILES_AT_ONCE, len(todo))
            found = places.of(visits)
            tally.add(found, visits)
            written.write(found.astype(ROW).data)
            visited += [(*stamp, count) for stamp, count in zip(part, counts, strict=True)]
    del places
    _write(folder, pairs, tally, visited)


def saved_rows(folder: Path) -> NDArray[np.int32]:
    """[visits], the place of each visit's pair among the pairs, mapped from disk."""
    path = folder / ROWS
    return np.memmap(path, ROW, "r") if path.stat().st_size else np.zeros(0, ROW)


def saved_counts(folder: Path, measure: str) -> Counts:
    """The counts of a measure as a digest keeps them."""
    with np.load(folder / "counts.npz") as arrays:
        low, high, width = arrays[f"{measure}_bounds"]
        return Counts(float(low), float(high), int(width), arrays[measure])


def _ahead(
    files: RunFiles, parts: list[tuple[Stamp, ...]]
) -> Iterator[tuple[tuple[Stamp, ...], tuple[dict[str, NDArray], list[int]]]]:
    """The visits of each part, the next one being read while the caller is at work on this one."""
    with ThreadPoolExecutor(1) as pool:
        pending = [pool.submit(_visits, files, part) for part in parts[:1]]
        for number, part in enumerate(parts):
            pending += [pool.submit(_visits, files, later) for later in parts[number + 1 :][:1]]
            yield part, pending.pop(0).result()


def _visits(files: RunFiles, part: tuple[Stamp, ...]) -> tuple[dict[str, NDArray], list[int]]:
    """The numbers of the visits in some files, in order, and how many each file holds."""
    paths = [files.visit_path(name) for name, *_ in part]
    try:
        names = set(pq.read_schema(paths[0]).names)
    except (OSError, pa.ArrowException) as error:
        logger.warning("%s: %s", paths[0], error)
        raise RunError(
            f"{paths[0]} is cut short or no Parquet file, so the visits of {files.folder.name!r} "
            "cannot be read."
        ) from None
    if missing := [name for name in ("pair_id", "step", *VALUES) if name not in names]:
        raise RunError(f"{paths[0]} lacks the column(s) {', '.join(missing)}.")
    wanted = ["step", *VALUES, *(name for name in OPTIONAL if name in names)]
    table = query(
        f"SELECT hash(CAST(pair_id AS VARCHAR)) AS hash, {', '.join(wanted)}, "
        "file_row_number AS place FROM read_parquet($1, file_row_number = true)",
        [paths],
    )
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise RunError(
                f"{paths[0]}, or a file after it, has {kind} in the column {name}, where numbers "
                "are expected."
            )
    columns = {name: table[name].to_numpy() for name in table.column_names}
    starts = np.flatnonzero(columns.pop("place") == 0)
    if len(starts) != len(paths):
        raise RunError(
            f"The visits of {files.folder.name!r} changed while they were read, or a file of them "
            "is empty. Load the page again."
        )
    first, last = (f.reduceat(columns["step"], starts) for f in (np.minimum, np.maximum))
    for path, *steps in zip(paths, first.tolist(), last.tolist(), strict=True):
        check_steps(Path(path), (steps[0], steps[1]))
    return columns, np.diff([*starts, table.num_rows]).tolist()


def _continued(
    files: RunFiles, earlier: Sequence[Path], size: int, rows: Path
) -> tuple[Tally, list[tuple[str, int, int, int]]] | None:
    """The tally of an earlier digest whose files are the first of today's; None without one.

    Its rows are copied to the file `rows`.
    """
    for made in earlier:
        stamps = [tuple(entry) for entry in read_json(made / "digest.json")["stamps"]]
        read = tuple((name, size, time) for name, size, time, _ in stamps)
        if not read or read != files.visits[: len(read)]:
            continue
        tally = Tally(size)
        before = pq.read_table(made / "pairs.parquet", columns=list(tally.pairs))
        tally.pairs = {
            name: before[name].to_numpy().astype(array.dtype) for name, array in tally.pairs.items()
        }
        steps = pq.read_table(made / "steps.parquet").to_pandas().set_index("step")
        dense = steps.reindex(range(int(steps.index.max()) + 1), fill_value=0.0)
        tally.steps = {str(name): dense[name].to_numpy().copy() for name in dense}
        tally.counts = {name: saved_counts(made, name) for name in MEASURES}
        shutil.copyfile(made / ROWS, rows)
        return tally, stamps
    return None


def _write(
    folder: Path,
    pairs: pa.Table,
    tally: Tally,
    visited: list[tuple[str, int, int, int]],
) -> None:
    for name, column in tally.pair_columns().items():
        # NaN in a column of the run means "not there", and so it is null for every query.
        pairs = pairs.append_column(str(name), pa.array(column.to_numpy(), from_pandas=True))
    if not np.isfinite(tally.pairs["p_flip"]).any():
        pairs = pairs.drop_columns("p_flip").append_column(
            "p_flip", pa.nulls(len(pairs), pa.float32())
        )
    few = [
        name
        for name in ("source", "split", "oracle_state", "vote_group")
        if name in pairs.schema.names
    ]
    # A dictionary of a million different numbers costs more than reading the file does.
    pq.write_table(
        pairs,
        folder / "pairs.parquet",
        compression="snappy",
        row_group_size=100_000,
        use_dictionary=few,
    )
    with (
        pa.OSFile(str(folder / "pairs.arrow"), "wb") as file,
        pa.ipc.new_file(file, pairs.schema) as writer,
    ):
        writer.write_table(pairs)
    steps = pa.Table.from_pandas(tally.step_columns(), preserve_index=False)
    pq.write_table(steps, folder / "steps.parquet")
    arrays: dict[str, Any] = {}
    for name, counts in tally.counts.items():
        arrays |= {name: counts.table, f"{name}_bounds": [counts.low, counts.high, counts.width]}
    np.savez(folder / "counts.npz", **arrays)
    empty = {name for name in pairs.column_names if pairs[name].null_count == len(pairs)}
    said = {
        "columns": [name for name in pairs.column_names if name not in empty or not len(pairs)],
        "size": len(pairs),
        "visits": int(tally.pairs["visits"].sum()),
        "visited": [(name, count) for name, _, _, count in visited],
        "stamps": visited,
    }
    write_json(folder / "digest.json", said)
