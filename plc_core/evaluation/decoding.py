"""How answers are decoded, and random numbers that belong to a prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor

from plc_core.files import RunError


@dataclass(frozen=True)
class Decoding:
    """How answers are decoded.

    Attributes:
        max_new_tokens: where an answer is cut off, its terminator included.
        temperature: 0 is greedy.
        top_p: of sampling, the share of the distribution that is kept.
        seed: of sampling. On this machine every prompt has random numbers of its own, so that no
            answer depends on the others of its batch, or on where a run was cut off.
        shared: the fingerprint of prompts that share one stream of random numbers instead, and
            are sampled at temperature 1 from the whole distribution, all of them or none.
    """

    max_new_tokens: int = 1024
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    shared: str = ""

    def __post_init__(self) -> None:
        sane = self.max_new_tokens >= 1 and self.temperature >= 0 and 0 < self.top_p <= 1
        if not sane:
            raise RunError(
                f"{self}: max_new_tokens is 1 or more, temperature 0 or more, top_p in (0, 1]."
            )

    @property
    def label(self) -> str:
        """Its name in tables: "greedy", or what sampling depends on."""
        if self.temperature == 0:
            return "greedy"
        if self.shared:
            return "sampled"
        kept = f" p={self.top_p:g}" if self.top_p < 1 else ""
        return f"sampled T={self.temperature:g}{kept} seed={self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """What decides an answer: greedy decoding knows no seed."""
        greedy = {"max_new_tokens": self.max_new_tokens, "temperature": 0.0}
        sampled = {name: value for name, value in asdict(self).items() if name != "shared" or value}
        return greedy if self.temperature == 0 else sampled


class OwnNumbers(LogitsProcessor):
    """Samples by inversion, with uniform numbers drawn for each row from its prompt and the seed.

    The distribution is that of sampling at the temperature inside the top share; all scores but
    the drawn token's become -inf, so that the greedy decoding around it takes that one.
    """

    def __init__(
        self, prompts: Sequence[list[int]], config: GenerationConfig, decoding: Decoding
    ) -> None:
        self.start, self.decoding = max(map(len, prompts)), decoding
        rows = [_uniforms(ids, decoding.seed, config.max_new_tokens) for ids in prompts]
        self.uniforms = torch.from_numpy(np.stack(rows))  # [rows, steps]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores: [rows, vocabulary]."""
        step = input_ids.shape[1] - self.start
        shares = (scores.float() / self.decoding.temperature).softmax(-1).double()
        order = None
        if self.decoding.top_p < 1:
            shares, order = shares.sort(descending=True)
            shares = shares * (shares.cumsum(-1) - shares < self.decoding.top_p)
        sums = shares.cumsum(-1)
        aims = self.uniforms[:, step : step + 1].to(sums.device) * sums[:, -1:]
        token = torch.searchsorted(sums, aims, right=True).clamp(max=scores.shape[-1] - 1)
        token = token if order is None else order.gather(1, token)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


def _uniforms(ids: list[int], seed: int, count: int) -> np.ndarray:
    digest = hashlib.sha256(json.dumps([seed, ids]).encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16])))
    return generator.random(count)
