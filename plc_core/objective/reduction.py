"""Statistics over the optimizer step's batch on all ranks; on one process, of that process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def sum_over_ranks(values: Tensor) -> Tensor:
    """The element-wise sum of `values` over the ranks: the same shape; collective."""
    if dist.is_available() and dist.is_initialized():
        values = values.clone()
        dist.all_reduce(values)
    return values


def gather_over_ranks(values: Tensor) -> tuple[Tensor, int]:
    """`values`, [B] with a B of its own on each rank, of all ranks in rank order; collective.

    Also returns where this rank's own begin.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return values, 0
    sizes = [torch.zeros_like(_size(values)) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, _size(values))
    longest = int(torch.stack(sizes).max())
    padded = torch.nn.functional.pad(values, (0, longest - len(values)))
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    counts = [int(size) for size in sizes]
    gathered = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
    return gathered, sum(counts[: dist.get_rank()])


def _size(values: Tensor) -> Tensor:
    return torch.tensor(len(values), device=values.device)
