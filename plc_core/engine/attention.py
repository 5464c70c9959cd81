"""Who sees whom in a packed row: a dense mask for sdpa, a mask of blocks for flex_attention."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from plc_core.engine.models import ModelError

PACKED = "plc_packed"
"""The attention of packed rows among transformers' implementations."""

BLOCK = 128
_SMALLEST = 16  # head of flex_attention's kernels


def attention_kind(model: PreTrainedModel) -> str:
    """ "flex" where a GPU computes in 16 bits; else "sdpa", which is exact and runs everywhere.

    flex_attention's cost follows the blocks that are seen rather than the square of a row. In
    fp32 its gradients of queries and keys were off by 1e-2 (H100, torch 2.11).
    """
    config: Any = model.config
    device = model.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else model.dtype
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return "flex" if device == "cuda" and dtype.itemsize == 2 and head >= _SMALLEST else "sdpa"


def whole_blocks(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The batch with its rows padded to whole blocks, as `block_mask` wants them."""
    length = batch["begin"].shape[1]
    missing = -length % BLOCK
    names = ("input_ids", "position_ids", "begin", "gap_from", "gap_to")
    padded = {name: nn.functional.pad(batch[name], (0, missing)) for name in names}
    padded["begin"][:, length:] = torch.arange(
        length, length + missing, device=padded["begin"].device
    )
    return {**batch, **padded}


def attention_mask(batch: Mapping[str, Tensor], kind: str) -> Tensor | BlockMask:
    """The mask of a `PairCollator`'s batch, for `packed_attention`."""
    spans = batch["begin"], batch["gap_from"], batch["gap_to"]
    return block_mask(*spans) if kind == "flex" else dense_mask(*spans)


def dense_mask(begin: Tensor, gap_from: Tensor, gap_to: Tensor) -> Tensor:
    """[R, L] each to a boolean [R, 1, L, L], True where the row's token sees the column's."""
    column = torch.arange(begin.shape[1], device=begin.device)
    own = (begin[..., None] <= column) & (column <= column[:, None])
    return (own & ~((gap_from[..., None] <= column) & (column < gap_to[..., None])))[:, None]


def block_mask(begin: Tensor, gap_from: Tensor, gap_to: Tensor) -> BlockMask:
    """The same as blocks of 128 × 128 tokens, from [R, L] each, L a multiple of 128.

    What a token sees are two spans, before its gap and behind it, so a block of columns is empty
    or full for a token by its two ends; nothing of size L × L is made.
    """
    rows, length = begin.shape
    at = torch.arange(length, device=begin.device)
    first = torch.arange(0, length, BLOCK, device=begin.device)
    last = first + BLOCK - 1

    def overlap(start: Tensor, stop: Tensor) -> Tensor:
        # Columns of [start, stop) in every block: [R, L, L / 128].
        width = torch.minimum(stop[..., None], last + 1) - torch.maximum(start[..., None], first)
        return width.clamp(min=0)

    seen = overlap(begin, (at + 1).expand_as(begin)) - overlap(gap_from, gap_to)
    by_block = seen.view(rows, 1, length // BLOCK, BLOCK, length // BLOCK)
    some, whole = (by_block > 0).any(3), (by_block == BLOCK).all(3)
    partial = some & ~whole

    def visible(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        inside = (kv <= q) & (kv >= begin[b, q])
        return inside & ((kv < gap_from[b, q]) | (kv >= gap_to[b, q]))

    return BlockMask.from_kv_blocks(
        *_listed(partial), *_listed(whole), BLOCK_SIZE=BLOCK, mask_mod=visible,
        seq_lengths=(length, length),
    )  # fmt: skip


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    # flex_attention wants how many columns of blocks, and which, those first.
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.int()


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers' interface under a mask of this module.

    query [R, H, L, D], key and value [R, H', L, D] to [R, L, H, D]; dropout is 0 in this package.

    Raises:
        ModelError: for a model that does more to its scores than a mask can say.
    """
    if softcap is not None or others.get("s_aux") is not None:
        raise ModelError(
            f"{type(module).__name__} cannot be trained on packed rows: it caps its attention "
            "scores or has attention sinks. Use another model."
        )
    if isinstance(attention_mask, BlockMask):
        attend: Any = flex_attention if torch.compiler.is_compiling() else _compiled_flex()
        # A key head of its own for every query head gives the backward as many more blocks to
        # run side by side; on an H100 it takes 0.39 in place of 0.57 ms a layer.
        key, value = (_each_head(x, query.shape[1] // x.shape[1]) for x in (key, value))
        output = attend(
            query, key, value, block_mask=attention_mask, scale=scaling,
            kernel_options=_kernel_options(query),
        )  # fmt: skip
    else:
        output = scaled_dot_product_attention(
            query, key, value, attention_mask, scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
    return output.transpose(1, 2).contiguous(), None


def _each_head(x: Tensor, times: int) -> Tensor:
    return x[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2) if times > 1 else x


def _kernel_options(query: Tensor) -> dict[str, Any]:
    # Rows are whole blocks, which the compiler cannot see where lengths vary: without the bounds
    # that it would check, the backward takes half the time.
    options: dict[str, Any] = {"IS_DIVISIBLE": True}
    if query.shape[-1] <= 128:
        # Pairs are short, so small tiles waste less; the best of a dozen tried on an H100.
        options |= {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64, "fwd_num_warps": 4, "fwd_num_stages": 3}
        options |= {"bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 32}
        options |= {"bwd_num_warps": 4, "bwd_num_stages": 3}
    return options


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(flex_attention)
    return compiled


AttentionInterface.register(PACKED, packed_attention)
