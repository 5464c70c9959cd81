"""Prompts and answers as turns: messages, dialogues in HH-RLHF's form, and what a text shows."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from plc_core.data.rules import RowError

Turn: TypeAlias = dict[str, str]

_ROLES = {
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "bot": "assistant", "model": "assistant",
    "chosen": "assistant", "rejected": "assistant",
    "system": "system", "developer": "system",
}  # fmt: skip
_TOOL_ROLES = {"tool", "function", "function_call", "observation", "ipython"}

_TURN = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")


def is_dialogue(text: str) -> bool:
    start = text[:200].lstrip()
    return start.startswith("Human:") and (text.startswith("\n\n") or "\n\nAssistant:" in text)


def dialogue(text: str) -> list[Turn]:
    """The turns of a text in the form of HH-RLHF; two turns of one speaker in a row are joined."""
    parts = _TURN.split(text)[1:]
    turns: list[Turn] = []
    for speaker, content in zip(parts[::2], parts[1::2], strict=True):
        role = _ROLES[speaker.lower()]
        content = content.strip()
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += "\n\n" + content
        else:
            turns.append({"role": role, "content": content})
    return turns


def turns_of(value: Any, field: str) -> list[Turn]:
    messages = [value] if isinstance(value, Mapping) else value
    if not isinstance(messages, list):
        raise RowError(
            "wrong-type", f"{field} is of type {type(value).__name__}, not text or messages"
        )
    return [_turn(message, f"message {n} of {field}") for n, message in enumerate(messages, 1)]


def _turn(message: Any, place: str) -> Turn:
    if not isinstance(message, Mapping):
        raise RowError("wrong-type", f"{place} is of type {type(message).__name__}, not an object")
    role = str(message.get("role", message.get("from"))).strip().lower()
    content = message.get("content", message.get("value"))
    if role in _TOOL_ROLES or message.get("tool_calls"):
        raise RowError("unsupported-turn", f"{place} is a tool's turn or calls one")
    if isinstance(content, list):
        content = "".join(_text_parts(content, place))
    if role not in _ROLES or not isinstance(content, str):
        raise RowError(
            "wrong-type", f"{place} has role {role!r} and content of type {type(content).__name__}"
        )
    return {"role": _ROLES[role], "content": content}


def _text_parts(parts: list[Any], place: str) -> Iterator[str]:
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            raise RowError("unsupported-turn", f"{place} holds more than text")
        yield text


def same_turns(one: list[Turn], other: list[Turn]) -> bool:
    def bare(turns: list[Turn]) -> list[tuple[str, str]]:
        return [(turn["role"], turn["content"].strip()) for turn in turns]

    return bare(one) == bare(other)


def plain_text(text: str) -> str:
    """A text without what the eye does not see: line ends, Unicode form, outer white space."""
    text = text.strip()
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def is_visible(text: str) -> bool:
    return any(character.isprintable() and not character.isspace() for character in text)


def shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
