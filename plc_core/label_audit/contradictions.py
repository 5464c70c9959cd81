"""Labels on one question that contradict each other: at most one side is right.

Pairs that show the same two answers to the same prompt ask one question. Where their labels
differ, the flip probabilities of single labels cannot stand side by side: of two that contradict
each other exactly one is reversed. What each label says is taken as independent given the truth.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

QUESTION = ["prompt", "chosen", "rejected"]
"""The columns of a pair that say what its label is about."""

_CERTAIN = 1e-6
"""Probabilities are kept this far from 0 and 1, so that one label does not outvote any number."""


def questions(batches: Iterable[pa.Table]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The question of each pair, [pairs] from 0, and whether its chosen answer is the lower text.

    Two pairs of one question with different second values contradict each other.

    Args:
        batches: of pairs, with the columns `QUESTION`.
    """
    names, lower = [], []
    for batch in batches:
        for prompt, chosen, rejected in zip(
            *(batch[name].to_pylist() for name in QUESTION), strict=True
        ):
            names.append(json.dumps([prompt, *sorted((chosen, rejected))]))
            lower.append(chosen < rejected)
    hashed = pd.util.hash_array(np.array(names, dtype=object)) if names else np.empty(0, np.uint64)
    _, question = np.unique(hashed, return_inverse=True)
    return question, np.array(lower, dtype=bool)


def reconciled(
    p_flip: NDArray[np.float64], question: NDArray[np.int64], lower: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Flip probabilities in which labels on one question agree on what the truth is.

    Pairs whose question has one label, or labels that all agree, keep theirs.

    Args:
        p_flip: [pairs], each label judged alone.
        question, lower: of `questions`.
    """
    log_odds = np.log1p(-np.clip(p_flip, _CERTAIN, 1 - _CERTAIN)) - np.log(
        np.clip(p_flip, _CERTAIN, 1 - _CERTAIN)
    )
    upwards = np.where(lower, log_odds, -log_odds)  # for the lower text being the better answer
    total = np.bincount(question, upwards)
    ways = np.stack([np.bincount(question, lower), np.bincount(question, ~lower)])
    disputed = np.minimum(*ways)[question] > 0
    said = np.where(lower, total[question], -total[question])
    return np.where(disputed, 1 / (1 + np.exp(np.clip(said, -700, 700))), p_flip)


def disputes(question: NDArray[np.int64], lower: NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    """(pair, a pair that contradicts it) for every pair that is contradicted."""
    first: dict[tuple[int, bool], int] = {}
    for row, key in enumerate(zip(question.tolist(), lower.tolist(), strict=True)):
        first.setdefault(key, row)
    for row, (of, is_lower) in enumerate(zip(question.tolist(), lower.tolist(), strict=True)):
        if (other := first.get((of, not is_lower))) is not None:
            yield row, other
