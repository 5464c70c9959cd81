"""Parts of the pairs: those that no run trains on, and those whose scores differ least and most."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plc_core.data.corruption.draws import hash64, hashes, read_columns, smallest
from plc_core.data.pairs import DataError, Pairs
from plc_core.data.rules import FINDINGS

_KEYS = ["pair_id", "source", "score_chosen", "score_rejected"]
_SUMMARY = [
    "source", "scored", "unscored", "per_slice",
    "low_edge", "low_edge_shared", "low_edge_taken",
    "high_edge", "high_edge_shared", "high_edge_taken", "note",
]  # fmt: skip


class GapSlices(NamedTuple):
    """The slices of some pairs.

    Attributes:
        table: one row a pair, in their order: pair_id, gap (|score_chosen - score_rejected|, NaN
            without scores), slice (low, high or null).
        summary: one row a source: source, scored, unscored (pairs with and without two finite
            scores), per_slice (pairs in each slice), and for the slice low and for high the gap at
            its edge, how many pairs of the source share that gap and how many of those are in the
            slice: low_edge, low_edge_shared, low_edge_taken, high_edge, …; note (a sentence where
            there is no slice, or where both reach the same gap; else null).
    """

    table: pd.DataFrame
    summary: pd.DataFrame


def gap_slices(pairs: Pairs, share: float = 0.2) -> GapSlices:
    """The bottom and top `share` of the pairs by their absolute score gap.

    The paper's weak-gap slices (appendix "Weak-Gap Preference Dataset") are the bottom and top
    20 % of held-out pairs; it does not say what happens to equal gaps or to several sources. Here:

    - the scales of two sources cannot be compared, so pairs are ranked within their source;
    - each slice has exactly floor(share * n) of the n scored pairs of its source;
    - among pairs with the gap at a slice's edge, those with the smallest hash of their id are
      taken, whatever the order of the pairs; the summary says how many shared that gap;
    - a pair is in one slice at most: where both reach the same gap, low is filled first;
    - a source with too few pairs for one in each slice, or with one gap for all, has no slices.

    Raises:
        DataError: for a share that is not above 0 and at most one half.
    """
    return slices_of(read_columns(pairs, _KEYS), share)


def slices_of(keys: pd.DataFrame, share: float) -> GapSlices:
    """`gap_slices` of a table with the columns pair_id, source, score_chosen and score_rejected."""
    if not 0 < share <= 0.5:
        raise DataError(f"The share must lie in (0, 0.5]; it is {share!r}.")
    keys = keys.reset_index(drop=True)
    gaps = (keys["score_chosen"] - keys["score_rejected"]).abs().astype("float64")
    gaps[~np.isfinite(gaps)] = np.nan
    tie_break = hashes(keys["pair_id"], "slice")
    slices = np.full(len(keys), None, dtype=object)
    rows = []
    for source, members in keys.groupby("source", dropna=False):
        ranked = members.index[gaps[members.index].notna()].to_numpy()
        low, high, note = _slices_of(gaps[ranked].to_numpy(), tie_break[ranked], share)
        low, high = ranked[low], ranked[high]
        slices[low], slices[high] = "low", "high"
        counts = {"source": source, "scored": len(ranked), "unscored": len(members) - len(ranked)}
        edges = _edge("low", gaps[ranked], gaps[low]) | _edge("high", gaps[ranked], -gaps[high])
        rows.append(counts | {"per_slice": len(low)} | edges | {"note": note})
    columns = {"pair_id": keys["pair_id"], "gap": gaps, "slice": pd.Series(slices, dtype="str")}
    return GapSlices(pd.DataFrame(columns), pd.DataFrame(rows, columns=_SUMMARY))


def _slices_of(
    gaps: np.ndarray, tie_break: np.ndarray, share: float
) -> tuple[np.ndarray, np.ndarray, str | None]:
    """The places of the low and of the high slice among the scored pairs of one source."""
    nothing = np.array([], dtype=int)
    # Exact: in floating point, 0.29 of 100 would be 28.
    size = int(Fraction(str(share)) * len(gaps))
    if size == 0:
        return nothing, nothing, f"{len(gaps)} scored pairs are too few for slices of {share}."
    if np.ptp(gaps) == 0:
        return (
            nothing,
            nothing,
            f"All {len(gaps)} scored pairs have the gap {gaps[0]:g}: no slices.",
        )
    free = np.ones(len(gaps), bool)
    low = smallest((gaps, tie_break), free, size)
    free[low] = False
    high = smallest((-gaps, tie_break), free, size)
    if gaps[low].max() < gaps[high].min():
        return low, high, None
    return low, high, f"Both slices reach the gap {gaps[low].max():g}: at it they do not differ."


def _edge(name: str, ranked: pd.Series, taken: pd.Series) -> dict[str, Any]:
    """The gap at the edge of a slice, and how many pairs of the source and of the slice have it."""
    edge = abs(taken.max()) if len(taken) else np.nan
    return {
        f"{name}_edge": edge,
        f"{name}_edge_shared": int((ranked == edge).sum()),
        f"{name}_edge_taken": int((taken.abs() == edge).sum()),
    }


# ---- held-out pairs ------------------------------------------------------------------------------


def split_held_out(pairs: Pairs, count: int) -> tuple[Pairs, Pairs]:
    """The pairs to train on, and at least `count` that are held out.

    Whole prompts are held out, those with the smallest hash until there are enough pairs, so no
    prompt is in both parts; where prompts have several pairs there may be a few more than `count`.
    The part is the same for every seed, method and corruption, and a smaller one is within a
    larger one. In the report of those to train on the others are listed under `held-out`.

    Raises:
        DataError: where nothing would be left to train on.
    """
    prompts = prompt_digests(pairs)
    places = np.fromiter((hash64("held out", p) for p in prompts), np.uint64, len(prompts))
    order = np.argsort(places, kind="stable")
    out = np.zeros(len(pairs), dtype=bool)
    out[order[:count]] = True
    if count:
        out |= places <= places[order[min(count, len(pairs)) - 1]]
    if out.all():
        raise DataError(
            f"held_out is {count:,} of {len(pairs):,} pairs, which leaves none to train on: hold "
            "fewer out, or read more pairs."
        )
    ids = [pair_id for b in pairs.batches(["pair_id"]) for pair_id in b["pair_id"].to_pylist()]
    away = pa.array([i for i, held in zip(ids, out, strict=True) if held], pa.string())
    train, held = _part(pairs, ~out), _part(pairs, out)
    kept = pc.invert(
        pc.and_(
            pc.is_in(pairs.findings["pair_id"], away), pc.equal(pairs.findings["action"], "keep")
        )
    )
    listed = pa.Table.from_pylist(
        [
            {"rule": "held-out", "action": "drop", "file": "", "row": None, "pair_id": i,
             "reason": "to be read by policies that were not trained on it"}
            for i in away.to_pylist()
        ],
        schema=FINDINGS,
    )  # fmt: skip
    findings = pa.concat_tables([pairs.findings.filter(kept), listed])
    return replace(train, findings=findings), replace(held, rows_read=len(held))


def prompt_digests(pairs: Pairs) -> list[str]:
    """A hash of each pair's prompt, in order."""
    return [
        prompt_digest(turns)
        for batch in pairs.batches(["prompt"])
        for turns in batch["prompt"].to_pylist()
    ]


def prompt_digest(turns: Iterable[Mapping[str, str]]) -> str:
    """A hash of a prompt's messages."""
    said = [[turn["role"], turn["content"]] for turn in turns]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def of_prompts(pairs: Pairs, prompts: set[str], inside: bool) -> Pairs:
    """The pairs whose prompt's digest is among `prompts`, or those whose is not."""
    return _part(pairs, np.array([(p in prompts) == inside for p in prompt_digests(pairs)], bool))


def first_pairs(pairs: Pairs, count: int) -> Pairs:
    """The first `count` pairs, or all where there are fewer."""
    return pairs if len(pairs) <= count else _part(pairs, np.arange(len(pairs)) < count)


def _part(pairs: Pairs, mask: np.ndarray) -> Pairs:
    return pairs.map(lambda batch, start: batch.filter(pa.array(mask[start : start + len(batch)])))
