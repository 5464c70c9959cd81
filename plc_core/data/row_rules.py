"""The rules of one row: its texts, its scores, and what comes with them that a pair leaves out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from plc_core.data.cells import NOTHING
from plc_core.data.dialogues import is_dialogue, plain_text, reasoning_of, shown
from plc_core.data.rendered import is_rendered, spells_template, unrendered, without_end
from plc_core.data.rules import Mark, RowError

# Columns of multimodal, tool and retrieval data, by the names that they have in the field.
_BEYOND_TEXT = re.compile(
    r"(?!has_|num_|n_|is_)(\w+_)?(image|img|video|audio|picture|photo|screenshot)s?"
    r"(_?\d+|_?(url|path|file|byte|data|base64)s?)?|pixel_values|media|pdf"
    r"|(available_)?tools?|tool_(calls|schemas?)|function_calls|functions|files|attachments"
    r"|(?!num_|n_|source_)(\w+_)?documents?|passages"
)
_EMPTY = {"", "[]", "{}", "null", "none", "nan"}
_LONG_PROMPT = 20  # characters; a shorter one may begin an answer by chance

_FIELDS = ("prompt", "chosen", "rejected")


def row_marks(row: Mapping[str, Any], pair: Mapping[str, Any]) -> Iterator[Mark]:
    """The rules that a pair falls under by its own texts and the row that it was read from."""
    yield from _beyond_text(row)
    yield from _template_marks(row, pair)
    yield from _reasoning_marks(row, pair)
    yield from _answer_marks(pair)


def _beyond_text(row: Mapping[str, Any]) -> Iterator[Mark]:
    for name, value in row.items():
        if _is_beyond_text(str(name)) and _holds_something(value):
            yield "more-than-text", f"the row has {name}"
    for name in _FIELDS:
        value = row.get(name)
        if isinstance(value, Mapping):
            for inner in ("tools", "functions"):
                if _holds_something(value.get(inner)):
                    yield "more-than-text", f"{name} has {inner}"


@lru_cache(maxsize=1024)
def _is_beyond_text(name: str) -> bool:
    return bool(_BEYOND_TEXT.fullmatch(name.lower()))


def _holds_something(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in _EMPTY
    if isinstance(value, list):
        return any(map(_holds_something, value))
    if isinstance(value, Mapping):
        return any(map(_holds_something, value.values()))
    if isinstance(value, (int, float)):
        return value == value and value != 0  # pandas writes a missing value as NaN
    return value is not None


def _template_marks(row: Mapping[str, Any], pair: Mapping[str, Any]) -> Iterator[Mark]:
    texts = {name: row[name] for name in _FIELDS if name in row}
    for name, text in texts.items():
        if not isinstance(text, str) or is_dialogue(text):
            continue
        if unrendered(text) or (name != "prompt" and without_end(text) is not None):
            yield "from-template", f"{name} was written in a chat template"
    turns = [
        (f"turn {n} of the prompt", turn["content"]) for n, turn in enumerate(pair["prompt"], 1)
    ]
    for name, text in (*turns, ("chosen", pair["chosen"]), ("rejected", pair["rejected"])):
        if is_rendered(text):
            yield "rendered-template", f"{name} is written as a chat template does: {shown(text)}"
        elif spells_template(text):
            yield "spells-template", f"{name} has a mark of a chat template inside it"


def _reasoning_marks(row: Mapping[str, Any], pair: Mapping[str, Any]) -> Iterator[Mark]:
    has = [name for name in _FIELDS if any(reasoning_of(row.get(name)))]
    if has:
        yield "reasoning-left-out", f"a message of {' and of '.join(has)} has reasoning of its own"
    one, other = pair["reasoning"]
    if pair["chosen"] == pair["rejected"] and one != other:
        yield "differs-in-reasoning", "chosen and rejected are the same text after other reasoning"


def _answer_marks(pair: Mapping[str, Any]) -> Iterator[Mark]:
    chosen, rejected = pair["chosen"], pair["rejected"]
    if chosen == rejected:
        if len(set(pair["reasoning"])) == 1:
            yield "identical", "chosen and rejected are the same text"
    elif plain_text(chosen) == plain_text(rejected):
        yield (
            "nearly-identical",
            "chosen and rejected differ in line ends, Unicode form or white space only",
        )
    elif chosen.startswith(rejected) or rejected.startswith(chosen):
        shorter = "rejected" if chosen.startswith(rejected) else "chosen"
        yield "prefix", f"{shorter} is the beginning of the other answer"
    asked = pair["prompt"][-1]["content"]
    if len(asked) >= _LONG_PROMPT and chosen.startswith(asked) and rejected.startswith(asked):
        yield "repeats-prompt", "chosen and rejected begin with the text of the prompt"


SIDES = ("chosen", "rejected")

_UNKNOWN = {*NOTHING, "-"}

# UltraFeedback's authors turned a 10 with a mean rating up to 2 into a 1, asked again up to 4, and
# kept it above (fix_overall_score_issue.py in their repository).
_CONFIRMS_TEN = 4

_QUANTITIES = ("score", "rating", "reward")  # in this order, where a row has several
_NOT_SCORES = {"count", "length", "tokens", "margin", "gap", "std", "var", "elo", "rank"}
_SIDE_NAMES = {
    **dict.fromkeys(
        ("chosen", "w", "winner", "preferred", "accepted", "pos", "positive", "better"), "chosen"
    ),
    **dict.fromkeys(
        ("rejected", "l", "loser", "dispreferred", "neg", "negative", "worse"), "rejected"
    ),
}


class Scores(NamedTuple):
    """Of the chosen and the rejected answer; None where a row does not say it.

    Attributes:
        scores: one number an answer.
        ratings: the mean of an answer's ratings.
    """

    scores: tuple[float | None, float | None]
    ratings: tuple[float | None, float | None]


def scores_of(row: Mapping[str, Any]) -> Scores:
    """The scores and ratings of a row.

    They are score_chosen and score_rejected, ratings_chosen and ratings_rejected. Where the row
    has none of these, the names are read by their words: a side (chosen, rejected, w, l, winner,
    loser, …) and a quantity (score, rating, reward), as in chosen-rating or score_w.

    Raises:
        RowError: where one of the four named first is no number.
    """
    names = _spelled(tuple(row))
    scores = _both(row, "score_{}", _number)
    ratings = _both(row, "ratings_{}", _mean_rating)
    for chosen, rejected in names:
        try:
            found = (
                _mean_rating(row.get(chosen), chosen) if chosen else None,
                _mean_rating(row.get(rejected), rejected) if rejected else None,
            )
        except RowError:
            continue  # words for a grade, say: kept as metadata
        if found == (None, None):
            continue
        if scores == (None, None):
            scores = found
        elif ratings == (None, None) and "rating" in f"{chosen}{rejected}".lower():
            ratings = found
    return Scores(scores, ratings)


@lru_cache(maxsize=64)
def _spelled(names: tuple[Any, ...]) -> tuple[tuple[str, str], ...]:
    """The names of each spelling, of the chosen and the rejected side; "" where one is missing."""
    found: dict[tuple[int, int, tuple[str, ...]], dict[str, str]] = {}
    own = {f"{quantity}_{side}" for quantity in ("score", "ratings") for side in SIDES}
    for name in names:
        if not isinstance(name, str) or name in own:
            continue
        parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        words = [word for word in re.split(r"[^a-z0-9]+", parts) if word]
        sides = [_SIDE_NAMES[word] for word in words if word in _SIDE_NAMES]
        rest = tuple(word for word in words if word not in _SIDE_NAMES)
        quantities = [
            word.removesuffix("s") for word in rest if word.removesuffix("s") in _QUANTITIES
        ]
        # Whose score it is, as in chosen_model_score, does not matter; a count of scores is none.
        if len(sides) == len(quantities) == 1 and not _NOT_SCORES & set(rest):
            place = (_QUANTITIES.index(quantities[0]), len(rest), rest)
            found.setdefault(place, {}).setdefault(sides[0], name)
    both = [
        (spelling.get("chosen", ""), spelling.get("rejected", ""))
        for _, spelling in sorted(found.items())
    ]
    return tuple(sorted(both, key=lambda pair: "" in pair))


def _both(row: Mapping[str, Any], name: str, read: Any) -> tuple[float | None, float | None]:
    chosen, rejected = (name.format(side) for side in SIDES)
    return read(row.get(chosen), chosen), read(row.get(rejected), rejected)


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


def _mean_rating(value: Any, field: str) -> float | None:
    """The mean of an answer's ratings, by aspect or in a list; or the one number in its place."""
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


def score_marks(found: Scores, source: str) -> Iterator[Mark]:
    """The rules on scores that a pair falls under; `source` may say that it is UltraFeedback's."""
    (chosen, rejected), ratings = found.scores, found.ratings
    for side, score, rating in zip(SIDES, found.scores, ratings, strict=True):
        if score == 10 and rating is not None and rating <= _CONFIRMS_TEN:
            yield "ten-was-one", f"score_{side} is 10 and its mean rating is {rating:g}"
        elif score == 10 and rating is None and "ultrafeedback" in source.lower():
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
