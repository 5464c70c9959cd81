"""Marks on pairs: a clean start that corruption leaves alone, and the truth where it is known."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from plc_core.data.corruption.draws import (
    check_share,
    count_of,
    hashes,
    read_columns,
    smallest,
)
from plc_core.data.pairs import Pairs, set_column


def warm_start(pairs: Pairs, share: float, seed: int) -> Pairs:
    """Mark `round(share * len(pairs))` pairs as warm, halves rounded to even.

    Corruption that comes later leaves warm pairs alone, and training visits them first. This is
    the reading of a warm start on the side of the data. The paper's own (appendix
    "Self-Confirmation", 7 % extended to 30 %) is the objective's option `warmup`: it trains with
    plain DPO at first, on corrupted pairs like all others.

    The pairs with the smallest hash of seed and id are chosen, so a smaller share is part of a
    larger one. Pairs that are flipped or injected ties already are not chosen; pairs that are
    warm already stay warm.

    Raises:
        DataError: for a share outside [0, 1] or more than the pairs that are not corrupted.
    """
    check_share(share, "The warm start is a share")
    keys = read_columns(pairs, ["pair_id", "flipped", "injected_tie", "warm"])
    eligible = ~(keys["flipped"] | keys["injected_tie"]).to_numpy(bool)
    count = count_of(share, len(pairs), int(eligible.sum()), "warm pairs")
    warm = keys["warm"].to_numpy(bool, copy=True)
    warm[smallest((hashes(keys["pair_id"], "warm", seed),), eligible, count)] = True

    def marked(batch: pa.Table, start: int) -> pa.Table:
        return set_column(batch, "warm", pa.chunked_array([warm[start : start + len(batch)]]))

    return pairs.map(marked)


TIE_GAP = 0.25
"""In the embedded world, pairs whose gold rewards differ by at most one step of 0.25 are ties."""


def mark_oracle_states(pairs: Pairs, tie_gap: float = TIE_GAP) -> Pairs:
    """Set oracle_state from scores that are the truth, as in the embedded world.

    tie if the scores differ by at most `tie_gap`, else flip if the observed label contradicts
    them, else clean; null without scores. The paper has no such truth.
    """

    def marked(batch: pa.Table, _: int) -> pa.Table:
        gap = pc.subtract(batch["score_chosen"], batch["score_rejected"])
        tie = pc.less_equal(pc.abs(gap), tie_gap)
        states = pc.if_else(tie, "tie", pc.if_else(pc.less(gap, 0), "flip", "clean"))
        return set_column(batch, "oracle_state", states)

    return pairs.map(marked)
