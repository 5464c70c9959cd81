"""Statistics over the optimizer step's batch on all ranks; on one process, of that process.

A device works through what it was given while its process goes on. How many values each rank has
is therefore asked between the processes: asked through the devices, every answer would wait until
all that was given to them is done, and leave them idle until the next thing arrives.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor


def sum_over_ranks(values: Tensor) -> Tensor:
    """The element-wise sum of `values` over the ranks: the same shape; collective."""
    if _alone():
        return values
    values = values.clone()
    dist.all_reduce(values)
    return values


def gather_over_ranks(values: Tensor) -> tuple[Tensor, int]:
    """`values`, [B, …] with a B of its own on each rank, of all ranks in rank order; collective.

    Also returns where this rank's own begin. Nothing waits for the device.
    """
    if _alone():
        return values, 0
    counts = counts_over_ranks(len(values))
    padded = values.new_zeros(max(counts), *values.shape[1:])
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    gathered = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
    return gathered, sum(counts[: dist.get_rank()])


def counts_over_ranks(count: int) -> list[int]:
    """The `count` of every rank, in rank order; collective, between the processes."""
    if _alone():
        return [count]
    own = torch.tensor([count])
    counts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, own, group=_processes())
    return [int(x) for x in counts]


def objects_over_ranks(content: Any) -> list[Any]:
    """The `content` of every rank, in rank order; collective, between the processes."""
    if _alone():
        return [content]
    contents: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(contents, content, group=_processes())
    return contents


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1


_groups: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


def _processes() -> dist.ProcessGroup:
    """The same ranks, speaking to each other without their devices.

    Between hosts gloo must find the way, as NCCL does (GLOO_SOCKET_IFNAME).
    """
    world = dist.group.WORLD
    assert world is not None
    if dist.get_backend(world) in ("gloo", "mpi"):
        return world
    # Kept as long as the world is, whose threads must be able to end.
    if world not in _groups:
        _groups[world] = dist.new_group(backend="gloo")
    return _groups[world]
