"""A small reward model: one linear layer on what the frozen reference makes of a response.

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

from notebooks.replication.results import write_csv
from plc_core.engine.logprobs import autocast
from plc_core.files import RunError, exclusive

_TOKENS_A_FORWARD = 16_384


class RewardHead:
    """r = w · features; differences of two responses to one prompt are what it was trained on."""

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self.weights = weights

    def __call__(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rewards of features [N, D]: [N]."""
        return np.asarray(features @ self.weights)


def reward_head(path: Path, model: Any, rows: Sequence[dict[str, Any]], bf16: bool) -> RewardHead:
    """The head in `path`, or a new one that is fitted on `rows` and kept there.

    `rows` have prompt_ids, chosen_ids and rejected_ids. A logistic regression on the difference of
    the two responses' features, without intercept; its penalty by 5-fold cross-validation.
    """
    with exclusive(path):
        if path.exists():
            try:
                table = pd.read_csv(path)
                return RewardHead(table["weight"].to_numpy(np.float64))
            except (OSError, ValueError, KeyError) as error:
                raise RunError(f"{path} cannot be read: {error}") from None
        prompts = [row["prompt_ids"] for row in rows]
        sides = [
            response_features(model, prompts, [row[f"{side}_ids"] for row in rows], bf16)
            for side in ("chosen", "rejected")
        ]
        difference = sides[0] - sides[1]
        scale = difference.std(0).clip(1e-6)
        # Both directions, so that the two classes are there and as large.
        both = np.concatenate([difference, -difference]) / scale
        label = np.repeat([1, 0], len(difference))
        folds = np.tile(np.arange(len(difference)) % 5, 2)
        splits = [(np.flatnonzero(folds != k), np.flatnonzero(folds == k)) for k in range(5)]
        fits = [
            LogisticRegression(C=c, fit_intercept=False, max_iter=500)
            for c in np.logspace(-5, 0, 6)
        ]
        best = max(fits, key=lambda fit: cross_val_score(fit, both, label, cv=splits).mean())
        best.fit(both, label)
        weights = best.coef_[0] / scale
        write_csv(path, pd.DataFrame({"feature": range(len(weights)), "weight": weights}))
        return RewardHead(weights)


@torch.no_grad()
def response_features(
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
