"""Which pairs go together: the order of visits, forwards of a step, packed rows of a forward."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from plc_core.data import DataError
from plc_core.runs import LENGTH_COLUMNS

_IDS = ("prompt_ids", "chosen_ids", "rejected_ids")


class PairCollator:
    """Collates tokenised pairs into the packed rows of one forward.

    A batch holds, for R rows of L tokens, B pairs and N response tokens:

        input_ids, position_ids     [R, L]  positions restart for the rejected response
        begin                       [R, L]  where in the row the token's pair begins
        gap_from, gap_to            [R, L]  what a token does not see of its pair: for a rejected
                                            response the chosen one, for other tokens nothing
        predict_row, predict_column [N]     where each response token is predicted from
        targets                     [N]     the response tokens, pair by pair, chosen first
        lengths                     [2B]    their counts, in the same order
        spans                       [B, 5]  the pair's row, and where in it the pair, its chosen and
                                            its rejected response begin and the pair ends
        distinct                    [B]     whether the two responses differ in their tokens
        index                       [B]     the pair's row in the data set
        reference                   [B, 2]  log-probs under the reference, where the rows have them
        told                        [B, 2]  p_flip and p_tie, where the rows have them; NaN: unknown

    A token sees those from `begin` to itself without the gap; padding sees itself. A side without
    tokens has log-prob 0; that is how single responses are scored. Every prompt has at least one
    token; its last one predicts the first of both responses.

    Args:
        row_tokens: length of a row to fill; a longer pair gets rows of its own length.

    Raises:
        ValueError: called with a pair without prompt tokens.
    """

    def __init__(self, row_tokens: int) -> None:
        self.row_tokens = row_tokens

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        ids = [[np.asarray(row[name], dtype=np.int64) for name in _IDS] for row in rows]
        if not all(len(prompt) for prompt, *_ in ids):
            raise ValueError("A pair has no prompt tokens, which predict the first response token.")
        sizes = [sum(map(len, parts)) for parts in ids]
        bins = balanced_bins(sizes, max(self.row_tokens, *sizes))
        length = max(sum(sizes[i] for i in members) for members in bins)
        shape = (len(bins), length)
        input_ids = np.zeros(shape, dtype=np.int64)  # padding is masked by position, not by id
        position_ids = np.zeros(shape, dtype=np.int64)
        begin = np.tile(np.arange(length), (len(bins), 1))  # padding's view: itself alone
        gap = np.zeros((2, *shape), dtype=np.int64)
        spans = np.zeros((len(rows), 5), dtype=np.int64)
        columns: dict[int, NDArray[np.int64]] = {}
        for number, members in enumerate(bins):
            start = 0
            for i in members:
                n, c, r = map(len, ids[i])
                middle, behind, end = start + n, start + n + c, start + sizes[i]
                input_ids[number, start:end] = np.concatenate(ids[i])
                position_ids[number, start:behind] = np.arange(n + c)
                position_ids[number, behind:end] = np.arange(n, n + r)
                begin[number, start:end] = start
                gap[:, number, behind:end] = [[middle], [behind]]
                # The prompt's last token predicts the first token of both responses.
                columns[i] = np.arange(middle - 1, end - 1)
                columns[i][c : c + 1] = middle - 1
                spans[i] = number, start, middle, behind, end
                start = end
        arrays = {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "begin": begin,
            "gap_from": gap[0],
            "gap_to": gap[1],
            "predict_row": np.repeat(spans[:, 0], spans[:, 4] - spans[:, 2]),
            "predict_column": np.concatenate([columns[i] for i in range(len(rows))]),
            "targets": np.concatenate([x for _, *sides in ids for x in sides]),
            "lengths": np.array([len(x) for _, *sides in ids for x in sides]),
            "spans": spans,
        }
        arrays["distinct"] = np.array([not np.array_equal(c, r) for _, c, r in ids])
        if "index" in rows[0]:
            arrays["index"] = np.array([row["index"] for row in rows])
        if "reference_chosen" in rows[0]:
            reference = [[row["reference_chosen"], row["reference_rejected"]] for row in rows]
            arrays["reference"] = np.array(reference, dtype=np.float32)
        if "p_flip" in rows[0]:
            told = [[row["p_flip"], row["p_tie"]] for row in rows]
            arrays["told"] = np.array(told, dtype=np.float32)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class StepCollator:
    """Collates the pairs of an optimizer step into its forwards: {"forwards": [batch, …]}.

    Each forward takes `pairs_per_forward` consecutive pairs; with a token budget at most that many,
    balanced by length over the step's forwards. `place` [B] of a batch is each pair's position in
    the step.

    Args:
        collator: of one forward.
        pairs_per_forward: most pairs per forward.
        tokens_per_forward: most tokens per forward, without padding; 0 for no such limit.
    """

    def __init__(
        self, collator: PairCollator, pairs_per_forward: int, tokens_per_forward: int = 0
    ) -> None:
        self.collator = collator
        self.pairs_per_forward = pairs_per_forward
        self.tokens_per_forward = tokens_per_forward

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Tensor]]]:
        members = self._forwards([pair_tokens(row) for row in rows])
        batches = [self.collator([rows[i] for i in places]) for places in members]
        for batch, places in zip(batches, members, strict=True):
            batch["place"] = torch.tensor(places)
        return {"forwards": batches}

    def _forwards(self, sizes: Sequence[int]) -> list[list[int]]:
        if self.tokens_per_forward:
            return balanced_bins(sizes, self.tokens_per_forward, self.pairs_per_forward)
        step = self.pairs_per_forward
        return [
            list(range(len(sizes)))[start : start + step] for start in range(0, len(sizes), step)
        ]


def check_budget(pairs: Dataset, tokens_per_forward: int) -> None:
    """DataError where a pair alone passes a forward's token budget; 0 is no budget."""
    if not tokens_per_forward:
        return
    sizes = pair_sizes(pairs)
    if (size := int(sizes.max())) > tokens_per_forward:
        raise DataError(
            f"Pair {pairs[int(sizes.argmax())]['pair_id']} has {size} tokens (its prompt once, and "
            f"both responses), more than tokens_per_forward ({tokens_per_forward}): raise that to "
            f"at least {size}, or lower max_length."
        )


