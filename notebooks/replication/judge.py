"""The study's judge: a linear reward model on what a frozen model makes of an answer.

Trained on the part `reward`, whose prompts no other part has. Its weights are a CSV file of the
results, so that every call of the study is judged by the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from notebooks.replication.results import write_csv
from plc_core.data import Pairs
from plc_core.engine.forward.logprobs import autocast
from plc_core.engine.sampling import Response
from plc_core.engine.tokens.tokenized import prompt_ids, tokenize_pairs
from plc_core.storage.files import RunError
from plc_core.storage.paths import exclusive

_TOKENS_A_FORWARD = 16_384
_SIDES = ("chosen", "rejected")


class Judge:
    """r = w · features; what it was trained on are differences of two answers to one prompt.

    Attributes:
        model, tokenizer: the frozen backbone.
        shares_tokens: whether its tokens are the policy's.
        max_length: of a pair, in its tokens.
        bf16: whether forwards run in bfloat16 by autocast.
        weights: [2 D].
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        shares_tokens: bool,
        max_length: int,
        bf16: bool,
    ) -> None:
        self.model, self.tokenizer, self.shares_tokens = model, tokenizer, shares_tokens
        self.max_length, self.bf16 = max_length, bf16
        self.weights: NDArray[np.float64] = np.zeros(0)

    def fit(self, path: Path, pairs: Pairs) -> Judge:
        """Take the weights in `path`, or fit new ones on `pairs` and keep them there.

        A logistic regression on the difference of the two answers' features, without intercept; its
        penalty by 5-fold cross-validation.

        Raises:
            RunError: where the file cannot be read.
        """
        with exclusive(path):
            if path.exists():
                try:
                    self.weights = pd.read_csv(path)["weight"].to_numpy(np.float64)
                except (OSError, ValueError, KeyError) as error:
                    raise RunError(f"{path} cannot be read: {error}") from None
            else:
                self.weights = _fitted(self._differences(list(self._tokens(pairs))))
                places = range(len(self.weights))
                write_csv(path, pd.DataFrame({"feature": places, "weight": self.weights}))
        return self

    def of_pairs(self, pairs: Pairs, pair_ids: Sequence[str]) -> NDArray[np.float64]:
        """Rewards chosen − rejected of the pairs of these ids: [ids]."""
        rows = {row["pair_id"]: row for row in self._tokens(pairs)}
        return np.asarray(self._differences([rows[name] for name in pair_ids]) @ self.weights)

    def of_answers(
        self, prompts: Sequence[list[dict[str, str]]], answers: Sequence[Response]
    ) -> NDArray[np.float64]:
        """Rewards of an answer to each prompt: [prompts]."""
        asked = [prompt_ids(self.tokenizer, turns) for turns in prompts]
        said = [self._spelled(answer) for answer in answers]
        return np.asarray(_features(self.model, asked, said, self.bf16) @ self.weights)

    def _spelled(self, answer: Response) -> list[int]:
        if self.shares_tokens:
            return answer.ids
        ids: list[int] = self.tokenizer(answer.text, add_special_tokens=False)["input_ids"]
        return ids + [self.tokenizer.eos_token_id] * answer.finished

    def _tokens(self, pairs: Pairs) -> Any:
        return tokenize_pairs(pairs, self.tokenizer, self.max_length).dataset

    def _differences(self, rows: Sequence[dict[str, Any]]) -> NDArray[np.float64]:
        prompts = [row["prompt_ids"] for row in rows]
        chosen, rejected = (
            _features(self.model, prompts, [row[f"{side}_ids"] for row in rows], self.bf16)
            for side in _SIDES
        )
        return np.asarray(chosen - rejected)


def _fitted(difference: NDArray[np.float64]) -> NDArray[np.float64]:
    scale = difference.std(0).clip(1e-6)
    # Both directions, so that the two classes are there and as large.
    both = np.concatenate([difference, -difference]) / scale
    label = np.repeat([1, 0], len(difference))
    folds = np.tile(np.arange(len(difference)) % 5, 2)
    splits = [(np.flatnonzero(folds != k), np.flatnonzero(folds == k)) for k in range(5)]
    fits = [
        LogisticRegression(C=c, fit_intercept=False, max_iter=500) for c in np.logspace(-5, 0, 6)
    ]
    best = max(fits, key=lambda fit: cross_val_score(fit, both, label, cv=splits).mean())
    best.fit(both, label)
    return np.asarray(best.coef_[0] / scale)


@torch.no_grad()
def _features(
    model: Any, prompts: Sequence[list[int]], responses: Sequence[list[int]], bf16: bool
) -> NDArray[np.float64]:
    """[N, 2 D]: mean over the response and last token of the decoder's last hidden state."""
    sizes = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    features: dict[int, Tensor] = {}
    device = model.device
    batch: list[int] = []

    def forward(members: list[int]) -> None:
        longest = max(sizes[i] for i in members)
        ids = torch.zeros((len(members), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, i in enumerate(members):
            ids[row, : sizes[i]] = torch.tensor([*prompts[i], *responses[i]])
            mask[row, : sizes[i]] = 1
        with autocast(device, bf16):
            hidden = model.get_decoder()(
                input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False
            ).last_hidden_state.float()
        for row, i in enumerate(members):
            states = hidden[row, len(prompts[i]) : sizes[i]]
            # Without a token there is nothing to judge: both halves are 0.
            empty = hidden.new_zeros(hidden.shape[-1])
            mean = states.mean(0) if len(states) else empty
            features[i] = torch.cat((mean, states[-1] if len(states) else empty))

    for i in order:
        if batch and (len(batch) + 1) * sizes[i] > _TOKENS_A_FORWARD:
            forward(batch)
            batch = []
        batch.append(i)
    if batch:
        forward(batch)
    in_order = torch.stack([features[i] for i in range(len(sizes))])
    return np.asarray(in_order.double().cpu())
