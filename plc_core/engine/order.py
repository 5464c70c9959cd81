"""The order in which pairs are visited."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler


class VisitOrder(Sampler[int]):
    """All pairs in random order, but in the first epoch the warm ones before the others.

    The order follows from the seed and the epoch, so a resumed run goes on in it. A step's pairs
    are the same on any number of ranks; among ranks, which wait for each other, they are dealt so
    that all have about as many tokens.

    Args:
        sizes: tokens of each pair.
        seed: of the order.
        warm: whether each pair is warm; empty where none is.
        batch_pairs: pairs of an optimizer step, over all ranks.
        ranks: that take `batch_pairs / ranks` consecutive ones each.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        seed: int,
        warm: Sequence[bool] = (),
        batch_pairs: int = 1,
        ranks: int = 1,
    ) -> None:
        self.sizes = sizes
        self.seed = seed
        self.warm = torch.tensor(warm or [False] * len(sizes), dtype=torch.bool)
        self.batch_pairs = batch_pairs
        self.ranks = ranks
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The data loader says which epoch comes."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self), generator=generator)
        if self.epoch == 0:
            warm = self.warm[order]
            order = torch.cat([order[warm], order[~warm]])
        for step in order.split(self.batch_pairs):
            pairs = step.tolist()
            # An epoch's last pairs are too few: the ranks fill up with others, in this order.
            if self.ranks > 1 and len(pairs) == self.batch_pairs:
                pairs = [pairs[i] for i in deal([self.sizes[i] for i in pairs], self.ranks)]
            yield from pairs


def deal(sizes: Sequence[int], ranks: int) -> list[int]:
    """Places of `sizes`, rank by rank: as many for each, and about the same sum.

    The longest first, each to the rank that has least so far and still lacks some.
    """
    hands: list[list[int]] = [[] for _ in range(ranks)]
    load = [(0, rank) for rank in range(ranks)]
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        total, rank = heapq.heappop(load)
        hands[rank].append(i)
        if len(hands[rank]) < len(sizes) // ranks:
            heapq.heappush(load, (total + sizes[i], rank))
    return [i for hand in hands for i in sorted(hand)]
