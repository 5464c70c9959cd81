"""What training must compute, and how fast the device multiplies matrices."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel

from notebooks.overhead.benchmark import wait_for
from plc_core.engine.forward.packing import pair_tokens


def matrix_rate(
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    size: int = 8192,
    repeats: int = 20,
) -> float:
    """FLOP/s of a matrix product, size × size × size, of random numbers."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for _ in range(5):
        a @ b
    seconds = []
    for _ in range(repeats):
        wait_for(device)
        start = time.perf_counter()
        a @ b
        wait_for(device)
        seconds.append(time.perf_counter() - start)
    return float(2 * size**3 / np.median(seconds))


def needed_flops(model: PreTrainedModel, pairs: Dataset, lora_rank: int) -> float:
    """Arithmetic that training on these pairs needs, once each: FLOP.

    Counted: the matrix products of the packed layout. A frozen weight works twice a token, forward
    and to its input (4 FLOP a weight), a trained one also for its own gradient (6); the head does
    so for response tokens only; attention's two products over the visible positions, once forward
    and twice backward. With `lora_rank` 0 all weights are trained. Nothing is counted for norms,
    softmax, padding, or computing again.
    """
    config: Any = model.config
    linear = [m for n, m in model.get_decoder().named_modules() if _is_dense(n, m)]
    weights = sum(m.weight.numel() for m in linear)
    adapters = sum(lora_rank * sum(m.weight.shape) for m in linear)
    tokens = sum(map(pair_tokens, pairs))
    responses = sum(len(r["chosen_ids"]) + len(r["rejected_ids"]) for r in pairs)
    seen = 0
    for row in pairs:
        prompt, *sides = (len(row[f"{x}_ids"]) for x in ("prompt", "chosen", "rejected"))
        seen += prompt * (prompt + 1) // 2 + sum(n * prompt + n * (n + 1) // 2 for n in sides)
    width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    head = config.vocab_size * config.hidden_size
    attention = 12 * config.num_hidden_layers * width * seen
    own = 4 if lora_rank else 6
    return float((own * weights + 6 * adapters) * tokens + own * head * responses + attention)


def _is_dense(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and "lora_" not in name
