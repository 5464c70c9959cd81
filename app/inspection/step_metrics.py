"""A run's metrics, without reading all of a long run's."""

from __future__ import annotations

import pandas as pd

from inspection.database import frame, query
from plc_core.analysis.noise import NOISE_COLUMNS, NoiseEstimate, noise_rate
from plc_core.runs import Run
from plc_core.storage.files import table_names


def thinned(path: str, most: int) -> pd.DataFrame:
    """The table in a Parquet file, of more than `most` rows every so manieth and the last one."""
    total = int(query("SELECT count(*) AS n FROM read_parquet($1)", [path])["n"][0].as_py())
    every = max(1, -(-total // most))
    sql = (
        "SELECT * EXCLUDE (file_row_number) FROM read_parquet($1, file_row_number = true) "
        f"WHERE file_row_number % {every} = 0 OR file_row_number = {total - 1} "
        "ORDER BY file_row_number"
    )
    return frame(sql, [path])


def records_noise(run: Run) -> bool:
    """Whether the run is of a version that estimates its data's noise; RunError as `noise_of`."""
    path = run.metrics_file()
    return path is not None and set(NOISE_COLUMNS) <= set(table_names(path))


def noise_of(run: Run) -> NoiseEstimate | None:
    """`noise_rate` of the run, reading no other column of its metrics.

    Raises:
        RunError: for metrics that cannot be read, or are gone.
    """
    if not records_noise(run):
        return None
    return noise_rate(run.read_table(run.path / "metrics.parquet", NOISE_COLUMNS).to_pandas())
