"""Attention of packed rows pair by pair, without a mask of the row: what a CPU is fast at.

Under a dense mask every token's products with its whole row are computed, and most are thrown
away. Here a prompt and its chosen answer are one causal call, which leaves out what lies above the
diagonal, and its rejected answer is a second one, of the prompt's keys and its own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend_by_pair(
    query: Tensor, key: Tensor, value: Tensor, spans: Tensor, scaling: float | None
) -> Tensor:
    """query [R, H, L, D], key and value [R, H', L, D] to [R, L, H, D]; 0 for padding.

    Args:
        spans: [B, 5] of a `PairCollator`'s batch, whose pairs fill every row from its start.
    """
    of_row: list[list[list[int]]] = [[] for _ in query]
    for row, *places in spans.tolist():
        of_row[row].append(places)
    rows = []
    # Split and joined as a whole: writing pair by pair into one tensor would have the backward
    # copy its gradient once a pair.
    for places, *states in zip(of_row, query, key, value, strict=True):
        sizes = [n for start, _, behind, end in places for n in (behind - start, end - behind)]
        sizes.append(query.shape[2] - sum(sizes))  # padding
        queries, keys, values = (state.split(sizes, 1) for state in states)
        parts = []
        for number, (start, middle, behind, end) in enumerate(places):
            first, second = 2 * number, 2 * number + 1
            prompt, own = middle - start, end - behind
            parts.append(_attend(queries[first], keys[first], values[first], None, scaling))
            if not own:
                continue
            k, v = (torch.cat((x[first][:, :prompt], x[second]), 1) for x in (keys, values))
            seen = torch.ones(own, prompt + own, dtype=torch.bool, device=k.device).tril(prompt)
            parts.append(_attend(queries[second], k, v, seen, scaling))
        parts.append(parts[0].new_zeros(sizes[-1], *parts[0].shape[1:]))
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, scaling: float | None
) -> Tensor:
    # [H, l, D] to [l, H, D], causal where no mask is given. The library's fast path wants a batch.
    attended = scaled_dot_product_attention(
        query[None], key[None], value[None], seen, is_causal=seen is None, scale=scaling,
        enable_gqa=query.shape[0] != key.shape[0],
    )  # fmt: skip
    return attended[0].transpose(0, 1)
