"""Exact ties: of several scored answers to one prompt, two with the same score.

The paper puts "equal-score response pairs" in place of UltraFeedback pairs (appendix "Exact-Tie
Injection Dataset") and does not say which. Here they are answers of one row with the same score,
each answer in one tie at most, so that no answer counts twice.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

from plc_core.data.pairs import DataError
from plc_core.data.rules import RowError

_ANSWERS = ("instruction", "completions")  # of a row of openbmb/UltraFeedback
_ASPECTS = ("helpfulness", "honesty", "instruction_following", "truthfulness")
_SOURCE = "ultrafeedback"


def has_answers(row: Any) -> bool:
    """Whether a raw row holds several answers rather than a pair."""
    return isinstance(row, Mapping) and all(row.get(name) is not None for name in _ANSWERS)


def exact_ties(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The exact ties of a row, as rows with prompt, both answers, scores, ratings and models.

    The score is `overall_score` where two answers or more have it, else the mean of their four
    ratings; an answer without it is left out.

    Raises:
        RowError: where the row holds no two answers with a score, or no two with the same.
    """
    prompt, answers = row["instruction"], row["completions"]
    if not isinstance(answers, list) or not all(isinstance(a, Mapping) for a in answers):
        raise RowError("wrong-type", "completions is not a list of answers")
    texts = [a for a in answers if isinstance(a.get("response"), str)]
    scored = _scored(texts, overall=True)
    if len(scored) < 2:
        scored = _scored(texts, overall=False)
    if len(scored) < 2:
        raise RowError("wrong-type", "completions does not hold two answers with a score")
    # A text that occurs twice counts once; its first answer has the ratings.
    known = {answer["response"]: answer for answer, _ in reversed(scored)}
    found = matched_ties([{"prompt": prompt, "response": a["response"], "score": s}
                          for a, s in scored])  # fmt: skip
    rest = {k: v for k, v in row.items() if k not in (*_ANSWERS, "models", "source")}
    rest |= {"source": _SOURCE, "subset": row.get("source")}
    ties = [{**rest, **tie, **_told(known, tie)} for tie in found]
    if not ties:
        scores = ", ".join(f"{score:g}" for _, score in scored)
        raise RowError("no-tie", f"the scores of the answers are {scores}")
    return ties


def matched_ties(responses: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The raw rows of `corruption.tie_pool`: prompt, both answers and their scores."""
    groups: dict[str, dict[str, tuple[int, set[float]]]] = defaultdict(dict)
    for number in range(len(responses)):
        prompt, text, score = _checked(responses[number], number)
        seen = groups[prompt].setdefault(text, (number, set()))
        seen[1].add(score)
    for prompt in sorted(groups):
        by_score: dict[float, list[int]] = defaultdict(list)
        for text in sorted(groups[prompt]):
            number, scores = groups[prompt][text]
            if len(scores) == 1:
                by_score[min(scores)].append(number)
        for score in sorted(by_score):
            members = by_score[score]
            for one, other in zip(members[::2], members[1::2], strict=False):
                yield pair_of(responses[one], responses[other])


def pair_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two scored responses to one prompt as a row: the first one is chosen."""
    return {
        "prompt": one["prompt"],
        "chosen": one["response"],
        "rejected": other["response"],
        "score_chosen": one["score"],
        "score_rejected": other["score"],
    }


def _checked(row: dict[str, Any], number: int) -> tuple[str, str, float]:
    """The digests of prompt and response, and the score."""
    place = f"Row {number + 1} of the responses"
    for name in ("prompt", "response", "score"):
        if row.get(name) is None:
            raise DataError(f"{place} has no {name}; a tie needs prompt, response and score.")
    if not isinstance(row["response"], str):
        raise DataError(f"{place}: response is a text, not {type(row['response']).__name__}.")
    score = row["score"]
    if isinstance(score, bool) or not isinstance(score, Real) or not math.isfinite(score):
        raise DataError(f"{place}: score is a finite number, not {score!r}.")
    prompt = _digest(json.dumps(row["prompt"], sort_keys=True, default=str))
    return prompt, _digest(prompt + row["response"]), float(score)


def _digest(text: str) -> str:
    # A lone surrogate is not UTF-8; validation lists its row later.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _told(known: Mapping[str, Mapping[str, Any]], tie: Mapping[str, Any]) -> dict[str, Any]:
    """Ratings, where all four are there, and the model of both answers."""
    told: dict[str, Any] = {}
    for side in ("chosen", "rejected"):
        answer = known[tie[side]]
        if ratings := _ratings(answer):
            told[f"ratings_{side}"] = ratings
        told[f"model_{side}"] = answer.get("model")
    return told


def _scored(
    answers: list[Mapping[str, Any]], overall: bool
) -> list[tuple[Mapping[str, Any], float]]:
    scores = [_number(a.get("overall_score")) if overall else _mean(a) for a in answers]
    return [(a, score) for a, score in zip(answers, scores, strict=True) if score is not None]


def _mean(answer: Mapping[str, Any]) -> float | None:
    ratings = _ratings(answer)
    return sum(ratings) / len(ratings) if ratings else None


def _ratings(answer: Mapping[str, Any]) -> list[float]:
    """The ratings of the four aspects; none where one is missing or no number, as "N/A"."""
    notes = answer.get("annotations")
    if not isinstance(notes, Mapping):
        return []
    asked = [notes[a].get("Rating") if isinstance(notes.get(a), Mapping) else None
             for a in _ASPECTS]  # fmt: skip
    numbers = [_number(value) for value in asked]
    return [] if None in numbers else [n for n in numbers if n is not None]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
