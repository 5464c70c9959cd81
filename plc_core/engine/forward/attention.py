"""Attention of packed rows: who sees whom in them, and how it is computed.

By the kind of attention, the mask is dense ("sdpa"), of blocks ("flex"), or the spans of the pairs,
of which each then attends by itself ("pair by pair").
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from plc_core.engine.forward.pair_attention import attend_by_pair
from plc_core.engine.models.load import ModelError

PACKED = "plc_packed"
"""The attention of packed rows among transformers' implementations."""

LONG_ROWS = 512
"""Tokens of a row from which on a CPU attends pair by pair."""

BLOCK = 128
_SMALLEST = 16  # head of flex_attention's kernels
_SPAN = 5  # numbers that say where a pair lies


@contextlib.contextmanager
def packed_rows(model: nn.Module) -> Iterator[None]:
    """Within, the model attends as packed rows ask for.

    A backward that computes layers again (gradient checkpointing) must run within too, or it would
    compute them with another attention.
    """
    config = language_model(model).config
    attention = config._attn_implementation
    config._attn_implementation = PACKED
    try:
        yield
    finally:
        config._attn_implementation = attention


def language_model(model: nn.Module) -> PreTrainedModel:
    """The model below what wraps it: adapters, data-parallel training."""
    unwrapped = getattr(model, "module", model)
    unwrapped = unwrapped.get_base_model() if isinstance(unwrapped, PeftModel) else unwrapped
    assert isinstance(unwrapped, PreTrainedModel)
    return unwrapped


def attention_kind(model: PreTrainedModel, row_tokens: int = 0) -> str:
    """ "flex" where a GPU computes in 16 bits, "pair by pair" on a CPU in rows of `LONG_ROWS` or
    more; else "sdpa". The last two are exact.

    flex_attention's cost follows the blocks that are seen rather than the square of a row. In
    fp32 its gradients of queries and keys were off by 1e-2 (H100, torch 2.11).
    """
    config: Any = model.config
    device = model.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else model.dtype
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if device == "cpu" and row_tokens >= LONG_ROWS:
        return "pair by pair"
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
    """The mask of a `PairCollator`'s batch, for `packed_attention`.

    Pair by pair it is the batch's `spans`, int64 [1, 1, B, 5]: transformers hands on as it is what
    has four dimensions, and `packed_attention` tells it from a dense one, which is boolean.
    """
    if kind == "pair by pair":
        return batch["spans"][None, None]
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
    """Attention of transformers' interface under an `attention_mask` of this module.

    query [R, H, L, D], key and value [R, H', L, D] to [R, L, H, D]; dropout is 0 in this package.

    Raises:
        ModelError: for a model that does more to its scores than a mask can say, or hands on
            another mask than it was given.
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
    elif attention_mask.dtype == torch.int64 and attention_mask.shape[-1] == _SPAN:
        return attend_by_pair(query, key, value, attention_mask[0, 0], scaling), None
    elif attention_mask.shape[-2:] != (query.shape[2], key.shape[2]):
        raise ModelError(
            f"{type(module).__name__} cannot be trained on packed rows: it was handed another mask "
            f"than its model was given, {attention_mask.dtype} {list(attention_mask.shape)}. Use "
            "another model."
        )
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
