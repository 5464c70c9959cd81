"""A run's metrics, without reading all of a long run's."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from plc_core.analysis.inspection.database import frame, query
from plc_core.files import table_names


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


def noise_row(run: Path) -> pd.DataFrame:
    """The run's estimate of its share of reversed labels at the last step of the first epoch.

    One row with step, noise_rate, noise_low and noise_high; none where the run has no estimate.
    """
    path = run / "metrics.parquet"
    names = ("step", "epoch", "noise_rate", "noise_low", "noise_high")
    if not path.exists() or not set(names) <= set(table_names(path)):
        return pd.DataFrame(columns=["step", "noise_rate", "noise_low", "noise_high"])
    sql = (
        "SELECT step, noise_rate, noise_low, noise_high FROM read_parquet($1) WHERE epoch < 1 "
        "AND isfinite(noise_rate) ORDER BY step DESC LIMIT 1"
    )
    return frame(sql, [str(path)])