def pair_sizes(pairs: Dataset) -> NDArray[np.int64]:
    """`pair_tokens` of every pair, without reading the tokens."""
    table = pairs.with_format("arrow")[:]
    return np.sum([pc.list_value_length(table[name]).to_numpy() for name in _IDS], axis=0)


def response_lengths(pairs: Dataset) -> NDArray[np.int64]:
    """[N, 2]: tokens of every pair's chosen and rejected response, without reading the tokens."""
    table = pairs.with_format("arrow")[:]
    return np.stack([pc.list_value_length(table[name]).to_numpy() for name in _IDS[1:]], axis=1)


def with_lengths(table: pa.Table, pairs: Dataset) -> pa.Table:
    """A run's pairs with the columns of their `response_lengths`."""
    for name, lengths in zip(LENGTH_COLUMNS, response_lengths(pairs).T, strict=True):
        table = table.append_column(name, pa.array(lengths, pa.int32()))
    return table


def pair_tokens(row: Mapping[str, Any]) -> int:
    """Tokens of a pair in a packed row: its prompt once, and both responses."""
    return sum(len(row[name]) for name in _IDS)


def balanced_bins(sizes: Sequence[int], capacity: int, most: int | None = None) -> list[list[int]]:
    """Places of `sizes` in few bins of about the same sum: rows or forwards without much padding.

    The longest first, each into the emptiest bin (Graham's LPT rule); one bin more where the
    fullest would pass `capacity` or hold over `most` places. The same sizes give the same bins.

    Raises:
        ValueError: where one size alone passes the capacity.
    """
    if sizes and max(sizes) > capacity:
        raise ValueError(f"A size of {max(sizes)} does not fit a bin of {capacity}.")
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    count = max(1, -(-sum(sizes) // capacity), -(-len(sizes) // (most or len(sizes) or 1)))
    while True:
        bins = _longest_first(sizes, order, count)
        if all(
            sum(sizes[i] for i in members) <= capacity and len(members) <= (most or len(sizes))
            for members in bins
        ):
            return [sorted(members) for members in bins]
        count += 1


def _longest_first(sizes: Sequence[int], order: Sequence[int], count: int) -> list[list[int]]:
    bins: list[list[int]] = [[] for _ in range(count)]
    load = [(0, number) for number in range(count)]
    for i in order:
        total, number = heapq.heappop(load)
        bins[number].append(i)
        heapq.heappush(load, (total + sizes[i], number))
    return bins


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
        ranks: how many there are; each takes `batch_pairs / ranks` consecutive pairs.
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
    """Places of `sizes`, rank by rank: the same number for each, and about equal sums.

    Longest first, each to the least loaded rank that has a free slot.
    """
    hands: list[list[int]] = [[] for _ in range(ranks)]
    load = [(0, rank) for rank in range(ranks)]
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        total, rank = heapq.heappop(load)
        hands[rank].append(i)
        if len(hands[rank]) < len(sizes) // ranks:
            heapq.heappush(load, (total + sizes[i], rank))
    return [i for hand in hands for i in sorted(hand)]
