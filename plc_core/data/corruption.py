"""Injected corruption whose truth is known: seeded, nested over rates, marked."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pyarrow.compute as pc

from plc_core.data.pairs import DataError, Pairs

TIE_GAP = 0.25
"""In the embedded world, pairs whose gold rewards differ by at most one step of 0.25 are ties."""


def flip_labels(pairs: Pairs, rate: float, seed: int) -> Pairs:
    """Swap chosen and rejected, with their scores, of each pair with probability `rate`.

    Whether a pair flips depends on its id, the seed and the rate alone: the same pairs flip on
    every machine, in every order and under every objective, and the pairs flipped at a lower rate
    are among those of a higher one. Flipped pairs keep their id and are marked.

    Raises:
        DataError: for a rate outside [0, 1].
    """
    if not 0 <= rate <= 1:
        raise DataError(f"The flip rate is a probability in [0, 1]; it is {rate}.")
    flips = pa.array([_uniform(seed, pair_id) < rate for pair_id in pairs.dataset["pair_id"]])
    table = pairs.table
    for one, other in (("chosen", "rejected"), ("score_chosen", "score_rejected")):
        a, b = table[one], table[other]
        table = _with_column(table, one, pc.if_else(flips, b, a))
        table = _with_column(table, other, pc.if_else(flips, a, b))
    table = _with_column(table, "flipped", pc.xor(table["flipped"], flips))
    return pairs.with_table(table)


def mark_oracle_states(pairs: Pairs, tie_gap: float = TIE_GAP) -> Pairs:
    """Set oracle_state from scores that are the truth, as in the embedded world.

    tie if the scores differ by at most `tie_gap`, else flip if the observed label contradicts
    them, else clean.
    """
    table = pairs.table
    gap = pc.subtract(table["score_chosen"], table["score_rejected"])
    tie = pc.less_equal(pc.abs(gap), tie_gap)
    states = pc.if_else(tie, "tie", pc.if_else(pc.less(gap, 0), "flip", "clean"))
    return pairs.with_table(_with_column(table, "oracle_state", states))


def _uniform(seed: int, pair_id: str) -> float:
    digest = hashlib.sha256(f"flip:{seed}:{pair_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _with_column(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), values)
