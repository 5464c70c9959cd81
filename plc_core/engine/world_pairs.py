"""Preference pairs of the embedded world: two samples of the policy, ordered by the gold reward."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plc_core.data import Pairs, pairs_from_rows
from plc_core.data.world import RESPONSE_TOKENS, gold_reward, world_fingerprint
from plc_core.data.world.prompts import training_prompts
from plc_core.engine.models import model_identity
from plc_core.engine.sampling import Response, generate
from plc_core.engine.tokens import prompt_ids
from plc_core.files import RunError, cache_dir, exclusive, read_table, write_table
from plc_core.progress import Progress

_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("prompt", "chosen", "rejected")]
    + [(name, pa.float64()) for name in ("score_chosen", "score_rejected")]
)

WORLD_PAIRS = 6144
"""The default number of prompts: 96 optimizer steps of 64 pairs."""


def world_pairs(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    seed: int,
    progress: Progress,
) -> Pairs:
    """Up to `count` clean pairs: two samples at temperature 1 for each of `count` fresh prompts.

    The response with the larger gold reward is chosen; equal rewards are ordered at random; the
    same text twice is left out. Kept on disk by the world, the policy, count and seed.
    """
    settings = [world_fingerprint(), model_identity(policy), count, seed]
    name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    path = cache_dir() / "world_pairs" / f"{name}.parquet"
    with exclusive(path):
        table = _whole(path, count)
        if table is None:  # missing, or damaged: sampled again
            rows = _sample(policy, tokenizer, count, seed, progress)
            table = pa.Table.from_pylist(rows, schema=_SCHEMA)
            write_table(path, table)
    return pairs_from_rows(table.to_pylist(), source="world")


def _whole(path: Path, count: int) -> pa.Table | None:
    try:
        table = read_table(path)
    except RunError:
        return None
    whole = table.schema == _SCHEMA and len(table) == count
    return table if whole and not any(column.null_count for column in table.columns) else None


def _sample(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    seed: int,
    progress: Progress,
) -> list[dict[str, object]]:
    prompts = [prompt.text for prompt in training_prompts(count, seed)]
    ids = [prompt_ids(tokenizer, [{"role": "user", "content": text}]) for text in prompts]
    # Both samples of a prompt in one call, so that they differ.
    responses = generate(
        policy, tokenizer, ids + ids, "sampled", RESPONSE_TOKENS, seed, progress=progress
    )
    rng = np.random.default_rng(seed)
    return [
        _row(prompt, one, other, rng)
        for prompt, one, other in zip(prompts, responses[:count], responses[count:], strict=True)
    ]


def _row(
    prompt: str, one: Response, other: Response, rng: np.random.Generator
) -> dict[str, object]:
    first, second = (gold_reward(prompt, r.text, r.finished) for r in (one, other))
    swap = second > first or (second == first and rng.random() < 0.5)
    (chosen, score_chosen), (rejected, score_rejected) = (
        ((other, second), (one, first)) if swap else ((one, first), (other, second))
    )
    return {
        "prompt": prompt,
        "chosen": chosen.text,
        "rejected": rejected.text,
        "score_chosen": score_chosen,
        "score_rejected": score_rejected,
    }
