"""How well a ranking finds what is marked: precision among its first k."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
import pandas as pd

from plc_core.analysis.statistics import wilson

SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


def precision_at(scores: Iterable[float], positive: Iterable[bool], most: int = 24) -> pd.DataFrame:
    """The share of positives among the k items with the highest scores.

    Both are 1-d of one length (ValueError otherwise); items without a score are left out. Items of
    equal scores that k divides count by their share of positives, so the order of the items does
    not matter.

    Returns:
        One row a k, at most `most` of them, from 10 to all on a logarithmic scale: k, hits,
        precision, low, high (Wilson's 95 %), recall, base_rate.
    """
    values, marked = np.asarray(scores), np.asarray(positive, bool)
    if values.shape != marked.shape or values.ndim != 1:
        raise ValueError(f"scores {values.shape} and positive {marked.shape} are of one length.")
    known = ~np.isnan(values)
    values, marked = values[known], marked[known]
    n, total = len(values), int(marked.sum())
    if not n:
        names = ["k", "hits", "precision", "low", "high", "recall", "base_rate"]
        return pd.DataFrame(columns=names)
    falling = -values
    order = np.argsort(falling)  # whatever the order of equal ones: they share their positives
    falling = falling[order]
    found = np.concatenate([[0], np.cumsum(marked[order])])
    first = min(10, n)
    places = np.unique(np.geomspace(first, n, most).round().astype(int))
    rows = []
    for k in places.tolist():
        # Of the items whose score the k-th one has, the share that is among the first k.
        start, end = (int(np.searchsorted(falling, falling[k - 1], side)) for side in SIDES)
        hits = found[start] + (k - start) * (found[end] - found[start]) / (end - start)
        low, high = wilson(round(hits), k)
        rows.append(
            {
                "k": k,
                "hits": float(hits),
                "precision": float(hits / k),
                "low": low,
                "high": high,
                "recall": float(hits / total) if total else math.nan,
                "base_rate": total / n,
            }
        )
    return pd.DataFrame(rows)
