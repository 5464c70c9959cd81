"""One raw row to one pair: every spelling of prompt and answers, judged row by row."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from plc_core.data.dialogues import (
    Turn,
    continued,
    dialogue,
    is_dialogue,
    is_visible,
    plain_text,
    same_turns,
    shown,
    turns_of,
    without_system,
)
from plc_core.data.pairs import pair_id
from plc_core.data.rules import RowError
from plc_core.data.votes import VOTES

Mark: TypeAlias = tuple[str, str]
"""A rule that keeps the pair, and the reason."""

FIELDS = (
    "prompt",
    "chosen",
    "rejected",
    "system",
    "score_chosen",
    "score_rejected",
    "ratings_chosen",
    "ratings_rejected",
    "votes",
    "source",
    "split",
)
"""The fields of a row that are read; all others are kept as metadata."""

_UNKNOWN = {"", "n/a", "na", "nan", "none", "null", "-"}  # how files write a missing number
_LONG_PROMPT = 20  # characters; a shorter one may begin an answer by chance


def normalised(
    row: Mapping[str, Any], source: str, split: str
) -> tuple[dict[str, Any], list[Mark]]:
    """The pair of a row in the schema `FEATURES`, and the rules of one row that it falls under.

    A prompt is a text, a dialogue in the form of HH-RLHF ("\\n\\nHuman: …"), or messages. An
    answer is a text, or a dialogue or messages whose last turn is the answer and whose earlier
    turns repeat the prompt, or are it where the row has none. Source and split are those of the
    row, if any.

    Raises:
        RowError: where the row is no pair.
    """
    if not all(isinstance(name, str) for name in row):
        raise RowError("wrong-type", "it has more cells than there are columns")
    before_chosen, chosen = _answer(row, "chosen")
    before_rejected, rejected = _answer(row, "rejected")
    prompt, marks = _prompt(row, before_chosen, before_rejected)
    scores = _score(row, "score_chosen"), _score(row, "score_rejected")
    votes = _votes(row)
    pair = {
        "pair_id": pair_id(prompt, chosen, rejected),
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "score_chosen": scores[0],
        "score_rejected": scores[1],
        "votes": votes,
        "source": _source(row.get("source")) or source,
        "split": str(row.get("split") or split),
        "flipped": False,
        "injected_tie": False,
        "warm": False,
        "oracle_state": None,
    }
    pair["metadata"] = _metadata(row, pair)
    _check_unicode(pair)
    marks += _answer_marks(prompt, chosen, rejected)
    marks += _score_marks(row, pair)
    if votes and votes.count("chosen") == votes.count("rejected"):
        marks.append(("tied-votes", f"the votes are {', '.join(votes)}"))
    return pair, _once(marks)


def _once(marks: list[Mark]) -> list[Mark]:
    """Each rule once, with all its reasons."""
    reasons: dict[str, list[str]] = {}
    for rule, reason in marks:
        reasons.setdefault(rule, []).append(reason)
    return [(rule, "; ".join(found)) for rule, found in reasons.items()]


# ---- answers and prompt --------------------------------------------------------------------------


def _answer(row: Mapping[str, Any], side: str) -> tuple[list[Turn] | None, str]:
    """The turns before an answer, None where it is given alone, and its text."""
    value = row.get(side)
    if value is None:
        raise RowError("missing-answer", f"{side} is null or missing")
    before = None
    prompt = row.get("prompt")
    if isinstance(value, str) and is_dialogue(value):
        value = dialogue(value)
    elif isinstance(value, str) and isinstance(prompt, str) and is_dialogue(prompt):
        # Read as one text, so that both spellings of HH-RLHF are the same pair.
        value = dialogue(continued(prompt, value)) if value.strip() else value
    elif not isinstance(value, str):
        value = turns_of(value, side)
    if not isinstance(value, str):
        if not value or value[-1]["role"] != "assistant":
            raise RowError("no-answer", f"the last turn of {side} is not the assistant's")
        before, value = value[:-1], value[-1]["content"]
    if not value:
        raise RowError("empty-answer", f"{side} is empty")
    if not is_visible(value):
        raise RowError("blank-answer", f"{side} is {shown(value)}")
    return before, value


def _prompt(
    row: Mapping[str, Any], before_chosen: list[Turn] | None, before_rejected: list[Turn] | None
) -> tuple[list[Turn], list[Mark]]:
    given = row.get("prompt") or None  # a table writes a missing prompt as an empty text
    marks: list[Mark] = []
    contexts = [before for before in (before_chosen, before_rejected) if before]
    if len(contexts) == 2 and not same_turns(*contexts):
        raise RowError(
            "two-prompts", "the turns before the answer differ between chosen and rejected"
        )
    if given is None:
        prompt = contexts[0] if contexts else []
        if prompt:
            marks.append(("inferred-prompt", "the turns before the answers are the prompt"))
    elif isinstance(given, str) and not is_dialogue(given):
        prompt = [{"role": "user", "content": given}]
        if contexts and _names_a_turn(given, contexts[0]):
            prompt = contexts[0]
        elif len(contexts) == 2:
            # Both answers agree on another dialogue, so that is what they answer.
            marks.append(("prompt-differs", f"the prompt field is {shown(given)}"))
            prompt = contexts[0]
        elif contexts:
            raise RowError("two-prompts", "the turns before an answer are not the prompt")
    else:
        prompt = dialogue(given) if isinstance(given, str) else turns_of(given, "prompt")
        if isinstance(given, str) and prompt[-1] == {"role": "assistant", "content": ""}:
            prompt = prompt[:-1]  # the form ends with "Assistant:" where the answer begins
        if contexts and not same_turns(prompt, contexts[0]):
            both = prompt[0]["role"] == contexts[0][0]["role"] == "system"
            if both or not same_turns(without_system(prompt), without_system(contexts[0])):
                raise RowError("two-prompts", "the turns before an answer are not the prompt")
            # One of them has a system turn and the other says nothing about it.
            prompt = max(prompt, contexts[0], key=len)
    system = row.get("system")
    if isinstance(system, str) and system.strip() and prompt:
        if prompt[0]["role"] != "system":
            prompt = [{"role": "system", "content": system}, *prompt]
        elif prompt[0]["content"].strip() != system.strip():
            marks.append(("prompt-differs", f"the system field is {shown(system)}"))
    if not any(is_visible(turn["content"]) for turn in prompt if turn["role"] != "system"):
        raise RowError("no-prompt", "the prompt is missing or empty")
    if prompt[-1]["role"] != "user":
        raise RowError("no-prompt", f"the prompt ends with the {prompt[-1]['role']}'s turn")
    return prompt, marks


def _names_a_turn(text: str, turns: list[Turn]) -> bool:
    # A prompt given as text may be one turn of a longer dialogue.
    return any(turn["role"] == "user" and turn["content"].strip() == text.strip() for turn in turns)


# ---- scores, votes, metadata ---------------------------------------------------------------------


def _number(value: Any, field: str) -> float | None:
    if value is None or (isinstance(value, str) and value.strip().lower() in _UNKNOWN):
        return None
    try:
        number = math.inf if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if math.isinf(number):
        raise RowError("wrong-type", f"{field} is {shown(value)}, not a finite number")
    return None if math.isnan(number) else number


def _score(row: Mapping[str, Any], field: str) -> float | None:
    return _number(row.get(field), field)


def _source(value: Any) -> str:
    # Nectar names several sources in a list.
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _mean_rating(row: Mapping[str, Any], field: str) -> float | None:
    """The mean of an answer's ratings, by aspect or in a list; or the one number in its place."""
    value = row.get(field)
    if isinstance(value, list):
        value = dict(enumerate(value, start=1))
    if not isinstance(value, Mapping):
        return _number(value, field)
    ratings = [
        # UltraFeedback itself has an object with the rating and its rationale.
        _number(
            rating.get("Rating") if isinstance(rating, Mapping) else rating, f"{field}.{aspect}"
        )
        for aspect, rating in value.items()
    ]
    known = [rating for rating in ratings if rating is not None]
    return sum(known) / len(known) if known else None


