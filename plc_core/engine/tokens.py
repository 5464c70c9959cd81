"""From a pair to token ids: the model's own chat template, and one boundary and one terminator."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from plc_core.data import DataError, Pairs


@dataclass(frozen=True)
class Truncation:
    """How many pairs lost tokens to `max_length`, and which have the same tokens on both sides."""

    truncated: int
    identical: tuple[str, ...]  # pair ids; they train nothing, as their margin is always 0


def tokenize_pairs(
    pairs: Pairs, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[Dataset, Truncation]:
    """Token ids of every pair: columns pair_id, prompt_ids, chosen_ids, rejected_ids.

    The prompt ids are the template's with its generation prompt, shared by both sides; a response
    ends with exactly one terminator. A pair longer than `max_length` loses the start of its prompt
    first, down to half of `max_length`, then the end of the longer response (the terminator with
    it), and never all of a response.

    Raises:
        DataError: where the template cannot render a pair, naming it, or max_length is below 4.
    """
    if max_length < 4:
        raise DataError(f"max_length is {max_length}; a pair needs at least 4 tokens.")
    columns: dict[str, list[Any]] = {
        name: [] for name in ("pair_id", "prompt_ids", "chosen_ids", "rejected_ids")
    }
    truncated, identical = 0, []
    special = _special_ids(tokenizer)
    for row in pairs.dataset.select_columns(["pair_id", "prompt", "chosen", "rejected"]):
        whole = _pair_ids(tokenizer, special, row)
        ids = _truncate(*whole, max_length, tokenizer.bos_token_id)
        truncated += ids != whole
        if ids[1] == ids[2]:
            identical.append(row["pair_id"])
        for name, value in zip(columns, (row["pair_id"], *ids), strict=True):
            columns[name].append(value)
    return Dataset.from_dict(columns), Truncation(truncated, tuple(identical))


def _pair_ids(
    tokenizer: PreTrainedTokenizerBase, special: set[int], row: dict[str, Any]
) -> tuple[list[int], list[int], list[int]]:
    try:
        prompt = prompt_ids(tokenizer, row["prompt"])
        tail, terminator = _tail(tokenizer, special, row["prompt"])
        chosen, rejected = (
            [*_answer_ids(tokenizer, row["prompt"], row[side], prompt, tail), terminator]
            for side in ("chosen", "rejected")
        )
    except Exception as error:  # a template raises whatever its author chose
        raise DataError(
            f"The chat template of {tokenizer.name_or_path!r} cannot render pair "
            f"{row['pair_id']}, or the tokenizer cannot spell it: {error}. Is it the model for "
            "these pairs?"
        ) from error
    if not prompt:
        raise DataError(
            f"The chat template of {tokenizer.name_or_path!r} leaves no prompt of pair "
            f"{row['pair_id']}: a response would be scored behind nothing."
        )
    return prompt, chosen, rejected


def prompt_ids(tokenizer: PreTrainedTokenizerBase, turns: Sequence[dict[str, str]]) -> list[int]:
    """The ids of a prompt, up to and including the template's start of the answer."""
    return _template_ids(tokenizer, turns, add_generation_prompt=True)


def _template_ids(
    tokenizer: PreTrainedTokenizerBase, turns: Iterable[dict[str, str]], **options: Any
) -> list[int]:
    if tokenizer.chat_template is None:
        raise DataError(
            f"The tokenizer {tokenizer.name_or_path!r} has no chat template; set one with "
            "tokenizer.chat_template and save it beside the model."
        )
    encoded = tokenizer.apply_chat_template(
        list(turns), tokenize=True, return_dict=False, **options
    )
    return list(encoded)


def _answer_ids(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[dict[str, str]],
    answer: str,
    prompt: list[int],
    tail: list[int],
) -> list[int]:
    whole = _template_ids(tokenizer, [*turns, {"role": "assistant", "content": answer}])
    if whole[: len(prompt)] != prompt or whole[len(whole) - len(tail) :] != tail:
        # The template or a merge of tokens reaches across a boundary: decide it before them.
        return tokenizer.encode(answer, add_special_tokens=False)
    return whole[len(prompt) : len(whole) - len(tail)]


def _tail(
    tokenizer: PreTrainedTokenizerBase, special: set[int], turns: Sequence[dict[str, str]]
) -> tuple[list[int], int]:
    """What the template writes behind an answer, and the token of it that ends the turn.

    That is its first special token, as <|im_end|> in ChatML, whatever follows it (a newline is
    never generated); where it writes none, the end of sequence.
    """
    probe = "plc"
    text = tokenizer.apply_chat_template(
        [*turns, {"role": "assistant", "content": probe}], tokenize=False
    )
    tail_text = str(text).rpartition(probe)[2]
    tail = tokenizer.encode(tail_text, add_special_tokens=False)
    terminator = next((token for token in tail if token in special), tokenizer.eos_token_id)
    if terminator is None:
        raise DataError(f"The tokenizer {tokenizer.name_or_path!r} has no end-of-sequence token.")
    return tail, terminator


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    # all_special_ids lacks those that a tokenizer marks as special without giving them a part.
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marked = {number for number, token in added.items() if token.special}
    return marked | set(tokenizer.all_special_ids)


def _truncate(
    prompt: list[int], chosen: list[int], rejected: list[int], max_length: int, first: int | None
) -> tuple[list[int], list[int], list[int]]:
    longest = max(len(chosen), len(rejected))
    if len(prompt) + longest <= max_length:
        return prompt, chosen, rejected
    room = max(max_length - longest, max_length // 2)
    # A model that was trained with a first token is at a loss without it.
    head = prompt[:1] if first is not None and prompt[0] == first and len(prompt) > room else []
    prompt = head + prompt[-(room - len(head)) :]
    rest = max_length - len(prompt)
    return prompt, chosen[:rest], rejected[:rest]


def content_key(prompt: list[int], chosen: list[int], rejected: list[int]) -> str:
    """A name for the tokens of a pair that is the same in both orientations, 32 hex digits."""
    return hashlib.sha256(json.dumps([prompt, *sorted((chosen, rejected))]).encode()).hexdigest()[
        :32
    ]
