"""LoRA adapters that compute in the precision of the weights they stand beside."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear as PeftLinear
from torch import Tensor
from transformers import PreTrainedModel


def add_lora(policy: PreTrainedModel, rank: int, alpha: int, task: str = "CAUSAL_LM") -> PeftModel:
    """The policy with fresh LoRA adapters on all linear layers but the vocabulary's.

    The adapters' weights are fp32, as at a learning rate of 1e-5 their updates vanish in bfloat16;
    they are PEFT's in name, shape and file, and compute as `LowRankLinear`. Under the task
    "SEQ_CLS" the head is trained too.
    """
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type=task)
    with peft_quiet():
        adapted = get_peft_model(policy, config)
    assert isinstance(adapted, PeftModel)
    return _computed_low_rank(adapted)


def load_adapters(policy: PreTrainedModel, folder: Path) -> PeftModel:
    """The policy with the LoRA adapters in `folder` as they are, to be trained on."""
    with peft_quiet():
        adapted = PeftModel.from_pretrained(policy, folder, is_trainable=True)
    return _computed_low_rank(adapted)


@contextlib.contextmanager
def peft_quiet() -> Iterator[None]:
    """Without what peft warns of that nobody here can mend."""
    with warnings.catch_warnings():
        # peft 0.21 asks for a property by the name that transformers 5.24 is about to drop.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`")
        yield


def _computed_low_rank(adapted: PeftModel) -> PeftModel:
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    for module in adapted.modules():
        if type(module) is PeftLinear:
            module.__class__ = LowRankLinear
    return adapted


class LowRankLinear(PeftLinear):
    """PEFT's linear layer with one adapter: y = x Wᵀ + bias + s (x Aᵀ) Bᵀ.

    PEFT casts its input to the adapter's fp32 and adds the two products in a pass over the whole
    output. Here A and B, the smallest tensors, are cast instead. Anything but one plain active
    adapter on frozen weights, held in one place, is left to PEFT.
    """

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """[…, in] to […, out], in the dtype of x, or of autocast."""
        base: Any = self.get_base_layer()
        names = self.active_adapters
        plain = len(names) == 1 and not (self.disable_adapters or self.merged or args or kwargs)
        # DeepSpeed's ZeRO-3 brings weights together when the module that has them is called.
        apart = hasattr(base.weight, "ds_id")
        if not plain or apart or base.weight.requires_grad:
            return super().forward(x, *args, **kwargs)
        a: Any = self.lora_A[names[0]].weight
        b: Any = self.lora_B[names[0]].weight
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        y: Tensor = _LowRank.apply(
            x.flatten(0, -2),
            base.weight.to(x.dtype),
            None if base.bias is None else base.bias.to(x.dtype),
            a.to(x.dtype),
            (self.scaling[names[0]] * b).to(x.dtype),
        )
        return y.unflatten(0, x.shape[:-1])


class _LowRank(torch.autograd.Function):
    """x Wᵀ + bias + (x Aᵀ) Bᵀ, W and bias frozen: x [n, in], W [out, in], A [r, in], B [out, r].

    A pass over the wider of input and output costs as much as the adapter's arithmetic many times
    over, so both are touched by one product in each direction, with A or B beside W:

        out > in    y = [x, x Aᵀ] [W, B]ᵀ       [dx₀, dlow] = dy [W, B]     dx = dx₀ + dlow A
        else        [y₀, low] = x [W; A]ᵀ       y = y₀ + low Bᵀ             dx = [dy, dy B] [W; A]
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor
    ) -> Tensor:
        width = weight.shape[0]
        if width > weight.shape[1]:
            low = x @ a.T
            y = torch.cat((x, low), 1) @ torch.cat((weight, b), 1).T
        else:
            both = x @ torch.cat((weight, a)).T
            low = both[:, width:].contiguous()
            y = both[:, :width] + low @ b.T
        ctx.save_for_backward(x, low, weight, a, b)
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = gradients
        x, low, weight, a, b = ctx.saved_tensors
        width = weight.shape[1]
        if weight.shape[0] > width:
            both = dy @ torch.cat((weight, b), 1)
            dlow = both[:, width:].contiguous()
            dx = both[:, :width] + dlow @ a
        else:
            dlow = dy @ b
            dx = torch.cat((dy, dlow), 1) @ torch.cat((weight, a))
        return dx, None, None, dlow.T @ x, dy.T @ low
