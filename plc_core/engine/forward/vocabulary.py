"""The way from hidden states to log-probs of given tokens, never holding all of the logits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

_TILE_LOGITS = 2**28
"""Logits held at a time: 1 GiB in fp32, enough rows to keep a GPU's matrix units busy."""


class LogitTransform(NamedTuple):
    """What a model does to its logits: cap · tanh(scale · logits / cap), without cap if it is 0."""

    scale: float = 1.0  # Cohere's logit_scale, Granite's 1 / logits_scaling
    cap: float = 0.0  # Gemma 2's final_logit_softcapping

    @classmethod
    def of(cls, config: PreTrainedConfig) -> LogitTransform:
        """The transform that a configuration names."""
        scale = getattr(config, "logit_scale", None) or 1.0
        divisor = getattr(config, "logits_scaling", None) or 1.0
        return cls(scale / divisor, getattr(config, "final_logit_softcapping", None) or 0.0)


def token_logps(
    hidden: Tensor, head: nn.Module, targets: Tensor, transform: LogitTransform
) -> Tensor:
    """log p(target) of each of N positions: [N], at least fp32, nats.

    The memory beyond [N, d] follows from a tile of rows, not from N × V.

    Args:
        hidden: [N, d], the decoder's output where tokens are predicted from.
        head: the output projection, with weight [V, d] and perhaps a bias [V].
        targets: [N], token ids.
        transform: of the logits.
    """
    weight, bias = head.weight, getattr(head, "bias", None)
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    with torch.autocast(kind, enabled=False):
        logps: Tensor = _TokenLogps.apply(hidden, weight, bias, targets, transform)
    return logps


class _TokenLogps(torch.autograd.Function):
    """d log p / d hidden = scale (W[target] - p W) needs nothing from behind, so it is made where
    the logits are, and backward is one multiplication. Only a head that is trained itself has its
    logits made again, for d log p / d W.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        transform: LogitTransform,
    ) -> Tensor:
        logps, slopes = [], []
        for rows in _tiles(len(hidden), len(weight)):
            logits = _project(hidden[rows], weight, bias)
            if ctx.needs_input_grad[0]:
                logp, slope = _scored(logits, targets[rows], transform, weight.dtype)
                slopes.append(slope @ weight)
            else:
                score = _compiled(_log_prob) if logits.is_cuda else _log_prob
                logp = score(logits, targets[rows], *transform)
            logps.append(logp)
        ctx.transform = transform
        # A frozen head needs no hidden states in backward, and a trained one its own logits again.
        trained = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        ctx.save_for_backward(
            torch.cat(slopes) if slopes else None,
            *((hidden, weight, bias, targets) if trained else (None,) * 4),
        )
        return torch.cat(logps) if logps else hidden.new_zeros(0, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = upstream
        slopes, hidden, weight, bias, targets = ctx.saved_tensors
        to_hidden = None
        if slopes is not None:
            to_hidden = (slopes * gradient[:, None]).to(slopes.dtype)
        if weight is None:
            return to_hidden, None, None, None, None
        to_weight = torch.zeros_like(weight, dtype=gradient.dtype)
        to_bias = None if bias is None else torch.zeros_like(bias, dtype=gradient.dtype)
        for rows in _tiles(len(hidden), len(weight)):
            logits = _project(hidden[rows], weight, bias)
            _, slope = _scored(logits, targets[rows], ctx.transform, weight.dtype)
            to_weight += slope.T @ (hidden[rows] * gradient[rows, None]).to(weight.dtype)
            if to_bias is not None:
                to_bias += gradient[rows] @ slope.to(gradient.dtype)
        return (
            to_hidden,
            to_weight.to(weight.dtype),
            None if bias is None or to_bias is None else to_bias.to(bias.dtype),
            None,
            None,
        )


def _tiles(rows: int, vocabulary: int) -> list[slice]:
    # Tiles of about one size: a short last one would leave the matrix units idle.
    count = -(-rows * vocabulary // _TILE_LOGITS)
    size = -(-rows // max(count, 1))
    return [slice(start, start + size) for start in range(0, rows, max(size, 1))]


def _project(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits [n, V], at least fp32: sums of a matrix product are fp32 inside, rounding them to
    bfloat16 would cost a token 0.03 nats."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    if hidden.is_cuda and hidden.dtype != wide:
        logits = torch.mm(hidden, weight.T, out_dtype=wide)
    else:
        logits = (hidden @ weight.T).to(wide)
    return logits if bias is None else logits + bias


def _scored(
    logits: Tensor, targets: Tensor, transform: LogitTransform, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    score = _compiled(_score) if logits.is_cuda else _score
    logp, slope = score(logits, targets, *transform, dtype)
    return logp, slope


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # Two passes over the logits in place of a dozen; tiles differ in their rows.
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True)
    return compiled


def _score(
    logits: Tensor, targets: Tensor, scale: float, cap: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """log p(target) [n] and its derivative by the untransformed logits [n, V], in `dtype`."""
    transformed = _transformed(logits, scale, cap)
    normaliser = transformed.logsumexp(-1, keepdim=True)
    hit = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    logp = torch.where(hit, transformed, 0).sum(-1) - normaliser[:, 0]
    slope = (hit.to(logits.dtype) - (transformed - normaliser).exp()) * scale
    if cap:
        slope = slope * (1 - (transformed / cap).square())
    return logp, slope.to(dtype)


def _log_prob(logits: Tensor, targets: Tensor, scale: float, cap: float) -> Tensor:
    transformed = _transformed(logits, scale, cap)
    return transformed.gather(1, targets[:, None])[:, 0] - transformed.logsumexp(-1)


def _transformed(logits: Tensor, scale: float, cap: float) -> Tensor:
    logits = logits * scale if scale != 1 else logits
    return cap * (logits / cap).tanh() if cap else logits
