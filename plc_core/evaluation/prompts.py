"""What a policy is asked, and how a row of a file says it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plc_core.data.dialogues import Turn, dialogue, is_dialogue, is_visible, shown, turns_of
from plc_core.data.pairs import DataError
from plc_core.data.rules import RowError

_FIELDS = ("turns", "messages", "prompt", "instruction", "Instruction", "question", "text")
_LISTS = {"turns", "messages"}
_IDS = ("prompt_id", "question_id", "id", "idx", "uid")
_OTHER_TEXTS = {"chosen", "rejected", "messages"}  # answers, which no metadata should carry


@dataclass(frozen=True)
class Prompt:
    """What a policy is asked, turn by turn.

    Attributes:
        prompt_id: unique in its benchmark, and the same at every reading.
        turns: the user's texts; each is asked after the policy's own answer to the one before.
        history: messages before the first of them, as a system turn or an earlier dialogue.
        category: "" where there is none.
        metadata: the other fields of its row.

    Raises:
        DataError: for text that no file in UTF-8 could hold.
    """

    prompt_id: str
    turns: tuple[str, ...]
    history: tuple[Turn, ...] = ()
    category: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        told = [turn["content"] for turn in self.history]
        for text in (self.prompt_id, self.category, *self.turns, *told):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"the prompt {self.prompt_id!r} holds a lone surrogate, which is half a sign: "
                    f"{text[error.start]!r} at character {error.start + 1} of {shown(text)}. Write "
                    "the whole sign, or remove it."
                ) from None


def prompt_of_row(path: Path, number: int, row: Any, prompt_id: str | None = None) -> Prompt:
    """The prompt of a row; its id is `prompt_id`, or what the row says, or a hash of its content.

    Raises:
        DataError: naming file and row, where it has no prompt.
    """
    try:
        row = {"prompt": row} if isinstance(row, str) else row
        if not isinstance(row, dict):
            raise RowError("wrong-type", f"it is {shown(row)}, not an object")
        used, history, turns = _asked(row)
    except RowError as error:
        raise DataError(f"{path}, row {number}: no prompt to evaluate on: {error}.") from None
    if not all(is_visible(text) for text in turns):
        raise DataError(f"{path}, row {number}: a turn of the prompt is empty.")
    own = next((name for name in _IDS if row.get(name) not in (None, "")), None)
    if prompt_id is None and own is not None:
        prompt_id = str(row[own])
    if prompt_id is None:
        content = json.dumps([history, turns])
        prompt_id = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]
    category = next((row[n] for n in ("category", "Skill", "dataset") if row.get(n)), None)
    meta = row.get("meta")
    if category is None and isinstance(meta, dict):
        category = meta.get("category")
    dropped = {used, *_OTHER_TEXTS}
    metadata = {k: v for k, v in row.items() if k not in dropped}
    try:
        return Prompt(prompt_id, tuple(turns), tuple(history), str(category or ""), metadata)
    except DataError as error:
        raise DataError(f"{path}, row {number}: {error}") from None


def _asked(row: Mapping[str, Any]) -> tuple[str, list[Turn], list[str]]:
    """The field that holds the prompt, the messages before it, and the user's texts."""
    used = next((name for name in _FIELDS if row.get(name) not in (None, "", [])), None)
    if used is None and row.get("chosen"):
        return "chosen", *_before_answer(row["chosen"])
    if used is None:
        known = ", ".join(_FIELDS)
        has = ", ".join(map(str, row))
        raise RowError("no-prompt", f"it has the fields {has}, and a prompt is in one of {known}")
    value = row[used]
    if used in _LISTS and isinstance(value, str) and not is_dialogue(value):
        value = _listed(value, used)
    if used == "messages" and isinstance(value, list) and _ends_with_answer(value):
        return used, *_before_answer(value)
    history: list[Turn] = []
    if isinstance(value, str) and is_dialogue(value):
        value = dialogue(value)
        if value[-1] == {"role": "assistant", "content": ""}:
            value = value[:-1]  # the form ends with "Assistant:" where the answer begins
    if isinstance(value, str):
        more = row.get("input") if used.lower() == "instruction" else None
        texts = [f"{value}\n\n{more}" if isinstance(more, str) and more.strip() else value]
    elif isinstance(value, list) and all(isinstance(text, str) for text in value):
        texts = list(value)
    else:
        *history, last = turns_of(value, used)
        if last["role"] != "user":
            raise RowError("no-prompt", f"{used} ends with the {last['role']}'s turn")
        texts = [last["content"]]
    system = row.get("system")
    if isinstance(system, str) and system.strip() and not history:
        history = [{"role": "system", "content": system}]
    return used, history, texts


def _listed(text: str, name: str) -> list[Any]:
    """The list that a table without lists, as CSV, holds as JSON."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, list):
        raise RowError("wrong-type", f"{name} is {shown(text)}, no list in JSON")
    return value


def _ends_with_answer(messages: list[Any]) -> bool:
    last = messages[-1]
    return isinstance(last, Mapping) and turns_of([last], "messages")[-1]["role"] == "assistant"


def _before_answer(value: Any) -> tuple[list[Turn], list[str]]:
    """The messages before the last user's, and its text, of a dialogue that ends with an answer."""
    turns = dialogue(value) if isinstance(value, str) else turns_of(value, "chosen")
    if len(turns) < 2 or [turn["role"] for turn in turns[-2:]] != ["user", "assistant"]:
        raise RowError("no-prompt", "its dialogue does not end with a question and its answer")
    return turns[:-2], [turns[-2]["content"]]
