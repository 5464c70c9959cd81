"""Exact ties in place of pairs, and the pool of ties that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plc_core.data.corruption.draws import (
    check_share,
    count_of,
    hashes,
    read_columns,
    smallest,
    uniform,
)
from plc_core.data.exact_ties import matched_ties
from plc_core.data.pairs import DataError, Pairs, set_column, swap
from plc_core.data.validation import pairs_from_rows


def inject_ties(pairs: Pairs, pool: Pairs, rate: float, seed: int) -> Pairs:
    """Replace `round(rate * len(pairs))` pairs, halves rounded to even, by exact ties of a pool.

    The paper's exact-tie injection (appendix "Exact-Tie Injection Dataset", 5-30 %): equal-score
    pairs in random orientation, nested across rates.

    The pairs with the smallest hash of seed and id are replaced, each at its place; the ties are
    taken in the order of their own hash. So the pairs replaced at a lower rate are among those of
    a higher one, by the same ties. A tie keeps its own id and source, stands in the split of the
    pair that it replaces, and is marked: injected_tie, oracle_state tie, not flipped. Warm pairs
    and ties injected before are not replaced.

    Args:
        pool: pairs whose two scores are equal, as from `tie_pool`; those whose id is among
            `pairs` already, and the second one of the same id, are passed over.

    Raises:
        DataError: for a rate outside [0, 1] or more than the pairs that can be chosen, a pool with
            unequal or missing scores, or one with too few ties.
    """
    check_share(rate, "The tie rate is a share")
    keys = read_columns(pairs, ["pair_id", "injected_tie", "warm"])
    eligible = ~(keys["warm"] | keys["injected_tie"]).to_numpy(bool)
    count = count_of(rate, len(pairs), int(eligible.sum()), "ties")
    places = smallest((hashes(keys["pair_id"], "tie", seed),), eligible, count)
    ties = _usable(pool, keys["pair_id"], seed)
    if len(ties) < count:
        raise DataError(
            f"{count} ties are to be injected ({rate} of {len(pairs)} pairs), but the pool has "
            f"only {len(ties)} that are not among the pairs already. Lower the rate or sample a "
            "larger pool."
        )
    tie_at = np.full(len(pairs), -1)
    tie_at[places] = ties[:count]

    def replaced(batch: pa.Table, start: int) -> pa.Table:
        numbers = tie_at[start : start + len(batch)]
        here = np.flatnonzero(numbers >= 0)
        if not len(here):
            return batch
        injected = _oriented(pool.dataset.with_format("arrow")[numbers[here].tolist()], seed)
        injected = set_column(injected, "split", batch["split"].take(here))
        rows = np.arange(len(batch))
        rows[here] = len(batch) + np.arange(len(here))
        return pa.concat_tables([batch, injected.cast(batch.schema)]).take(rows)

    changed = pairs.map(replaced)
    gone, come = keys["pair_id"].iloc[places], _ids_at(pool, ties[:count])
    return replace(changed, findings=_findings(pairs, pool, gone, come))


def _ids_at(pool: Pairs, rows: np.ndarray) -> pd.Series:
    return read_columns(pool, ["pair_id"])["pair_id"].iloc[rows]


def _findings(pairs: Pairs, pool: Pairs, gone: pd.Series, come: pd.Series) -> pa.Table:
    """What validation found: of the pool in the ties, and no more in the pairs they replace."""
    left = pc.and_(
        pc.equal(pairs.findings["action"], "keep"),
        pc.is_in(pairs.findings["pair_id"], pa.array(gone, pa.string())),
    )
    new = pc.is_in(pool.findings["pair_id"], pa.array(come, pa.string()))
    kept = pc.and_(pc.equal(pool.findings["action"], "keep"), new)
    return pa.concat_tables([pairs.findings.filter(pc.invert(left)), pool.findings.filter(kept)])


def _usable(pool: Pairs, taken: pd.Series, seed: int) -> np.ndarray:
    """The rows of the pool whose id is neither taken nor repeated, by their hash."""
    keys = read_columns(pool, ["pair_id", "score_chosen", "score_rejected"])
    unequal = keys["pair_id"][~(keys["score_chosen"] == keys["score_rejected"])]
    if len(unequal):
        raise DataError(
            f"{len(unequal)} of {len(pool)} pairs of the pool are no exact ties, as their scores "
            f"are missing or differ: {', '.join(unequal[:5])}{', …' if len(unequal) > 5 else ''}."
        )
    ids = keys["pair_id"]
    # Arrow's own look-up: that of pandas makes a Python object of each id.
    there = pc.is_in(pa.array(ids), pa.array(taken)).to_numpy(zero_copy_only=False)
    free = ~(there | ids.duplicated().to_numpy(bool))
    return smallest((hashes(ids, "pool", seed),), free, int(free.sum()))


def _oriented(ties: pa.Table, seed: int) -> pa.Table:
    """Ties of the pool in random orientation, with their markers."""
    ids = ties["pair_id"].to_pylist()
    ties = swap(ties, pa.array([uniform("orientation", seed, i) < 0.5 for i in ids], pa.bool_()))
    markers = {"flipped": False, "injected_tie": True, "warm": False, "oracle_state": "tie"}
    for name, value in markers.items():
        ties = set_column(ties, name, pa.chunked_array([[value] * len(ties)]))
    return ties


def tie_pool(responses: Sequence[dict[str, Any]], source: str = "ties") -> Pairs:
    """Pairs of different responses to one prompt with exactly the same score, each in one pair.

    The paper does not say where its equal-score pairs come from; this is the rule of the embedded
    world, and of UltraFeedback's four answers (`data.exact_ties`). It does not depend on the order
    of the rows. The same text twice under a prompt counts once, and not at all if its scores
    differ.

    Args:
        responses: rows with prompt (text or messages), response (text) and score (a number), in a
            list or a `datasets.Dataset`; more than their hashes is not held in memory.

    Returns:
        The pairs, validated like all others, in the orientation of a hash.

    Raises:
        DataError: for a row without one of the fields or with a score that is not finite.
    """
    return pairs_from_rows(matched_ties(responses), source)
