"""Random draws that are hashes of names: the same on every machine and in every order of pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from numbers import Real

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.special import ndtri

from plc_core.data.pairs import SCHEMA, DataError, Pairs


def hash64(*names: object) -> int:
    """64 bits of the SHA-256 of the names joined by colons."""
    digest = hashlib.sha256(":".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def uniform(*names: object) -> float:
    """A number in [0, 1] that depends on the names alone."""
    return hash64(*names) / 2**64


def normal(*names: object) -> float:
    """A draw from the standard normal distribution that depends on the names alone."""
    # 52 bits and a half: no draw is 0 or 1, where the quantile is infinite.
    return float(ndtri(((hash64(*names) >> 12) + 0.5) / 2**52))


def hashes(pair_ids: Iterable[str], *names: object) -> np.ndarray:
    """The hash of each pair under the names, uint64 [N]; pairs are ordered by it."""
    return np.fromiter((hash64(*names, pair_id) for pair_id in pair_ids), np.uint64)


def read_columns(pairs: Pairs, columns: list[str]) -> pd.DataFrame:
    """Some short columns of the pairs as a table: what a ranking has to hold of every pair."""
    # Copied: the columns of a batch share one buffer, which would keep its texts in memory.
    parts = [batch.take(np.arange(len(batch))) for batch in pairs.batches(columns)]
    return pa.concat_tables([SCHEMA.empty_table().select(columns), *parts]).to_pandas()


def score_gaps(keys: pd.DataFrame, advice: str, eligible: np.ndarray | None = None) -> np.ndarray:
    """score_chosen - score_rejected of each pair.

    Raises:
        DataError: where an eligible pair has none, counted, with an example and the advice.
    """
    gaps = (keys["score_chosen"] - keys["score_rejected"]).to_numpy("float64")
    bad = ~np.isfinite(gaps) if eligible is None else eligible & ~np.isfinite(gaps)
    if bad.any():
        of = len(keys) if eligible is None else eligible.sum()
        raise DataError(
            f"{bad.sum()} of {of} pairs have no score gap, as a score is missing or not finite, "
            f"for example {keys['pair_id'][bad].iloc[0]}. {advice}"
        )
    return gaps


def check_share(value: float, what: str) -> None:
    """Refuse what is not a number in [0, 1]; `what` names it in the sentence."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= 1:
        raise DataError(f"{what} in [0, 1]; it is {value!r}.")


def count_of(rate: float, total: int, left: int, what: str) -> int:
    """`round(rate * total)`, halves to even, where so many pairs are left to choose from."""
    count = round(float(rate) * total)
    if count > left:
        raise DataError(
            f"{rate} of {total} pairs are {count} {what}, but only {left} pairs can be chosen: "
            "warm pairs and those that corruption has already hit are left alone. Ask for a "
            "smaller share, or for fewer warm pairs."
        )
    return count


def smallest(keys: tuple[np.ndarray, ...], eligible: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` eligible pairs with the smallest keys, in that order, int64.

    The first key decides; the next one where it is equal.
    """
    places = np.flatnonzero(eligible)
    return places[np.lexsort([key[places] for key in reversed(keys)])[:count]]