def _votes(row: Mapping[str, Any]) -> list[str] | None:
    """Votes relative to the observed orientation; other things of that name are metadata."""
    votes = row.get("votes")
    if isinstance(votes, str) and votes in VOTES:
        votes = [votes]
    if not isinstance(votes, list) or not all(isinstance(v, (str, type(None))) for v in votes):
        return None
    for vote in votes:
        if vote not in VOTES:
            raise RowError("unknown-vote", f"a vote is {shown(vote)}; known are {', '.join(VOTES)}")
    return votes


def _metadata(row: Mapping[str, Any], pair: Mapping[str, Any]) -> str:
    """The fields that are no part of the pair, as JSON."""
    used = {"prompt", "chosen", "rejected", "score_chosen", "score_rejected", "source", "split"}
    used |= {"votes"} if pair["votes"] is not None else set()
    used |= {"system"} if row.get("system") == pair["prompt"][0]["content"] else set()
    # UltraFeedback's `messages` says the chosen dialogue again, and is not kept twice.
    repeats = [row["chosen"], row["rejected"]]
    extra = {
        name: value
        for name, value in row.items()
        if name not in used and not (isinstance(value, list) and value in repeats)
    }
    try:
        return json.dumps(extra, ensure_ascii=True, default=str)
    except (ValueError, TypeError, RecursionError) as error:
        raise RowError("wrong-type", f"a field cannot be kept as JSON: {error}") from None


