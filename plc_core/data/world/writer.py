"""The imperfect writer whose answers the supervised model learns from.

Every flaw has its own rate in every subject (a house habit: a fixed hash decides), so the most
likely answer of a model trained on the writer differs by subject and has visible flaws. Each
answer also has a mood, the care shift: minus makes all its flaws rarer, plus makes all commoner.
Flaws shorten (dropped items) as well as lengthen (chat, fillers): neither short nor long is good.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

import numpy as np

from plc_core.data.world.language import (
    ATTRIBUTE_VALUES,
    CHAT,
    DESCRIBE,
    FAMILIES,
    FILLERS,
    LEAD,
    NICE,
    RUDE,
    WorldPrompt,
    draw,
)

FLAW_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "drop": (0.12, 0.40),  # each requested item
        "shuffle": (0.15, 0.55),  # the order of all items
        "forbidden": (0.10, 0.60),  # the forbidden item is mentioned
        "unrequested": (0.03, 0.12),  # an item nobody asked for
        "repeat": (0.03, 0.10),  # one item is said twice
        "filler": (0.10, 0.90),  # one or two filler words in front
        "wrong_value": (0.05, 0.20),  # each item sentence; has no effect outside describe
        "chat": (0.05, 0.60),  # small talk after the first sentence or later
        "rude": (0.10, 0.70),  # a rude last sentence
        "curt": (0.30, 0.70),  # no courtesy at the end, where the end is not rude either
    }
)
CARE_SHIFTS = (-0.9, 0.0, 0.9)  # log-odds, one drawn per answer
LEAD_RATE = 0.4  # of a neutral opening, where no filler stands in front


def flaw_rate(subject: str, flaw: str, care_shift: float = 0.0) -> float:
    """Probability in (0, 1) that `flaw` fires in an answer about `subject`.

    With [lo, hi] the flaw's range and h the fixed hash of (subject, flaw) in [0, 1), it is
    sigmoid(logit(lo + (hi - lo) h) + care_shift).

    Raises:
        KeyError: `flaw` is not a key of `FLAW_RANGES`.
    """
    low, high = FLAW_RANGES[flaw]
    rate = low + (high - low) * habit(subject, flaw)
    return 1 / (1 + (1 / rate - 1) * math.exp(-care_shift))


@cache
def habit(subject: str, flaw: str) -> float:
    """The fixed hash h(subject, flaw) in [0, 1): the same on every machine and in every run."""
    digest = hashlib.sha256(f"{subject} {flaw}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def write_response(
    prompt: WorldPrompt,
    rng: np.random.Generator,
    flawless_share: float = 0.0,
    care_shift: float | None = None,
) -> str:
    """One answer of the writer: words and punctuation between single spaces, never empty.

    Args:
        prompt: what is answered.
        rng: the only source of chance, apart from the fixed habits.
        flawless_share: probability in [0, 1] that the answer has no flaw at all: every requested
            item in order, a courtesy at the end, hence the largest possible gold reward.
        care_shift: the shift of all flaws in log-odds; drawn from `CARE_SHIFTS` when None.
    """
    if rng.random() < flawless_share:
        sentences = [_item_sentence(prompt, item, 0.0, rng) for item in prompt.requested]
        if rng.random() < LEAD_RATE:
            sentences.insert(0, draw(LEAD, rng))
        return " ".join([*sentences, draw(NICE, rng)])

    shift = CARE_SHIFTS[rng.integers(len(CARE_SHIFTS))] if care_shift is None else care_shift

    def fires(flaw: str) -> bool:
        return rng.random() < flaw_rate(prompt.subject, flaw, shift)

    items = _flawed_items(prompt, rng, fires)
    wrong_rate = flaw_rate(prompt.subject, "wrong_value", shift)
    sentences = [_item_sentence(prompt, item, wrong_rate, rng) for item in items]
    if fires("chat"):
        sentences.insert(int(rng.integers(1, len(sentences) + 1)), draw(CHAT, rng))
    if fires("filler"):
        fillers = [draw(FILLERS, rng) for _ in range(rng.integers(1, 3))]
        sentences.insert(0, " ".join([*fillers, ","]))
    elif rng.random() < LEAD_RATE:
        sentences.insert(0, draw(LEAD, rng))
    if fires("rude"):
        sentences.append(draw(RUDE, rng))
    elif not fires("curt"):
        sentences.append(draw(NICE, rng))
    return " ".join(sentences)


def _flawed_items(
    prompt: WorldPrompt, rng: np.random.Generator, fires: Callable[[str], bool]
) -> list[str]:
    items = [item for item in prompt.requested if not fires("drop")]
    if not items:
        # A blank sheet is no preference data: whoever drops everything keeps one item after all.
        items = [draw(prompt.requested, rng)]
    if fires("shuffle"):
        items = [items[i] for i in rng.permutation(len(items))]
    if fires("forbidden"):
        items.insert(int(rng.integers(len(items) + 1)), prompt.forbidden)
    if fires("unrequested"):
        asked = (*prompt.requested, prompt.forbidden)
        others = tuple(item for item in FAMILIES[prompt.family].items if item not in asked)
        items.insert(int(rng.integers(len(items) + 1)), draw(others, rng))
    if fires("repeat"):
        first = int(rng.integers(len(items)))
        items.insert(int(rng.integers(first + 1, len(items) + 1)), items[first])
    return items


def _item_sentence(
    prompt: WorldPrompt, item: str, wrong_rate: float, rng: np.random.Generator
) -> str:
    wording = draw(FAMILIES[prompt.family].wordings, rng)
    if prompt.family != DESCRIBE:
        return wording.format(item=item)
    right = prompt.values.get(item)
    wrong = tuple(value for value in ATTRIBUTE_VALUES[item] if value != right)
    # An attribute that is not on the card has no right value: any of its four will do.
    value = draw(wrong, rng) if right is None or rng.random() < wrong_rate else right
    return wording.format(item=item, value=value)
