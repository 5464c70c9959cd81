"""Cells of text that hold a structure: messages and votes, as JSON or as Python prints them."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

from plc_core.data.dialogues import ROLES, TOOL_ROLES, WRAPPERS, UnreadMessages, messages_of

_MESSAGES = {
    "prompt", "chosen", "rejected", "answer", "text", "completion_a", "completion_b", "response_a",
    "response_b", "input", "preferred_output", "non_preferred_output", *WRAPPERS,
}  # fmt: skip
_OPENS = re.compile(r"\s*(?:[\[{(]|array\()")
_CLOSES = re.compile(r"[\]})]\s*\Z")
_TWICE = re.compile(r"\s*\"[\s\\\"]*[\[{]")  # written as JSON, and that text once more
_STRUCTURES = re.compile(r"votes|answers|ratings_(chosen|rejected)|\w+_annotations")


def _spoken_by(*names: str) -> re.Pattern[str]:
    """A message's speaker of one of these names, as JSON or Python write it, escaped or not."""
    return re.compile(
        rf"""["'](?:role|from|speaker)\\*["']\s*:\s*\\*["'](?:{"|".join(names)})["'\\]""",
        re.IGNORECASE,
    )


_SPEAKER = _spoken_by(*ROLES, *TOOL_ROLES, "ai")
_ANSWERS = _spoken_by(*(name for name, role in ROLES.items() if role == "assistant"), "ai")
_SAYS = re.compile(r"""["'](?:content|value|text|message)\\*["']\s*:""", re.IGNORECASE)
_PARTS = re.compile(
    r"""\s*\[\s*\{\s*["']type["']\s*:\s*["'](?:input_|output_)?text["']\s*,\s*["']text"""
)
_FIRST_NAME = re.compile(
    r"\s*(?:\{\s*[\"']\w+[\"']\s*:\s*)?\[?\s*\{\s*[\"'](role|content|from|value)[\"']\s*:"
)
# NumPy prints one object a line without commas; inside a printed text a line's end is escaped.
_BETWEEN_LINES = re.compile(r"\}\s*\n\s*\{")
NOTHING = {"", "n/a", "na", "nan", "none", "null"}
"""How files write a missing number or vote, in small letters."""
_MOST_PRINTED = 2**22  # characters that are read as Python prints them


def read_cells(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row in which messages, votes, ratings, rankings and annotations are no longer text.

    CSV can hold them in no other way, and other formats often do. A text counts as messages only
    if the whole of it is an object with a known role and a content, a list of them, or
    {"messages": …} with nothing but tools beside it. A text whose whole is somebody's words in
    another form (a wrapper of its own, other names, NumPy's array) is unread messages, and is
    listed; any other text stays as it is.
    """
    texts = ((name, value) for name, value in row.items() if value and isinstance(value, str))
    read = {name: _cell(name, value) for name, value in texts}
    if not read:
        return row
    changed = {name: value for name, value in read.items() if value is not row[name]}
    return {**row, **changed} if changed else row


def _cell(name: Any, value: str) -> Any:
    if not _OPENS.match(value) and not _TWICE.match(value):
        return value
    if name in _MESSAGES:
        return held_messages(value)
    if _STRUCTURES.fullmatch(str(name)):
        try:
            return _parsed(value)
        except ValueError:
            return value
    return value


def held_messages(text: str) -> Any:
    """The messages that a text is; `UnreadMessages` where it begins like some; else the text."""
    if _TWICE.match(text):
        try:
            inner = json.loads(text)
        except (ValueError, RecursionError):
            return text
        held = held_messages(inner) if isinstance(inner, str) else text
        return text if held is inner else held
    if _PARTS.match(text) and _CLOSES.search(text):
        return UnreadMessages(text)  # a message's content, without the message
    if not _SPEAKER.search(text):
        return text
    # An assistant who says something, and no prose around it: messages in a form of their own. A
    # user's alone may be an answer, as the body of a request to some interface.
    whole = bool(_CLOSES.search(text) and _SAYS.search(text) and _ANSWERS.search(text))
    try:
        value = _parsed(text)
    except ValueError as error:
        # Messages with prose behind them are a text that shows some.
        prose = isinstance(error, json.JSONDecodeError) and error.msg == "Extra data"
        cut_off = isinstance(error, json.JSONDecodeError) and error.pos >= len(text.rstrip())
        begun = not prose and (_FIRST_NAME.match(text) or (cut_off and _SAYS.search(text)))
        return UnreadMessages(text) if whole or begun else text
    if _are_messages(value):
        return value
    return UnreadMessages(text) if whole else text


def _parsed(text: str) -> Any:
    """What a text holds as JSON, or as Python or NumPy print it; ValueError where it is neither."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        if "'" not in text or len(text) > _MOST_PRINTED:
            raise
        problem = error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of backslashes in somebody's text
            return ast.literal_eval(_BETWEEN_LINES.sub("}, {", text.strip()))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise problem from None


def _are_messages(value: Any) -> bool:
    if isinstance(value, Mapping) and WRAPPERS & set(value):
        inner = messages_of(value)
        return isinstance(inner, list) and _are_messages(inner)
    messages = value if isinstance(value, list) else [value]
    return bool(messages) and all(map(_has_speaker, messages)) and any(map(_speaks, messages))


def _has_speaker(message: Any) -> bool:
    return isinstance(message, Mapping) and bool({"role", "from"} & set(message))


def _speaks(message: Mapping[str, Any]) -> bool:
    role = str(message.get("role") or message.get("from")).strip().lower()
    says = {"content", "value", "tool_calls"} & set(message) or len(message) == 1
    return bool(says) and (role in ROLES or role in TOOL_ROLES)
