"""Rows that are not pairs yet: rankings and votes become chosen and rejected, scored answers ties.

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

from plc_core.data.cells import held_messages
from plc_core.data.dialogues import dialogue, is_dialogue, turns_of
from plc_core.data.pairs import DataError
from plc_core.data.rendered import unrendered, without_end
from plc_core.data.rules import RowError
from plc_core.data.votes import is_missing, parse_vote

FIELDS = (
    "answers", "text", "completion_a", "completion_b", "response_a", "response_b", "score_a",
    "score_b", "input", "preferred_output", "non_preferred_output",
)  # fmt: skip
"""The fields of rows that are no pairs yet, beside those of `rows.FIELDS`."""

_OWN_FIELDS = {"prompt", "chosen", "rejected", "votes", "source", "split", "system", "text"}
_LONGEST_NAME = 40  # characters; anything longer is an answer itself

_ANSWERS = ("instruction", "completions")  # of a row of openbmb/UltraFeedback
_ASPECTS = ("helpfulness", "honesty", "instruction_following", "truthfulness")
_SOURCE = "ultrafeedback"
_ANNOTATIONS = ("normal_worker_annotations", "expert_worker_annotations")


def plain_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row with the fields prompt, chosen and rejected, whatever shape it came in.

    Nectar's rankings, MultiPref's annotated comparisons, OpenAI's preferred_output and
    non_preferred_output, and comparisons of response_a and response_b by votes of a, b or tie are
    recognised by their fields; other rows stay as they are.

    Raises:
        RowError: for a ranking without two ranks, a comparison without votes, or a vote that is
            not known.
    """
    # A table gives every row all the names, and null where one has no such.
    given = {name for name, value in row.items() if value is not None}
    if has_answers(row) and not given & {"chosen", "rejected"}:
        exact_ties(row)  # says why it has none
        raise RowError("wrong-type", "completions holds several answers, not a pair")
    if given & {"chosen", "rejected"}:
        return _named(row)
    if "answers" in given and isinstance(row["answers"], list):
        return _from_ranking(row)
    if {"preferred_output", "non_preferred_output"} <= given:
        return _from_outputs(row)
    if {"completion_a", "completion_b"} <= given:
        return _from_multipref(row)
    if {"response_a", "response_b"} <= given:
        left_out = ("response_a", "response_b", "votes", "chosen", "rejected")
        rest = {name: value for name, value in row.items() if name not in left_out}
        votes = row.get("votes")
        if isinstance(votes, (str, type(None))):
            votes = [votes]
        if not isinstance(votes, list):
            raise RowError("wrong-type", "votes is not a list")
        return _from_votes(rest, row["response_a"], row["response_b"], votes)
    return row