def _check_unicode(pair: dict[str, Any]) -> None:
    texts = [turn["content"] for turn in pair["prompt"]]
    for text in (*texts, pair["chosen"], pair["rejected"], pair["source"], pair["split"]):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            found = f"{text[error.start]!r} at character {error.start + 1} of a text"
            raise RowError("not-unicode", f"a lone surrogate, {found}") from None


def _answer_marks(prompt: list[Turn], chosen: str, rejected: str) -> Iterator[Mark]:
    if chosen == rejected:
        yield "identical", "chosen and rejected are the same text"
    elif plain_text(chosen) == plain_text(rejected):
        yield (
            "nearly-identical",
            "chosen and rejected differ in line ends, Unicode form or white space only",
        )
    elif chosen.startswith(rejected) or rejected.startswith(chosen):
        shorter = "rejected" if chosen.startswith(rejected) else "chosen"
        yield "prefix", f"{shorter} is the beginning of the other answer"
    asked = prompt[-1]["content"]
    if len(asked) >= _LONG_PROMPT and chosen.startswith(asked) and rejected.startswith(asked):
        yield "repeats-prompt", "chosen and rejected begin with the text of the prompt"


def _score_marks(row: Mapping[str, Any], pair: dict[str, Any]) -> Iterator[Mark]:
    chosen, rejected = pair["score_chosen"], pair["score_rejected"]
    ratings = _mean_rating(row, "ratings_chosen"), _mean_rating(row, "ratings_rejected")
    for side, score, rating in (("chosen", chosen, ratings[0]), ("rejected", rejected, ratings[1])):
        if score == 10 and rating is not None and rating < 3:
            yield "ten-was-one", f"score_{side} is 10 and its mean rating is {rating:g}"
        elif score == 10 and rating is None and "ultrafeedback" in pair["source"].lower():
            yield "ten-was-one", f"score_{side} is 10, and no ratings are there to check it by"
    if chosen is None or rejected is None:
        return
    if chosen == rejected:
        yield "equal-scores", f"both scores are {chosen:g}"
    elif chosen < rejected:
        yield "inverted-scores", f"the chosen answer has {chosen:g}, the rejected {rejected:g}"
    if None not in ratings and (chosen - rejected) * (ratings[0] - ratings[1]) < 0:  # type: ignore[operator]
        yield (
            "ratings-disagree",
            f"scores {chosen:g} and {rejected:g}, mean ratings {ratings[0]:g} and {ratings[1]:g}",
        )
