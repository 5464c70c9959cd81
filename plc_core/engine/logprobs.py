"""Log-probabilities of the responses of a packed batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from plc_core.engine.packing import PairCollator, attention_mask


def pair_logps(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """log pi(chosen | prompt) and log pi(rejected | prompt), token sums: [B] each, >= fp32, nats.

    Args:
        model: a Hugging Face decoder with `sdpa` attention, possibly wrapped for training.
        batch: of a `PairCollator`, on the model's device.
    """
    with _vocabulary_only_at(model, batch["predict_row"], batch["predict_column"]):
        logits = model(
            input_ids=batch["input_ids"],
            attention_mask=attention_mask(batch["pair"], batch["part"]),
            position_ids=batch["position_ids"],
            use_cache=False,
        ).logits
    # At least fp32: in bfloat16 a sum over a response would be off by whole nats.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    token_logps = -cross_entropy(logits, batch["targets"], reduction="none")
    sums = torch.segment_reduce(token_logps, "sum", lengths=batch["lengths"])
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


@contextlib.contextmanager
def _vocabulary_only_at(model: nn.Module, rows: Tensor, columns: Tensor) -> Iterator[None]:
    # Most positions are prompts and padding; the vocabulary projection is the widest layer, so it
    # is given the predicting positions alone: [R, L, d] becomes [N, d], and the logits [N, V].
    def select(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (inputs[0][rows, columns],)

    unwrapped: Any = getattr(model, "module", model)
    head: nn.Module = unwrapped.get_output_embeddings()
    handle = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()
