"""Prompts to train on and prompts held out, which never meet."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from plc_core.data.world.language import WorldPrompt, sample_prompt

_HELD_OUT_SEED = 20_260_101


def training_prompts(count: int, seed: int) -> list[WorldPrompt]:
    """`count` fresh prompts to make pairs from; none is ever a held-out one."""
    return _take(count, seed, held_out=False)


def held_out_prompts(count: int) -> list[WorldPrompt]:
    """The first `count` prompts of the one evaluation set; distinct, and the same for every run."""
    return _take(count, _HELD_OUT_SEED, held_out=True)


def _take(count: int, seed: int, held_out: bool) -> list[WorldPrompt]:
    taken: dict[str, WorldPrompt] = {}
    stream = _stream(seed)
    while len(taken) < count:
        prompt = next(stream)
        if _is_held_out(prompt.text) == held_out:
            taken.setdefault(prompt.text, prompt)
    return list(taken.values())


def _stream(seed: int) -> Iterator[WorldPrompt]:
    rng = np.random.default_rng(seed)
    while True:
        yield sample_prompt(rng)


def _is_held_out(text: str) -> bool:
    # By content, so that no seed and no number of prompts can make the two sets meet.
    return hashlib.sha256(text.encode()).digest()[0] < 16
