"""The rules of one row: what its texts are, and what comes with them that the pair leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from plc_core.data.dialogues import is_dialogue, plain_text, reasoning_of, shown
from plc_core.data.rendered import is_rendered, spells_template, unrendered, without_end
from plc_core.data.rules import Mark

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
