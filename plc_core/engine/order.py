"""The order in which pairs are visited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler


class WarmFirst(Sampler[int]):
    """All pairs in random order, but in the first epoch the warm ones before the others.

    The order follows from the seed and the epoch, so a resumed run goes on in it.

    Args:
        warm: whether each pair is warm.
        seed: of the order.
    """

    def __init__(self, warm: Sequence[bool], seed: int) -> None:
        self.warm = torch.tensor(warm, dtype=torch.bool)
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The data loader says which epoch comes."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.warm)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self), generator=generator)
        if self.epoch == 0:
            warm = self.warm[order]
            order = torch.cat([order[warm], order[~warm]])
        return iter(order.tolist())
