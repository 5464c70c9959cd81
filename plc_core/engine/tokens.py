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
    """How many pairs lost tokens to `max_length`, and how many became identical by it."""

    truncated: int
    identical: tuple[str, ...]  # pair ids


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
    for row in pairs.dataset.select_columns(["pair_id", "prompt", "chosen", "rejected"]):
        whole = _pair_ids(tokenizer, row)
        ids = _truncate(*whole, max_length)
        truncated += ids != whole
        if ids[1] == ids[2]:
            identical.append(row["pair_id"])
        for name, value in zip(columns, (row["pair_id"], *ids), strict=True):
            columns[name].append(value)
    return Dataset.from_dict(columns), Truncation(truncated, tuple(identical))


def _pair_ids(
    tokenizer: PreTrainedTokenizerBase, row: dict[str, Any]
) -> tuple[list[int], list[int], list[int]]:
    try:
        prompt = prompt_ids(tokenizer, row["prompt"])
        chosen, rejected = (
            _response_ids(tokenizer, row["prompt"], row[side], prompt)
            for side in ("chosen", "rejected")
        )
    except Exception as error:  # a template raises whatever its author chose
        raise DataError(
            f"The chat template of {tokenizer.name_or_path!r} cannot render pair "
            f"{row['pair_id']}: {error}"
        ) from error
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


def _response_ids(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[dict[str, str]],
    answer: str,
    prompt: list[int],
) -> list[int]:
    whole = _template_ids(tokenizer, [*turns, {"role": "assistant", "content": answer}])
    if whole[: len(prompt)] == prompt:
        response = whole[len(prompt) :]
    else:
        # The template or a merge of tokens reaches across the boundary: decide it before them.
        response = tokenizer.encode(answer, add_special_tokens=False)
    return _one_terminator(tokenizer, response)


def _one_terminator(tokenizer: PreTrainedTokenizerBase, response: list[int]) -> list[int]:
    # What follows the answer is the template's tail: its first special token ends the turn, and
    # the rest (a newline in ChatML) is never generated. Special tokens inside the answer stay.
    special = set(tokenizer.all_special_ids)
    end = len(response)
    while end and response[end - 1] not in special:
        end -= 1
    tail = str(tokenizer.decode(response[end:]))
    if end and not tail.strip():
        while end > 1 and response[end - 2] in special:
            end -= 1
        return response[:end]
    if tokenizer.eos_token_id is None:
        raise DataError(f"The tokenizer {tokenizer.name_or_path!r} has no end-of-sequence token.")
    return [*response, tokenizer.eos_token_id]


def _truncate(
    prompt: list[int], chosen: list[int], rejected: list[int], max_length: int
) -> tuple[list[int], list[int], list[int]]:
    longest = max(len(chosen), len(rejected))
    if len(prompt) + longest <= max_length:
        return prompt, chosen, rejected
    room = max(max_length - longest, max_length // 2)
    prompt = prompt[-room:]
    rest = max_length - len(prompt)
    return prompt, chosen[:rest], rejected[:rest]


def content_key(prompt: list[int], chosen: list[int], rejected: list[int]) -> str:
    """A name for the tokens of a pair that is the same in both orientations, 32 hex digits."""
    return hashlib.sha256(json.dumps([prompt, *sorted((chosen, rejected))]).encode()).hexdigest()[
        :32
    ]
