"""Conversations for the supervised stage: read, checked, and turned into tokens with their labels.

The shape is UltraChat-200k's: `messages`, a list of {role, content}. Only what the assistant says
is learnt, each answer with its terminator. The tokens are those of preference pairs: the model's
own chat template, boundaries decided on tokens, and text that spells a special token stays text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from plc_core.data import DataError
from plc_core.data.pairs import BATCH_ROWS, dataset_from_batches
from plc_core.data.rules import FINDINGS
from plc_core.engine.tokens.templates import CannotRenderError, ChatFormat, Turns, chat_format
from plc_core.progress import Progress

IGNORED = -100
"""The label of a token that is not learnt, as PyTorch's cross entropy and TRL have it."""

_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32()))])


class Row(NamedTuple):
    """One row as it was read: where it stands, and its value."""

    file: str
    number: int  # from 1
    value: Any


class Conversations(NamedTuple):
    """Tokens of conversations, split by their first turn, and what became of the other rows."""

    train: Dataset  # input_ids and labels, -100 where nothing is learnt
    held_out: Dataset
    findings: pa.Table  # one row a row that was left out or cut, as findings.parquet has them
    rows_read: int

    @property
    def fingerprint(self) -> str:
        """16 hex digits of what is learnt, in its order."""
        digest = hashlib.sha256()
        for column in ("input_ids", "labels"):
            for batch in self.train.select_columns([column]).with_format("arrow").iter(1000):
                digest.update(json.dumps(batch[column].to_pylist()).encode())
        return digest.hexdigest()[:16]

    def sentence(self) -> str:
        """What was read and what became of it, for a person."""
        actions = self.findings["action"].to_pylist()
        text = (
            f"{self.rows_read:,} rows read, {len(self.train):,} conversations to train on, "
            f"{len(self.held_out):,} held out, {actions.count('drop'):,} left out, "
            f"{actions.count('keep'):,} cut at the maximum length."
        )
        left_out = self.findings.filter(pc.equal(self.findings["action"], "drop"))
        if left_out.num_rows:
            first = left_out.slice(0, 1).to_pylist()[0]
            text += f" The first left out is row {first['row']} of {first['file']}: "
            text += f"{first['reason']}."
        return text


def tokenize_conversations(
    rows: Iterable[Row],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    held_out_share: float,
    progress: Progress | None = None,
    total: int = 0,
) -> Conversations:
    """Tokens and labels of conversations; every row becomes one, or is listed with its reason.

    Rows whose first turns say the same are on one side of the split. Longer conversations are cut
    at the end, and left out where nothing is left to learn.

    Raises:
        DataError: where no conversation is left to train on.
    """
    chat = chat_format(tokenizer)
    findings: list[dict[str, Any]] = []
    held: list[tuple[list[int], list[int]]] = []
    read = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        kept: list[tuple[list[int], list[int]]] = []
        with (progress or Progress()).phase("tokenizing conversations", total) as advance:
            for row in rows:
                read += 1
                advance(1)
                try:
                    turns = conversation(row.value)
                    ids, labels = conversation_ids(chat, turns)
                except (DataError, CannotRenderError) as error:
                    findings.append(_finding(row, "no-conversation", "drop", str(error)))
                    continue
                if len(ids) > max_length:
                    ids, labels = ids[:max_length], labels[:max_length]
                    learnt = any(label != IGNORED for label in labels)
                    reason = f"longer than {max_length} tokens"
                    action = "keep" if learnt else "drop"
                    findings.append(_finding(row, "truncated", action, reason))
                    if not learnt:
                        continue
                (held if is_held_out(turns, held_out_share) else kept).append((ids, labels))
                if len(kept) == BATCH_ROWS:
                    yield _batch(kept)
                    kept = []
        if kept:
            yield _batch(kept)

    train = dataset_from_batches(_SCHEMA, batches())
    table = pa.Table.from_pylist(findings, schema=FINDINGS)
    found = Conversations(
        train, dataset_from_batches(_SCHEMA, [_batch(held)] if held else []), table, read
    )
    if not len(train):
        raise DataError(f"There is no conversation to train on. {found.sentence()}")
    return found


def conversation(value: Any) -> Turns:
    """The turns of a row up to its last answer; DataError with the reason where it has none."""
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list) or not messages:
        raise DataError("it has no list of messages")
    turns = []
    for number, message in enumerate(messages, start=1):
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if role not in ("system", "user", "assistant") or not isinstance(content, str):
            raise DataError(f"message {number} has no role of a dialogue or no text")
        turns.append({"role": role, "content": content})
    answers = [place for place, turn in enumerate(turns) if turn["role"] == "assistant"]
    if not answers or "user" not in [turn["role"] for turn in turns[: answers[0]]]:
        raise DataError("no assistant answers a user in it")
    if not any(turns[place]["content"].strip() for place in answers):
        raise DataError("all its answers are empty")
    return turns[: answers[-1] + 1]


def conversation_ids(chat: ChatFormat, turns: Turns) -> tuple[list[int], list[int]]:
    """Token ids of a conversation that ends with an answer, and the labels of its answers.

    An answer is learnt with its terminator where the template writes it the same in the whole
    conversation as in its own place; templates that drop earlier reasoning do not. The last answer
    always is, by its own tokens if need be.

    Raises CannotRenderError where the template refuses the conversation.
    """
    literal = chat.spells_special(turns)
    turns = chat.folded(turns)
    last = len(turns) - 1
    whole = chat.ids(turns, literal)
    body = whole[: len(whole) - len(chat.ending)]
    spans = []
    for place, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        prompt = chat.ids(turns[:place], literal, prompt=True)
        until = whole if place == last else chat.ids(turns[: place + 1], literal)
        end = len(until) - len(chat.ending)
        same = len(prompt) <= end and until[end:] == chat.ending and until[:end] == whole[:end]
        if same and until[: len(prompt)] == prompt:
            # Between turns the terminator is learnt where the template writes it there.
            ends = place == last or whole[end : end + 1] == [chat.terminator]
            spans.append((len(prompt), end + ends))
        elif place == last:
            body = [*prompt, *chat.own_ids(turn["content"])]
            spans = [(len(prompt), len(body) + 1)]
    ids = [*body, chat.terminator]
    labels = [IGNORED] * len(ids)
    for start, end in spans:
        labels[start:end] = ids[start:end]
    return ids, labels


def is_held_out(turns: Turns, share: float) -> bool:
    """Whether a conversation is held out: by a hash of its first turns up to an answer."""
    first = []
    for turn in turns:
        if turn["role"] == "assistant":
            break
        first.append(turn["content"])
    digest = hashlib.sha256("\x00".join(first).encode()).digest()
    # Not the first byte: the world's own held-out prompts are chosen by it.
    return int.from_bytes(digest[8:12], "big") < share * 2**32


def _batch(rows: list[tuple[list[int], list[int]]]) -> pa.RecordBatch:
    ids, labels = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict({"input_ids": ids, "labels": labels}, schema=_SCHEMA)


def _finding(row: Row, rule: str, action: str, reason: str) -> dict[str, Any]:
    return {
        "rule": rule,
        "action": action,
        "file": row.file,
        "row": row.number,
        "pair_id": None,
        "reason": reason,
    }
