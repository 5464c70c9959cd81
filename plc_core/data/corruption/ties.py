"""Exact ties in place of pairs, and the pool of ties that they come from."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from numbers import Real
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

    The paper does not say where its equal-score pairs come from; this is the embedded world's
    rule. It does not depend on the order of the rows. The same text twice under a prompt counts
    once, and not at all if its scores differ.

    Args:
        responses: rows with prompt (text or messages), response (text) and score (a number), in a
            list or a `datasets.Dataset`; more than their hashes is not held in memory.

    Returns:
        The pairs, validated like all others, in the orientation of a hash.

    Raises:
        DataError: for a row without one of the fields or with a score that is not finite.
    """
    return pairs_from_rows(_matched(responses), source)


def _matched(responses: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    groups: dict[str, dict[str, tuple[int, set[float]]]] = defaultdict(dict)
    for number in range(len(responses)):
        prompt, text, score = _checked(responses[number], number)
        seen = groups[prompt].setdefault(text, (number, set()))
        seen[1].add(score)
    for prompt in sorted(groups):
        by_score: dict[float, list[int]] = defaultdict(list)
        for text in sorted(groups[prompt]):
            number, scores = groups[prompt][text]
            if len(scores) == 1:
                by_score[min(scores)].append(number)
        for score in sorted(by_score):
            members = by_score[score]
            for one, other in zip(members[::2], members[1::2], strict=False):
                yield _row(responses[one], responses[other])


def _row(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt": one["prompt"],
        "chosen": one["response"],
        "rejected": other["response"],
        "score_chosen": one["score"],
        "score_rejected": other["score"],
    }


def _checked(row: dict[str, Any], number: int) -> tuple[str, str, float]:
    """The digests of prompt and response, and the score."""
    place = f"Row {number + 1} of the responses"
    for name in ("prompt", "response", "score"):
        if row.get(name) is None:
            raise DataError(f"{place} has no {name}; a tie needs prompt, response and score.")
    if not isinstance(row["response"], str):
        raise DataError(f"{place}: response is a text, not {type(row['response']).__name__}.")
    score = row["score"]
    if isinstance(score, bool) or not isinstance(score, Real) or not math.isfinite(score):
        raise DataError(f"{place}: score is a finite number, not {score!r}.")
    prompt = _digest(json.dumps(row["prompt"], sort_keys=True, default=str))
    return prompt, _digest(prompt + row["response"]), float(score)


def _digest(text: str) -> str:
    # A lone surrogate is not UTF-8; validation lists its row later.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