def _named(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row whose chosen and rejected name two of its other fields, as "a" or "response_a"."""
    names = [row.get(side) for side in ("chosen", "rejected")]
    if not all(isinstance(name, str) and len(name) <= _LONGEST_NAME for name in names):
        return row
    for form in ("{}", "response_{}", "completion_{}", "answer_{}"):
        fields = [form.format(str(name).strip().lower()) for name in names]
        if len(set(fields)) == 2 and all(row.get(field) is not None for field in fields):
            if set(fields) & _OWN_FIELDS:
                continue
            return {**row, "chosen": row[fields[0]], "rejected": row[fields[1]]}
    return row


def _from_outputs(row: Mapping[str, Any]) -> dict[str, Any]:
    """The format of OpenAI's preference fine-tuning."""
    used = ("preferred_output", "non_preferred_output", "chosen", "rejected", "prompt")
    own = row.get("prompt") is None
    rest = {name: row[name] for name in row if name not in used and not (own and name == "input")}
    return {
        **rest,
        "prompt": row.get("input") if own else row["prompt"],
        "chosen": row["preferred_output"],
        "rejected": row["non_preferred_output"],
    }


def _from_ranking(row: Mapping[str, Any]) -> dict[str, Any]:
    """Nectar: the best of the ranked answers against one of the lower ones.

    Which one is the same for everybody: the SHA-256 of the prompt, modulo their number, in order
    of rank. The score is the negative rank, so that more is better.
    """
    answers = [_ranked(answer, n) for n, answer in enumerate(row["answers"], start=1)]
    answers.sort(key=lambda answer: (answer[0], _hash("", answer[1])))  # in any order of the file
    # Nectar repeats an answer where it had fewer than seven.
    lower = [a for a in answers if a[0] > answers[0][0] and a[1] != answers[0][1]]
    if not lower:
        raise RowError("wrong-type", "answers does not hold two texts of different rank")
    prompt = row.get("prompt")
    rank, text, model = lower[_hash(prompt) % len(lower)]
    return {
        **{name: value for name, value in row.items() if name != "answers"},
        "chosen": answers[0][1],
        "rejected": text,
        "score_chosen": -answers[0][0],
        "score_rejected": -rank,
        "model_chosen": answers[0][2],
        "model_rejected": model,
    }


def _ranked(answer: Any, number: int) -> tuple[float, Any, Any]:
    rank = answer.get("rank") if isinstance(answer, Mapping) else None
    if isinstance(rank, bool) or not isinstance(rank, (int, float)) or rank != rank:
        raise RowError("wrong-type", f"answer {number} has no rank that is a number")
    try:
        text = answer.get("answer")
        text = held_messages(text) if isinstance(text, str) else text
        return float(rank), text, answer.get("model")
    except OverflowError:
        raise RowError("wrong-type", f"the rank of answer {number} is too large") from None


def _from_multipref(row: Mapping[str, Any]) -> dict[str, Any]:
    votes = []
    for name in _ANNOTATIONS:
        annotations = row.get(name) or []
        if not isinstance(annotations, list):
            raise RowError("wrong-type", f"{name} is not a list")
        for annotation in annotations:
            if not isinstance(annotation, (Mapping, type(None))):
                raise RowError("wrong-type", f"{name} holds a {type(annotation).__name__}")
            votes.append(annotation.get("overall_pref") if annotation else None)
    used = {"completion_a", "completion_b", "text", "model_a", "model_b", "chosen", "rejected"}
    rest = {name: value for name, value in row.items() if name not in used}
    rest["prompt"] = row.get("text", row.get("prompt"))
    models = row.get("model_a"), row.get("model_b")
    return _from_votes(rest, row["completion_a"], row["completion_b"], votes, models)


def _from_votes(
    rest: Mapping[str, Any],
    a: Any,
    b: Any,
    votes: Sequence[Any],
    models: tuple[Any, Any] | None = None,
) -> dict[str, Any]:
    """The answer with more votes is chosen; level votes are oriented by a hash of the texts.

    An annotator who said nothing (null, NaN, an empty text or a word for it) has no vote.
    """
    given = [vote for vote in votes if not is_missing(vote)]
    if not given:
        raise RowError("no-votes", "the row has no vote on its two answers")
    try:
        sides = [parse_vote(vote) for vote in given]
    except DataError as error:
        raise RowError("unknown-vote", str(error).rstrip(".")) from None
    lead = sides.count("a") - sides.count("b")
    # Neither the order in the file nor a generator's state decides: the same for everybody.
    asked = rest.get("prompt")
    prefers_b = lead < 0 or (lead == 0 and _hash(asked, b) < _hash(asked, a))
    chosen, rejected = (b, a) if prefers_b else (a, b)
    winner = "b" if prefers_b else "a"
    row = {
        **rest,
        "chosen": chosen,
        "rejected": rejected,
        "votes": ["tie" if s == "tie" else "chosen" if s == winner else "rejected" for s in sides],
    }
    if "score_a" in rest or "score_b" in rest:
        scores = row.pop("score_a", None), row.pop("score_b", None)
        row["score_chosen"], row["score_rejected"] = scores[::-1] if prefers_b else scores
    if models is not None:
        row["model_chosen"], row["model_rejected"] = models[::-1] if prefers_b else models
    return row


def _hash(prompt: Any, answer: Any = None) -> int:
    """A hash of what is said, however it is spelled: 64 bits of a SHA-256."""
    said = [_turns(prompt, "user"), _turns(answer, "assistant")[-1:]]
    digest = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def _turns(value: Any, speaker: str) -> Any:
    try:
        if isinstance(value, str):
            alone = [{"role": speaker, "content": without_end(value) or value}]
            turns = dialogue(value) if is_dialogue(value) else unrendered(value) or alone
        else:
            turns = turns_of(value, speaker)
    except RowError:  # no messages, which normalisation will say
        return [value]
    said = [(turn["role"], turn["content"].strip()) for turn in turns]
    return [turn for turn in said if turn != ("assistant", "")]


# ---- several scored answers ----------------------------------------------------------------------


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
