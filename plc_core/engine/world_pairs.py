"""Preference pairs and exact ties of the embedded world: samples of the policy and their reward."""

from __future__ import annotations

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
from plc_core.progress import Progress
from plc_core.storage import cached_table

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
    table = cached_table(
        "world_pairs",
        [world_fingerprint(), model_identity(policy), count, seed, str(_SCHEMA)],
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
    what = [world_fingerprint(), model_identity(policy), count, seed, training_count]
    table = cached_table(
        "world_ties",
        [*what, str(_RESPONSES)],
        lambda: _responses(policy, tokenizer, count, seed, progress, training_count),
    )
    return tie_pool(table.to_pylist(), source="world")


def _sample(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    seed: int,
    progress: Progress,
) -> pa.Table:
    prompts = [prompt.text for prompt in training_prompts(count, seed)]
    ids = [prompt_ids(tokenizer, [{"role": "user", "content": text}]) for text in prompts]
    # Both samples of a prompt in one call, so that they differ.
    responses = generate(
        policy, tokenizer, ids + ids, "sampled", RESPONSE_TOKENS, seed, progress=progress
    )
    rng = np.random.default_rng(seed)
    rows = [
        _row(prompt, one, other, rng)
        for prompt, one, other in zip(prompts, responses[:count], responses[count:], strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _responses(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    seed: int,
    progress: Progress,
    training_count: int,
) -> pa.Table:
    prompts = [p.text for p in training_prompts(training_count + count, seed)[training_count:]]
    prompts *= _TIE_SAMPLES
    ids = [prompt_ids(tokenizer, [{"role": "user", "content": text}]) for text in prompts]
    responses = generate(
        policy, tokenizer, ids, "sampled", RESPONSE_TOKENS, seed, progress=progress
    )
    rows = [
        {"prompt": prompt, "response": r.text, "score": gold_reward(prompt, r.text, r.finished)}
        for prompt, r in zip(prompts, responses, strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=_RESPONSES)


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
