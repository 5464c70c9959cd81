"""Preference pairs and exact ties of the embedded world: samples of the policy and their reward."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plc_core.data import Pairs, pairs_from_rows
from plc_core.data.corruption import tie_pool
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

_TIE_SAMPLES = 12
_RESPONSES = pa.schema(
    [("prompt", pa.string()), ("response", pa.string()), ("score", pa.float64())]
)


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
    table = _kept(
        "world_pairs",
        settings,
        _SCHEMA,
        count,
        lambda: _sample(policy, tokenizer, count, seed, progress),
    )
    return pairs_from_rows(table.to_pylist(), source="world")


def tie_prompts(pairs: int) -> int:
    """Prompts that give ties enough for 30 % of `pairs`: one gives two on average.

    It does not depend on the rate, so that the ties of a lower rate are among those of a higher.
    """
    return max(1, pairs // 6)


def world_ties(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    seed: int,
    progress: Progress,
    training_count: int = WORLD_PAIRS,
) -> Pairs:
    """A pool of exact ties for `inject_ties`: 12 samples of each of `count` prompts, matched.

    The prompts are those that follow the first `training_count` of the seed, so none of them is a
    prompt of `world_pairs` with that count and seed, nor a held-out one. The samples of a prompt
    are matched by `tie_pool`. Kept on disk by the world, the policy, counts and seed.
    """
    settings = [world_fingerprint(), model_identity(policy), count, seed, training_count]
    table = _kept(
        "world_ties",
        settings,
        _RESPONSES,
        _TIE_SAMPLES * count,
        lambda: _responses(policy, tokenizer, count, seed, progress, training_count),
    )
    return tie_pool(table.to_pylist(), source="world")


def _kept(
    folder: str,
    settings: list[object],
    schema: pa.Schema,
    count: int,
    sample: Callable[[], list[dict[str, object]]],
) -> pa.Table:
    """The table of these settings from the cache, or sampled and put there."""
    name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    path = cache_dir() / folder / f"{name}.parquet"
    with exclusive(path):
        table = _whole(path, schema, count)
        if table is None:  # missing, or damaged: sampled again
            table = pa.Table.from_pylist(sample(), schema=schema)
            write_table(path, table)
    return table


def _whole(path: Path, schema: pa.Schema, count: int) -> pa.Table | None:
    try:
        table = read_table(path)
    except RunError:
        return None
    whole = table.schema == schema and len(table) == count
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


def _responses(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    seed: int,
    progress: Progress,
    training_count: int,
) -> list[dict[str, object]]:
    prompts = [p.text for p in training_prompts(training_count + count, seed)[training_count:]]
    prompts *= _TIE_SAMPLES
    ids = [prompt_ids(tokenizer, [{"role": "user", "content": text}]) for text in prompts]
    responses = generate(
        policy, tokenizer, ids, "sampled", RESPONSE_TOKENS, seed, progress=progress
    )
    return [
        {"prompt": prompt, "response": r.text, "score": gold_reward(prompt, r.text, r.finished)}
        for prompt, r in zip(prompts, responses, strict=True)
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
