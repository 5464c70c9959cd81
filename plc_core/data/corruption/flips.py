"""Reversed labels, at random or of the hardest pairs; which are left alone, and which are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plc_core.data.corruption.draws import (
    check_share,
    count_of,
    hashes,
    read_columns,
    score_gaps,
    smallest,
    uniform,
)
from plc_core.data.pairs import DataError, Pairs, set_column, swap

HardPair = Literal["lowest-margin", "largest-gap", "smallest-gap"]

_KEYS = ["pair_id", "source", "score_chosen", "score_rejected", "injected_tie", "warm"]


def flip_labels(pairs: Pairs, rate: float, seed: int) -> Pairs:
    """Swap chosen and rejected, with their scores and votes, of each pair with probability `rate`.

    The paper's random label noise (appendix "Synthetic Label-Noise Injection"): independent for
    each pair, the same corrupted set for every method.

    Whether a pair flips depends on its id, the seed and the rate alone: the same pairs flip on
    every machine, in every order and under every objective, and the pairs flipped at a lower rate
    are among those of a higher one. Flipped pairs keep their id and are marked; a known
    oracle_state goes along. Warm pairs and injected ties are left alone. A pair that was flipped
    before is turned back, so the same flips twice are none.

    Raises:
        DataError: for a rate outside [0, 1].
    """
    check_share(rate, "The flip rate is a probability")

    def flipped(batch: pa.Table, _: int) -> pa.Table:
        ids = batch["pair_id"].to_pylist()
        return reverse(batch, np.array([uniform("flip", seed, i) < rate for i in ids], bool))

    return pairs.map(flipped)


def flip_hardest(
    pairs: Pairs,
    rate: float,
    by: HardPair = "lowest-margin",
    margins: Mapping[str, float] | pd.Series | None = None,
) -> Pairs:
    """Swap the labels of the hardest `round(rate * len(pairs))` pairs, halves rounded to even.

    The paper corrupts "hard pairs" and does not define them, so there are three readings:

    - lowest-margin: the lowest margin of a model trained on the clean labels. The default, as only
      it reproduced the published pattern (marker AUROC below one half at small rates, rising with
      the rate) on the prototype of the embedded world;
    - largest-gap, smallest-gap: the largest or smallest absolute difference of the two scores. The
      scales of two sources cannot be compared, so each pair's place among the pairs of its own
      source, as a share of them, is ranked: each source gives the same share of its pairs, to
      within one pair.

    The rate is a share of all pairs; warm pairs and injected ties are not ranked. Equal ranks are
    ordered by a hash of the pair id. The pairs of a lower rate are among those of a higher one,
    and which they are does not depend on flips made before. Markers as in `flip_labels`.

    Args:
        margins: for lowest-margin, the margin of each pair by its id, in nats, of the answer that
            was *read* as chosen over the other one, whichever is observed as chosen now.

    Raises:
        DataError: for a rate outside [0, 1] or more than the pairs that can be chosen, an unknown
            reading, and margins or scores that are missing or not finite, counted, with an example.
    """
    check_share(rate, "The flip rate is a share")
    if by not in get_args(HardPair):
        raise DataError(f"by is one of {', '.join(get_args(HardPair))}; it is {by!r}.")
    if by == "lowest-margin" and margins is None:
        raise DataError(
            "by='lowest-margin' needs margins: those of a model trained on the clean labels, by "
            "pair id. Without such a model, use by='largest-gap' or by='smallest-gap'."
        )
    if margins is not None and not isinstance(margins, (Mapping, pd.Series)):
        raise DataError(f"margins are by pair id, as a dict; they are a {type(margins).__name__}.")
    if by != "lowest-margin" and margins is not None:
        raise DataError(f"by={by!r} does not use margins; leave them out.")
    keys = read_columns(pairs, _KEYS)
    eligible = ~(keys["warm"] | keys["injected_tie"]).to_numpy(bool)
    count = count_of(rate, len(pairs), int(eligible.sum()), "flips")
    tie_break = hashes(keys["pair_id"], "hardest")
    if margins is not None:
        hardness = _margins_of(keys["pair_id"], margins, eligible)
    else:
        advice = "Rank by margins instead, or leave these pairs out."
        gaps = np.abs(score_gaps(keys, advice, eligible))
        hardness = -gaps if by == "largest-gap" else gaps
        hardness = _place_in_source(hardness, keys["source"], tie_break, eligible)
    hit = np.zeros(len(pairs), bool)
    hit[smallest((hardness, tie_break), eligible, count)] = True
    return pairs.map(lambda batch, start: reverse(batch, hit[start : start + len(batch)]))


def reverse(batch: pa.Table, wanted: np.ndarray) -> pa.Table:
    """A batch with the wanted labels reversed and marked, but not of warm pairs or injected ties.

    Args:
        wanted: bool, one a pair of the batch.
    """
    left_alone = pc.or_(batch["warm"], batch["injected_tie"])
    flips = pc.and_not(pa.chunked_array([wanted]), left_alone).combine_chunks()
    batch = set_column(swap(batch, flips), "flipped", pc.xor(batch["flipped"], flips))
    states = batch["oracle_state"]
    other = pc.if_else(pc.equal(states, "flip"), "clean", states)
    other = pc.if_else(pc.equal(states, "clean"), "flip", other)
    return set_column(batch, "oracle_state", pc.if_else(flips, other, states))


def _margins_of(
    ids: pd.Series, margins: Mapping[str, float] | pd.Series, eligible: np.ndarray
) -> np.ndarray:
    named = margins if isinstance(margins, pd.Series) else pd.Series(dict(margins), dtype=object)
    if named.index.has_duplicates:
        twice = named.index[named.index.duplicated()]
        raise DataError(f"margins names {len(twice)} pairs twice, for example {twice[0]}.")
    # What is no number becomes NaN, and is then refused with the rest.
    values = pd.to_numeric(named, errors="coerce").reindex(ids).to_numpy("float64", na_value=np.nan)
    bad = eligible & ~np.isfinite(values)
    if bad.any():
        raise DataError(
            f"margins has no finite margin for {bad.sum()} of {eligible.sum()} pairs, for example "
            f"{ids[bad].iloc[0]}. The model has to score every pair that may be flipped."
        )
    return values


def _place_in_source(
    hardness: np.ndarray, sources: pd.Series, tie_break: np.ndarray, eligible: np.ndarray
) -> np.ndarray:
    """The place of each eligible pair among those of its source, in (0, 1); NaN for the others."""
    rows = np.flatnonzero(eligible)
    codes = pd.factorize(sources[eligible], use_na_sentinel=False)[0]
    order = np.lexsort((tie_break[rows], hardness[rows], codes))
    sizes = np.bincount(codes)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    places = np.full(len(hardness), np.nan)
    places[rows[order]] = (np.arange(len(rows)) - first + 0.5) / sizes[codes[order]]
    return places


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
