"""Curves over optimizer steps in numbers: running means, and where a run ended up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

SMOOTHED = (
    *("loss", "margin_mean", "margin_std", "accuracy", "q_clean", "q_flip", "q_tie"),
    *("weight_mean", "p_flip", "reward_chosen", "reward_rejected", "grad_norm"),
    *("pairs_per_second", "seconds"),
)
"""Columns that vary from step to step with the step's pairs: drawn as running means."""

LEAST_SMOOTHED = 20
"""Steps from which on a curve is smoothed."""


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


def in_words(mean: float, error: float) -> str | None:
    """A mean ± its standard error, to the digits that the error leaves; None without a mean."""
    if not math.isfinite(mean):
        return None
    if not math.isfinite(error) or error <= 0:
        return f"{mean:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"
