"""Prompts and answers as turns: messages, dialogues in HH-RLHF's form, and what a text shows."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from plc_core.data.rules import RowError

Turn: TypeAlias = dict[str, str]

ROLES = {
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "bot": "assistant", "model": "assistant",
    "chosen": "assistant", "rejected": "assistant",
    "system": "system", "developer": "system",
}  # fmt: skip
TOOL_ROLES = {"tool", "function", "function_call", "observation", "ipython"}
WRAPPERS = {"messages", "conversations", "conversation"}
_BESIDE_MESSAGES = {"tools", "functions", "parallel_tool_calls", "tool_choice"}

# What a message may hold besides its content, by the names that the field's interfaces give it.
_REASONING = (
    "reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_content",
    "thought", "thoughts", "think", "chain_of_thought", "cot", "analysis",
)  # fmt: skip
_MORE_THAN_TEXT = (
    "tool_calls", "function_call", "tools", "functions", "image", "images", "image_url", "audio",
    "audios", "video", "videos", "file", "files", "documents", "attachments",
)  # fmt: skip
_TEXT_PARTS = {None, "text", "input_text", "output_text"}

_TURN = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")


def is_dialogue(text: str) -> bool:
    """Whether a text has the form of HH-RLHF: turns of "Human:" and "Assistant:", Human first."""
    text = text.replace("\r\n", "\n")
    start = text[:200].lstrip()
    return start.startswith("Human:") and (text.startswith("\n\n") or "\n\nAssistant:" in text)


def continued(prompt: str, answer: str) -> str:
    """A dialogue with its answer, whether or not one of them has the "Assistant:" between them."""
    open_ = prompt.rstrip().endswith("\nAssistant:")
    if open_:
        return prompt + answer
    named = answer.lstrip().startswith("Assistant:")
    return f"{prompt}\n\n{answer.lstrip()}" if named else f"{prompt}\n\nAssistant:{answer}"


def dialogue(text: str) -> list[Turn]:
    """The turns of a text in the form of HH-RLHF; two turns of one speaker in a row are joined."""
    parts = _TURN.split(text.replace("\r\n", "\n"))[1:]
    turns: list[Turn] = []
    for speaker, content in zip(parts[::2], parts[1::2], strict=True):
        role = ROLES[speaker.lower()]
        content = content.strip()
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += "\n\n" + content
        else:
            turns.append({"role": role, "content": content})
    return turns


def messages_of(value: Any) -> Any:
    """The messages inside {"messages": […], "tools": […]}, or of one message; else the value."""
    if not isinstance(value, Mapping):
        return value
    # A table gives every row all the names, and null where one has no such.
    given = {name for name, held in value.items() if held is not None}
    [*wrapper] = WRAPPERS & given
    if len(wrapper) == 1 and given <= {*wrapper, *_BESIDE_MESSAGES}:
        return value[wrapper[0]]
    return [value]


def turns_of(value: Any, field: str) -> list[Turn]:
    """The turns of messages, of one message, or of {"messages": […]}.

    Raises:
        RowError: where they are something else, or more than text.
    """
    if isinstance(value, UnreadMessages):
        raise RowError(
            "wrong-type",
            f"{field} begins like messages, and is neither JSON nor messages as Python prints "
            "them; write them with json.dumps",
        )
    messages = messages_of(value)
    if not isinstance(messages, list):
        raise RowError(
            "wrong-type", f"{field} is of type {type(value).__name__}, not text or messages"
        )
    return [_turn(message, f"message {n} of {field}") for n, message in enumerate(messages, 1)]


def _turn(message: Any, place: str) -> Turn:
    if not isinstance(message, Mapping):
        raise RowError("wrong-type", f"{place} is of type {type(message).__name__}, not an object")
    # A table gives every message all the names, and null where one has no such.
    role = str(_first_given(message, "role", "from")).strip().lower()
    content = _first_given(message, "content", "value")
    if role in TOOL_ROLES:
        raise RowError("unsupported-turn", f"{place} is a tool's turn")
    for name in _MORE_THAN_TEXT:
        if message.get(name):
            raise RowError("unsupported-turn", f"{place} has {name}")
    if isinstance(content, list):
        content = "".join(_text_parts(content, place))
    if role not in ROLES or not isinstance(content, str):
        raise RowError(
            "wrong-type", f"{place} has role {role!r} and content of type {type(content).__name__}"
        )
    return {"role": ROLES[role], "content": content}


def reasoning_of(value: Any) -> list[str]:
    """What each message says in a field of its own for reasoning; "" where it has none."""
    messages = messages_of(value)
    return [_reasoning(message) for message in messages] if isinstance(messages, list) else []


def _reasoning(message: Any) -> str:
    found = _first_given(message, *_REASONING) if isinstance(message, Mapping) else None
    text = found if isinstance(found, str) or not found else json.dumps(found, default=str)
    return text.strip() if text else ""


def _first_given(message: Mapping[str, Any], *names: str) -> Any:
    return next((message[name] for name in names if message.get(name) is not None), None)


def _text_parts(parts: list[Any], place: str) -> Iterator[str]:
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str) or kind not in _TEXT_PARTS:
            raise RowError("unsupported-turn", f"{place} holds more than text")
        yield text


class UnreadMessages:
    """A text that begins like messages, and is none that can be read."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def same_turns(one: list[Turn], other: list[Turn]) -> bool:
    def bare(turns: list[Turn]) -> list[tuple[str, str]]:
        return [(turn["role"], turn["content"].strip()) for turn in turns]

    return bare(one) == bare(other)


_LONG = 5000


def without_system(turns: list[Turn]) -> list[Turn]:
    """The turns but for a system turn at their start."""
    return turns[1:] if turns and turns[0]["role"] == "system" else turns


def plain_text(text: str) -> str:
    """A text without what the eye does not see: line ends, Unicode form, outer white space."""
    text = text.strip()
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return in_form("NFC", text)


def in_form(form: Literal["NFC", "NFKC"], text: str) -> str:
    """A text in a Unicode normal form; as it is where it piles up marks, which takes for ever."""
    # Putting marks in order takes the square of their number: of a short text, no time.
    if text.isascii() or (len(text) > _LONG and _piled_up().search(text)):
        return text
    return unicodedata.normalize(form, text)


@lru_cache(maxsize=1)
def _piled_up() -> re.Pattern[str]:
    # UAX 15 allows 30 marks on one character in its stream-safe format.
    marks = [chr(c) for c in range(0x300, 0x1F000) if unicodedata.combining(chr(c))]
    return re.compile(f"[{re.escape(''.join(marks))}]{{31}}")


def is_visible(text: str) -> bool:
    """Whether there is anything to see: letters, signs, emoji, also those that Python is too old
    to know; not white space, controls, joiners, marks without a letter or fillers."""
    return any(
        unicodedata.category(character) not in _UNSEEN and character not in _FILLERS
        for character in text
    )


_UNSEEN = {"Cc", "Cf", "Cs", "Zs", "Zl", "Zp", "Mn", "Me"}
_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"


def shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
