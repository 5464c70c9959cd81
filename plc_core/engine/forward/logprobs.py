"""Log-probabilities of the responses of a packed batch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from plc_core.engine.forward.attention import (
    attention_kind,
    attention_mask,
    language_model,
    packed_rows,
    whole_blocks,
)
from plc_core.engine.forward.packing import PairCollator, pair_sizes
from plc_core.engine.forward.vocabulary import LogitTransform, token_logps
from plc_core.engine.models.load import ModelError, model_identity


def pair_logps(
    model: nn.Module, batch: Mapping[str, Tensor], row_tokens: int = 0
) -> tuple[Tensor, Tensor]:
    """log pi(chosen | prompt) and log pi(rejected | prompt), token sums: [B] each, >= fp32, nats.

    Args:
        model: a Hugging Face decoder, possibly with adapters or wrapped for training.
        batch: of a `PairCollator`, on the model's device.
        row_tokens: of that collator, where `attention_kind` is to follow it.
    """
    scored = language_model(model)
    kind = attention_kind(scored, row_tokens)
    if kind == "flex":
        batch = whole_blocks(batch)
    with _scoring(scored, batch):
        token_logps = model(
            input_ids=batch["input_ids"],
            attention_mask=attention_mask(batch, kind),
            position_ids=batch["position_ids"],
            use_cache=False,
        )
    sums = torch.segment_reduce(token_logps, "sum", lengths=batch["lengths"], unsafe=True)
    chosen, rejected = sums.view(-1, 2).unbind(1)
    return chosen, rejected


@torch.no_grad()
def response_logps(
    model: nn.Module,
    prompts: Sequence[list[int]],
    responses: Sequence[list[int]],
    collator: PairCollator,
    responses_per_forward: int = 64,
) -> list[float]:
    """log pi(response | prompt) of single responses of token ids, in their order, nats."""
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]) - len(responses[i]))
    device = next(model.parameters()).device
    logps: dict[int, float] = {}
    for start in range(0, len(order), responses_per_forward):
        members = order[start : start + responses_per_forward]
        rows = [
            {"prompt_ids": prompts[i], "chosen_ids": responses[i], "rejected_ids": []}
            for i in members
        ]
        batch = {name: tensor.to(device) for name, tensor in collator(rows).items()}
        logps |= dict(zip(members, pair_logps(model, batch)[0].tolist(), strict=True))
    return [logps[i] for i in range(len(prompts))]


def autocast(device: torch.device, enabled: bool) -> torch.autocast:
    """bfloat16 by autocast, as transformers' trainer runs its forwards."""
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


def numerics(model: PreTrainedModel, bf16: bool, row_tokens: int = 0) -> dict[str, str]:
    """Everything that changes a packed forward's numbers, for the keys of caches: the model's hash,
    the precision, and the kind of attention in rows of `row_tokens`.
    """
    with autocast(model.device, bf16):
        attention = attention_kind(model, row_tokens)
    return {
        "model": model_identity(model),
        "precision": f"{model.dtype} with bfloat16 autocast" if bf16 else str(model.dtype),
        "attention": attention,
    }


@torch.no_grad()
def verify_packing(
    model: PreTrainedModel, tokens: Dataset, bf16: bool, row_tokens: int = 0
) -> float:
    """Compare the longest pair, packed beside the shortest, with forwards of single sequences.

    Args:
        row_tokens: of the rows that are to be trained on or read, which decide the attention.

    Returns:
        Seconds per token of the packed forward, which mean little on a GPU.

    Raises:
        ModelError: where they differ: the model's attention cannot be expressed by a mask (a
            sliding window, state-space layers), and its log-probs would be silently wrong.
    """
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    sizes = pair_sizes(tokens)
    places = sorted({int(sizes.argmax()), int(sizes.argmin())})
    rows = [tokens[i] for i in places]
    was_training = model.training
    model.eval()
    with autocast(model.device, bf16):
        batch = PairCollator(int(sizes[places].sum()))(rows)
        started = time.perf_counter()
        on_device = {name: tensor.to(model.device) for name, tensor in batch.items()}
        packed = torch.stack(pair_logps(model, on_device, row_tokens))
        seconds = time.perf_counter() - started
        plain = torch.tensor(
            [[_plain_logp(model, r["prompt_ids"], r[side]) for r in rows] for side in names[1:]]
        )
    model.train(was_training)
    low = bf16 or model.dtype != torch.float32
    absolute, relative = (1.0, 0.02) if low else (0.01, 1e-4)
    difference = (packed.cpu() - plain).abs()
    if not (difference <= absolute + relative * plain.abs()).all():
        raise ModelError(
            f"The architecture {type(language_model(model)).__name__} cannot be trained on packed "
            f"rows: its log-probs differ by {difference.max():.2g} nats from those of single "
            f"sequences, as with a sliding window below {sizes.max()} tokens. Lower max_length, or "
            "use another model."
        )
    return seconds / int(sizes[places].sum())


def _plain_logp(model: PreTrainedModel, prompt: list[int], response: list[int]) -> float:
    ids = torch.tensor([prompt + response], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return -cross_entropy(logits, ids[0, len(prompt) :], reduction="sum").item()


@contextlib.contextmanager
def _scoring(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> Iterator[None]:
    """Within, the model's forward gives the log-probs of the batch's response tokens, [N].

    Whatever wraps the model (adapters, data-parallel training) is called as always. Most positions
    are prompts and padding, and the vocabulary is the widest layer, so it is left to `token_logps`
    and sees the predicting positions alone. The head is called as a module, not read from outside:
    where weights are sharded over ranks, its hooks bring them together.
    """
    transform = LogitTransform.of(model.config)
    head = model.get_output_embeddings()

    def forward(**inputs: Any) -> Tensor:
        given = {name: value for name, value in inputs.items() if value is not None}
        hidden: Tensor = model.get_decoder()(**given).last_hidden_state
        logps: Tensor = head(hidden[batch["predict_row"], batch["predict_column"]])
        return logps

    def score(hidden: Tensor) -> Tensor:
        return token_logps(hidden, head, batch["targets"], transform)

    with packed_rows(model), _instead(model, forward), _instead(head, score):
        yield


@contextlib.contextmanager
def _instead(module: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    """Within, calling the module runs `forward`, with the module's hooks around it."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
