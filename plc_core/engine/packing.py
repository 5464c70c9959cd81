"""Packed rows: many pairs a row, each as prompt | chosen | rejected with the prompt held once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

PADDING, PROMPT, CHOSEN, REJECTED = -1, 0, 1, 2


class PairCollator:
    """Collates tokenised pairs into packed rows.

    A batch holds, for R rows of L tokens, B pairs and N response tokens:

        input_ids, position_ids     [R, L]  positions restart for the rejected response
        pair                        [R, L]  number of the token's pair in the batch, -1 for padding
        part                        [R, L]  0 prompt, 1 chosen, 2 rejected
        predict_row, predict_column [N]     where each response token is predicted from
        targets                     [N]     the response tokens, pair by pair, chosen first
        lengths                     [2B]    their counts, in the same order
        index                       [B]     the pair's row in the data set
        reference                   [B, 2]  log-probs under the reference, where the rows have them

    A side without tokens has log-prob 0; that is how single responses are scored.

    Args:
        row_tokens: length of a row to fill; a longer pair gets rows of its own length.
        pad_id: any id of the vocabulary; padding is masked by position, never by id.
    """

    def __init__(self, row_tokens: int, pad_id: int = 0) -> None:
        self.row_tokens = row_tokens
        self.pad_id = pad_id

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        sizes = [
            sum(len(row[f"{p}_ids"]) for p in ("prompt", "chosen", "rejected")) for row in rows
        ]
        bins = _first_fit_decreasing(sizes, max(self.row_tokens, *sizes))
        length = max(sum(sizes[i] for i in members) for members in bins)
        shape = (len(bins), length)
        input_ids = torch.full(shape, self.pad_id)
        position_ids = torch.zeros(shape, dtype=torch.long)
        pair = torch.full(shape, -1)
        part = torch.full(shape, PADDING)
        predicted: dict[int, tuple[list[int], list[int], list[int], list[int]]] = {}
        for number, members in enumerate(bins):
            start = 0
            for i in members:
                prompt, chosen, rejected = (
                    list(rows[i][f"{p}_ids"]) for p in ("prompt", "chosen", "rejected")
                )
                n, c, r = len(prompt), len(chosen), len(rejected)
                end = start + n + c + r
                input_ids[number, start:end] = torch.tensor(prompt + chosen + rejected)
                position_ids[number, start:end] = torch.tensor([*range(n + c), *range(n, n + r)])
                pair[number, start:end] = i
                part[number, start:end] = torch.tensor([PROMPT] * n + [CHOSEN] * c + [REJECTED] * r)
                # The prompt's last token predicts the first token of both responses.
                last = start + n - 1
                after_prompt = [last, *range(last + c + 1, last + c + r)][:r]
                columns = [*range(last, last + c), *after_prompt]
                predicted[i] = ([number] * (c + r), columns, chosen + rejected, [c, r])
                start = end
        names = ("predict_row", "predict_column", "targets", "lengths")
        batch = {
            name: torch.tensor(list(chain.from_iterable(predicted[i][k] for i in range(len(rows)))))
            for k, name in enumerate(names)
        }
        batch |= {"input_ids": input_ids, "position_ids": position_ids, "pair": pair, "part": part}
        if "index" in rows[0]:
            batch["index"] = torch.tensor([row["index"] for row in rows])
        if "reference_chosen" in rows[0]:
            batch["reference"] = torch.tensor(
                [[row["reference_chosen"], row["reference_rejected"]] for row in rows],
                dtype=torch.float32,
            )
        return batch


def attention_mask(pair: Tensor, part: Tensor) -> Tensor:
    """Who may attend to whom: [R, L] twice to a boolean [R, 1, L, L], True where allowed.

    Causal, inside one pair; a response sees the prompt and itself, never the other response.
    Padding sees padding, so that no row of the softmax is empty.
    """
    causal = torch.ones(pair.shape[1], pair.shape[1], dtype=torch.bool, device=pair.device).tril()
    same_pair = pair[:, :, None] == pair[:, None, :]
    visible = (part[:, None, :] <= PROMPT) | (part[:, :, None] == part[:, None, :])
    return (causal & same_pair & visible)[:, None]


def _first_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    bins: list[list[int]] = []
    free: list[int] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        target = next((b for b, room in enumerate(free) if room >= sizes[i]), None)
        if target is None:
            bins.append([])
            free.append(capacity)
            target = len(bins) - 1
        bins[target].append(i)
        free[target] -= sizes[i]
    return bins
