"""Prompts to train on and prompts held out, which never meet."""

from __future__ import annotations

import hashlib

import numpy as np

from plc_core.data.world.language import WorldPrompt, sample_prompt

_HELD_OUT_SEED = 20_260_101


def training_prompt(rng: np.random.Generator) -> WorldPrompt:
    """A fresh prompt for the supervised stage or for a pair; never a held-out one."""
    return _draw(rng, held_out=False)


def training_prompts(count: int, seed: int) -> list[WorldPrompt]:
    """`count` different prompts to make pairs from; a longer list extends a shorter one."""
    return _different(count, seed, held_out=False)


def held_out_prompts(count: int) -> list[WorldPrompt]:
    """The first `count` prompts of the one evaluation set; different, the same for every run."""
    return _different(count, _HELD_OUT_SEED, held_out=True)


def _different(count: int, seed: int, held_out: bool) -> list[WorldPrompt]:
    rng = np.random.default_rng(seed)
    taken: dict[str, WorldPrompt] = {}
    while len(taken) < count:
        prompt = _draw(rng, held_out)
        taken.setdefault(prompt.text, prompt)
    return list(taken.values())


def _draw(rng: np.random.Generator, held_out: bool) -> WorldPrompt:
    while True:
        prompt = sample_prompt(rng)
        # By content, so that no seed and no number of prompts can make the two sets meet.
        if (hashlib.sha256(prompt.text.encode()).digest()[0] < 16) == held_out:
            return prompt
