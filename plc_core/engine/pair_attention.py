"""Attention of packed rows pair by pair, without a mask of the row: what a CPU is fast at.

Under a dense mask every token's products with its whole row are computed, and most are thrown
away. Here a prompt and its chosen answer are one causal call, which leaves out what lies above the
diagonal, and its rejected answer is a second one, of the prompt's keys and its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def pair_spans(batch: Mapping[str, Tensor]) -> Tensor:
    """[1, 1, B, 5] of a `PairCollator`'s batch: each pair's row, and where in it the pair, its
    chosen and its rejected answer begin and the pair ends.

    Four dimensions and int64: transformers hands such a mask on as it is, and `packed_attention`
    tells it from the others, which are boolean.
    """
    chosen, rejected = batch["lengths"].view(-1, 2).unbind(1)
    first = batch["lengths"].cumsum(0)[1::2] - chosen - rejected
    # A pair's first response token is predicted by its prompt's last one.
    row, last = batch["predict_row"][first], batch["predict_column"][first]
    start, middle = batch["begin"][row, last], last + 1
    behind = middle + chosen
    return torch.stack((row, start, middle, behind, behind + rejected), 1)[None, None]


def attend_by_pair(
    query: Tensor, key: Tensor, value: Tensor, spans: Tensor, scaling: float | None
) -> Tensor:
    """query [R, H, L, D], key and value [R, H', L, D] to [R, L, H, D]; 0 for padding."""
    rows, heads, length, _ = query.shape
    output = query.new_zeros(rows, length, heads, value.shape[-1])
    by_head = output.transpose(1, 2)
    grouped = heads != key.shape[1]
    for row, start, middle, behind, end in spans[0, 0].tolist():
        q, k, v = (x[row : row + 1] for x in (query, key, value))
        by_head[row, :, start:behind] = scaled_dot_product_attention(
            q[:, :, start:behind], k[:, :, start:behind], v[:, :, start:behind],
            is_causal=True, scale=scaling, enable_gqa=grouped,
        )[0]  # fmt: skip
        prompt, own = middle - start, end - behind
        keys, values = (torch.cat((x[:, :, start:middle], x[:, :, behind:end]), 2) for x in (k, v))
        seen = torch.ones(own, prompt + own, dtype=torch.bool, device=q.device).tril(prompt)
        by_head[row, :, behind:end] = scaled_dot_product_attention(
            q[:, :, behind:end], keys, values, seen, scale=scaling, enable_gqa=grouped
        )[0]
    return output
