"""Rewards of a sequence-classification model: loading, tokens, and batches of like length."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from plc_core.data import DataError
from plc_core.engine.models.load import (
    ModelError,
    at_revision,
    disable_dropout,
    load_classifier,
    tokenizer_and_path,
)
from plc_core.engine.tokens.templates import CannotRenderError, Turns, chat_format, render


class RewardModel(NamedTuple):
    """A sequence-classification model with one output, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_reward_model(
    model: str, dtype: str | None = "fp32", revision: str | None = None
) -> RewardModel:
    """A reward model from a local folder or the hub: one output, safetensors, no foreign code.

    `dtype` is bf16 or fp32; None is bf16 where there is a GPU and the weights are stored in 16
    bits, else fp32.

    Raises:
        ModelError: where there is no such model, it has no chat template, it has not one output,
            or weights are missing.
    """
    tokenizer, path = tokenizer_and_path(model, revision)
    if dtype is None:
        stored = AutoConfig.from_pretrained(path, **at_revision(revision)).dtype
        short = torch.cuda.is_available() and stored in (torch.bfloat16, torch.float16)
        dtype = "bf16" if short else "fp32"
    loaded, missing = load_classifier(model, path, dtype, **at_revision(revision))
    if missing:
        raise ModelError(
            f"The weights of {model!r} lack {len(missing)} tensors, as {missing[0]!r}; they would "
            "be random numbers. Is it a reward model?"
        )
    if loaded.config.num_labels != 1:
        raise ModelError(
            f"{model!r} has {loaded.config.num_labels} outputs; a reward model has one."
        )
    disable_dropout(loaded)
    return RewardModel(loaded.eval(), tokenizer)


def dialogue_ids(
    tokenizer: PreTrainedTokenizerBase, dialogues: Sequence[Turns], names: Sequence[str]
) -> list[list[int]]:
    """The ids of each dialogue, which ends with an answer, as the chat template writes it.

    Text that spells a special token stays text.

    Raises:
        DataError: for a dialogue that the template refuses, by its name in `names`.
    """
    chat = chat_format(tokenizer)
    whole = [chat.folded(turns) for turns in dialogues]
    plain = [number for number, turns in enumerate(whole) if not chat.spells_special(turns)]
    rows: dict[int, list[int]] = {}
    # All at once takes half the time; those that spell special tokens, or where one of all
    # cannot be written, are written one by one.
    with contextlib.suppress(CannotRenderError):
        texts = render(tokenizer, [whole[number] for number in plain])
        if texts:
            encoded = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
            rows = dict(zip(plain, encoded, strict=True))
    for number, turns in enumerate(whole):
        if number in rows:
            continue
        try:
            rows[number] = chat.ids(turns, literal=chat.spells_special(turns))
        except CannotRenderError as error:
            raise DataError(
                f"{names[number]} cannot be written by the chat template of "
                f"{tokenizer.name_or_path!r}: {error}."
            ) from None
    return [rows[number] for number in range(len(whole))]


def score_ids(
    reward: RewardModel, rows: Sequence[Sequence[int]], batch_tokens: int
) -> Iterator[tuple[list[int], list[float]]]:
    """The rewards of token ids, batch by batch, longest first: their places in `rows`, and they.

    Args:
        reward: on the device where it is to run.
        rows: token ids of whole dialogues.
        batch_tokens: of a batch at most, padding included; rows of like length go together.
    """
    pad = _padding(reward, rows)
    for places in _batches([len(row) for row in rows], batch_tokens):
        yield places, _rewards(reward.model, [rows[place] for place in places], pad)


@torch.inference_mode()
def _rewards(model: PreTrainedModel, rows: Sequence[Sequence[int]], pad: int) -> list[float]:
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    logits = model(
        input_ids=ids.to(model.device), attention_mask=mask.to(model.device), use_cache=False
    ).logits
    return logits[:, 0].float().tolist()


def _padding(reward: RewardModel, rows: Sequence[Sequence[int]]) -> int:
    """The token to pad with. The reward is read at the last token that is not the model's padding.

    Where the model names none, one is named that no row ends with: the tokenizer's may be the end
    of sequence, and the reward would be read before it.
    """
    config = reward.model.config.get_text_config()
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    ends = {row[-1] for row in rows if row}
    candidates = [reward.tokenizer.pad_token_id, *range(len(ends) + 1)]
    pad = next(token for token in candidates if token is not None and token not in ends)
    config.pad_token_id = reward.model.config.pad_token_id = pad
    return int(pad)


def _batches(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Places by falling size, in batches of at most `most` tokens with the padding."""
    batch: list[int] = []
    for place in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        # The first of a batch is its longest.
        if batch and (len(batch) + 1) * sizes[batch[0]] > most:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
