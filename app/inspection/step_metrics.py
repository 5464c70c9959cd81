"""A run's metrics, without reading all of a long run's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from inspection.database import frame, query
from plc_core.analysis.noise import NOISE_COLUMNS, NoiseRate, noise_rate
from plc_core.files import read_table, table_names


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


def smoothed(values: pd.Series) -> pd.Series:
    """The centred running mean over a twentieth of the steps, fewer at the ends; NaN stays NaN."""
    window = max(3, len(values) // 20) | 1
    return values.rolling(window, center=True, min_periods=1).mean().where(values.notna())


def last_tenth(
    metrics: Mapping[str, pd.DataFrame], names: Sequence[str], baseline: str | None = None
) -> pd.DataFrame:
    """The mean of each column over the last tenth of each run's steps, with its standard error.

    One row a run. Columns: run, step (the last one), and for each of `names` that any run has the
    name and "± name"; with a `baseline` among several runs also "Δ name" and "± Δ name", over the
    steps that both logged, which trained on the same pairs where data and seed are the same.
    Standard errors are over steps (n - 1), as if steps were independent; NaN for one step.
    """
    ends = {
        run: table.sort_values("step").set_index("step").tail(-(-len(table) // 10))
        for run, table in metrics.items()
        if "step" in table and len(table)
    }
    pinned = ends.get(baseline or "") if len(ends) > 1 else None
    rows = []
    for run, own in ends.items():
        row: dict[str, float | int | str] = {"run": run, "step": int(own.index[-1])}
        for name in (n for n in names if n in own and own[n].notna().any()):
            row |= _mean_and_error(name, own[name])
            if pinned is not None and name in pinned:
                row |= _mean_and_error(f"Δ {name}", own[name] - pinned[name])
        rows.append(row)
    return pd.DataFrame(rows)


def _mean_and_error(name: str, values: pd.Series) -> dict[str, float]:
    array = values.dropna().to_numpy(np.float64)
    error = array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else math.nan
    return {name: float(array.mean()) if len(array) else math.nan, f"± {name}": float(error)}


def records_noise(run: Path) -> bool:
    """Whether the run in folder `run` is of a version that estimates the noise of its data."""
    path = run / "metrics.parquet"
    return path.exists() and set(NOISE_COLUMNS) <= set(table_names(path))


def noise_of(run: Path) -> NoiseRate | None:
    """`noise_rate` of the run in folder `run`, reading no other column of its metrics.

    Raises:
        RunError: for metrics that cannot be read.
    """
    if not records_noise(run):
        return None
    return noise_rate(read_table(run / "metrics.parquet", NOISE_COLUMNS).to_pandas())
