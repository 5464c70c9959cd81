"""p values of several tests that belong to one question."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from plc_core.analysis.statistics.means import Floats


def holm(p_values: Iterable[float]) -> Floats:
    """Holm's adjusted p values of one family of tests, in the order given.

    A test that could not be made (NaN) stays NaN and does not count in the family: it gave no
    chance of a false finding. A p value of 0 stays 0, and is printed as a bound.

    Raises:
        ValueError: for a p value outside [0, 1].

    Source: Holm 1979, by statsmodels.
    """
    values = np.array([math.nan if p is None else p for p in p_values], dtype=np.float64)
    known = ~np.isnan(values)
    if ((values[known] < 0) | (values[known] > 1)).any():
        raise ValueError(f"p values lie in [0, 1]; these are {values.tolist()}.")
    if known.any():
        from statsmodels.stats.multitest import multipletests  # takes a second to import

        values[known] = multipletests(values[known], method="holm")[1]
    return values
