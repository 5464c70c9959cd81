"""Responses of a policy, by greedy decoding or sampling at temperature 1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from peft import PeftModel
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from plc_core.progress import Progress
from plc_core.storage.files import RunError

Decoding = Literal["greedy", "sampled"]

_WHOLE_DISTRIBUTION = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}


class Response(NamedTuple):
    """One response: its text, its token ids with the terminator, and whether it has one."""

    text: str
    ids: list[int]
    finished: bool


def generate_responses(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    decoding: Decoding,
    max_new_tokens: int,
    seed: int,
    batch_size: int = 128,
    progress: Progress | None = None,
) -> list[Response]:
    """One response for each prompt of token ids, in their order.

    The same prompts, seed and batch size give the same responses; the global random state is left
    as it was.
    """
    config = generation_config(model, tokenizer, max_new_tokens)
    if decoding == "sampled":
        # The whole distribution at temperature 1, whatever the model's own settings are.
        config.update(**_WHOLE_DISTRIBUTION)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    responses: dict[int, Response] = {}
    devices = [model.device] if model.device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        generating(model, config),
        (progress or Progress()).phase(f"{decoding} responses", len(prompts)) as advance,
    ):
        torch.manual_seed(seed)
        for start in range(0, len(order), batch_size):
            members = order[start : start + batch_size]
            ids = generate_batch(model, [prompts[i] for i in members], config)
            for i, row in zip(members, ids, strict=True):
                responses[i] = response_of(tokenizer, row, config.eos_token_id)
            advance(len(members))
    return [responses[i] for i in range(len(prompts))]


def generation_config(
    model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int
) -> GenerationConfig:
    """Greedy decoding with every terminator that the model or the tokenizer names."""
    return GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=_terminators(tokenizer, model.generation_config),
        pad_token_id=tokenizer.pad_token_id
        if tokenizer.pad_token_id is not None
        else tokenizer.eos_token_id,
    )


@contextlib.contextmanager
def generating(model: PreTrainedModel | PeftModel, config: GenerationConfig) -> Iterator[None]:
    """The model ready to generate by `config` alone, and afterwards as it was."""
    was_training, own = model.training, model.generation_config
    model.eval()
    # transformers would fill what is left open in a configuration from the model's own.
    model.generation_config = config
    try:
        with torch.inference_mode():
            yield
    finally:
        model.generation_config = own
        model.train(was_training)


def generate_batch(
    model: PreTrainedModel | PeftModel,
    prompts: list[list[int]],
    config: GenerationConfig,
    **options: Any,
) -> list[list[int]]:
    """The new tokens of each prompt, padded behind the terminator; `options` are passed on."""
    longest = max(map(len, prompts))
    # Padding on the left, where a decoder expects it.
    rows = [[config.pad_token_id] * (longest - len(p)) + p for p in prompts]
    mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
    try:
        output = model.generate(  # type: ignore[operator]
            input_ids=torch.tensor(rows, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            generation_config=config,
            **options,
        )
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise
        raise RunError(
            "The policy's probabilities are no numbers: its weights are spoilt, as by too large a "
            "learning rate. Train under another name with a lower one."
        ) from None
    return output[:, longest:].tolist()


def _terminators(tokenizer: PreTrainedTokenizerBase, own: GenerationConfig) -> list[int]:
    listed = own.eos_token_id
    listed = listed if isinstance(listed, list) else [listed]
    return sorted({token for token in [*listed, tokenizer.eos_token_id] if token is not None})


def response_of(
    tokenizer: PreTrainedTokenizerBase, row: list[int], terminators: list[int]
) -> Response:
    """New tokens up to their first terminator, as a response."""
    end = next((place for place, token in enumerate(row) if token in terminators), None)
    ids = row if end is None else row[: end + 1]
    text = str(tokenizer.decode(row[:end], skip_special_tokens=True))
    return Response(text.strip(), ids, end is not None)
