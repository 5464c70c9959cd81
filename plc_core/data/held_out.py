"""A part of the pairs that no run trains on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plc_core.data.corruption.draws import hash64
from plc_core.data.pairs import DataError, Pairs
from plc_core.data.rules import FINDINGS

RULE = "held-out"


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
            {"rule": RULE, "action": "drop", "file": "", "row": None, "pair_id": i,
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
