"""The true state of each pair, where the scores are the truth."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from plc_core.data.pairs import Pairs, set_column

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
