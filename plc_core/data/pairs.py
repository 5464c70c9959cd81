"""What a preference pair is: one schema, a stable id, and a report of what was left out and why."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, List, Value

FEATURES = Features(
    {
        "pair_id": Value("string"),  # 16 hex digits, of the pair as it was read
        "prompt": List({"role": Value("string"), "content": Value("string")}),
        "chosen": Value("string"),  # the answer alone
        "rejected": Value("string"),
        "score_chosen": Value("float64"),  # of the answer that is observed as chosen; null if none
        "score_rejected": Value("float64"),
        "source": Value("string"),
        "split": Value("string"),
        "flipped": Value("bool"),  # the label was swapped by injected corruption
        "oracle_state": Value("string"),  # clean, flip or tie where the truth is known, else null
        "metadata": Value("string"),  # the other columns of the row, as JSON
    }
)

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_ROLES |= {"system": "system", "bot": "assistant", "model": "assistant", "chosen": "assistant"}
_KNOWN = {"prompt", "chosen", "rejected", "score_chosen", "score_rejected", "source", "split"}


class DataError(ValueError):
    """Preference data that cannot be used as asked; the message is a sentence for the user."""


@dataclass(frozen=True)
class Dropped:
    """A row that was left out: its number in the source (from 1), the rule and the reason."""

    row: int
    rule: str
    reason: str


@dataclass(frozen=True)
class Pairs:
    """Preference pairs in the schema `FEATURES`, and the rows of their source left out."""

    dataset: Dataset
    dropped: tuple[Dropped, ...] = ()

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def table(self) -> pa.Table:
        """The pairs as one Arrow table in the schema `FEATURES`."""
        return self.dataset.with_format("arrow")[:]

    def with_table(self, table: pa.Table) -> Pairs:
        """The same pairs with changed columns."""
        return replace(self, dataset=Dataset(table, fingerprint=secrets.token_hex(8)))

    @property
    def fingerprint(self) -> str:
        """16 hex digits that name these pairs, their order and their observed labels."""
        digest = hashlib.sha256()
        # The fingerprint of `datasets` also changes with how the pairs were made.
        for batch in self.dataset.select_columns(["pair_id", "flipped"]).iter(10_000):
            digest.update(json.dumps([batch["pair_id"], batch["flipped"]]).encode())
        return digest.hexdigest()[:16]

    def report(self) -> str:
        """How many rows were kept, and how many were left out by which rule, with examples."""
        lines = [f"{len(self):,} pairs kept, {len(self.dropped):,} rows left out"]
        for rule, count in Counter(d.rule for d in self.dropped).most_common():
            first = next(d for d in self.dropped if d.rule == rule)
            lines.append(f"  {rule}: {count:,}, the first is row {first.row}: {first.reason}")
        return "\n".join(lines)


def pair_id(prompt: list[dict[str, str]], chosen: str, rejected: str) -> str:
    """16 hex digits of the pair's content in the order in which it was read.

    Corruption keeps the id, so that a pair has one name at every noise rate.
    """
    turns = [[turn["role"], turn["content"]] for turn in prompt]
    return hashlib.sha256(json.dumps([turns, chosen, rejected]).encode()).hexdigest()[:16]


def pairs_from_rows(
    rows: Iterable[Mapping[str, Any] | None], source: str, split: str = "train"
) -> Pairs:
    """Normalise rows one by one; a row that cannot be a pair is listed with its reason.

    A prompt is a text or a list of messages; an answer is a text, or a list of messages whose
    last turn is the answer and whose earlier turns repeat the prompt, or are it where the row has
    no prompt. Other columns are kept as metadata. Source and split are those of the row, if any.
    None stands for a blank line, which is counted in the numbers of the rows behind it.
    """
    kept: list[dict[str, Any]] = []
    dropped: list[Dropped] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, start=1):
        if row is None:
            continue
        try:
            pair = _normalised(row, source, split)
        except _RowError as problem:
            dropped.append(Dropped(number, problem.rule, str(problem)))
            continue
        first = seen.setdefault(pair["pair_id"], number)
        if first != number:
            dropped.append(Dropped(number, "duplicate", f"the same pair as row {first}"))
            continue
        kept.append(pair)
    columns = {name: [pair[name] for pair in kept] for name in FEATURES}
    return Pairs(Dataset.from_dict(columns, features=FEATURES), tuple(dropped))


class _RowError(Exception):
    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


def _normalised(row: Mapping[str, Any], source: str, split: str) -> dict[str, Any]:
    before_chosen, chosen = _answer(row, "chosen")
    before_rejected, rejected = _answer(row, "rejected")
    prompt = _prompt(row, before_chosen, before_rejected)
    if chosen == rejected:
        raise _RowError("identical", "chosen and rejected are the same text")
    extra = {k: v for k, v in row.items() if k not in _KNOWN}
    pair = {
        "pair_id": pair_id(prompt, chosen, rejected),
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "score_chosen": _score(row, "score_chosen"),
        "score_rejected": _score(row, "score_rejected"),
        "source": str(row.get("source") or source),
        "split": str(row.get("split") or split),
        "flipped": False,
        "oracle_state": None,
        "metadata": json.dumps(extra, ensure_ascii=True, default=str),
    }
    try:
        json.dumps(
            [prompt, chosen, rejected, pair["source"], pair["split"]], ensure_ascii=False
        ).encode()
    except UnicodeEncodeError as error:
        raise _RowError("not Unicode", f"a lone surrogate at character {error.start}") from None
    return pair


def _answer(row: Mapping[str, Any], side: str) -> tuple[list[dict[str, str]] | None, str]:
    value = row.get(side)
    if value is None:
        raise _RowError("missing", f"{side} is null or missing")
    before = None
    if not isinstance(value, str):
        turns = _turns(value, side)
        if not turns or turns[-1]["role"] != "assistant":
            raise _RowError("no answer", f"the last turn of {side} is not the assistant's")
        before, value = turns[:-1], turns[-1]["content"]
    if not value.strip():
        raise _RowError("empty", f"{side} is empty or white space only")
    return before, value


def _prompt(
    row: Mapping[str, Any],
    before_chosen: list[dict[str, str]] | None,
    before_rejected: list[dict[str, str]] | None,
) -> list[dict[str, str]]:
    given = row.get("prompt")
    prompt = None
    if isinstance(given, str):
        prompt = [{"role": "user", "content": given}]
    elif given is not None:
        prompt = _turns(given, "prompt")
    for side, before in (("chosen", before_chosen), ("rejected", before_rejected)):
        if not before:
            continue
        if prompt is None or (isinstance(given, str) and before[-1:] == prompt):
            # A prompt given as text names the last turn of a longer conversation.
            prompt, given = before, None
        elif before != prompt:
            raise _RowError("two prompts", f"the turns before the answer in {side} are others")
    if not prompt or not any(turn["content"].strip() for turn in prompt):
        raise _RowError("no prompt", "the prompt is missing or empty")
    if prompt[-1]["role"] != "user":
        raise _RowError("no prompt", f"the prompt ends with the {prompt[-1]['role']}'s turn")
    return prompt


def _turns(value: Any, field: str) -> list[dict[str, str]]:
    if not isinstance(value, list):
        raise _RowError("wrong type", f"{field} is a {type(value).__name__}, not text or messages")
    turns = []
    for number, message in enumerate(value, start=1):
        if not isinstance(message, Mapping):
            raise _RowError("wrong type", f"message {number} of {field} is not an object")
        role = message.get("role", message.get("from"))
        content = message.get("content", message.get("value"))
        if not isinstance(content, str) or str(role).lower() not in _ROLES:
            raise _RowError(
                "wrong type",
                f"message {number} of {field} has role {role!r} and "
                f"content of type {type(content).__name__}",
            )
        turns.append({"role": _ROLES[str(role).lower()], "content": content})
    return turns


def _score(row: Mapping[str, Any], field: str) -> float | None:
    value = row.get(field)
    try:
        score = math.nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.inf
    if isinstance(value, bool):
        score = math.inf
    if math.isinf(score):
        raise _RowError("wrong type", f"{field} is {value!r}, not a finite number")
    return None if math.isnan(score) else score
