"""Rows that are not pairs yet: rankings and votes become chosen and rejected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from plc_core.data.cells import held_messages
from plc_core.data.dialogues import dialogue, is_dialogue, turns_of
from plc_core.data.exact_ties import exact_ties, has_answers
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
