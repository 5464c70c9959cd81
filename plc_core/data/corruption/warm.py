"""A clean start of training: pairs that corruption leaves alone and training visits first."""

from __future__ import annotations

import pyarrow as pa

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
