"""Attention pair by pair: what a dense mask of the row gives."""

import numpy as np
import pytest
import torch

from plc_core.engine.logprobs import attention_mask, packed_attention
from plc_core.engine.packing import PairCollator
from plc_core.engine.pair_attention import pair_spans

LENGTHS = ((5, 3, 4), (2, 1, 6), (7, 4, 1), (1, 2, 2))  # of prompt, chosen and rejected answer


def batch(row_tokens):
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    return PairCollator(row_tokens)(
        [dict(zip(names, map(np.arange, counts), strict=True)) for counts in LENGTHS]
    )


@pytest.mark.parametrize("row_tokens", [64, 20], ids=["one row", "rows with padding"])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2)], ids=["own keys", "shared keys"])
def test_attention_by_pair_is_attention_under_the_dense_mask(row_tokens, heads):
    torch.manual_seed(0)
    packed = batch(row_tokens)
    rows, length = packed["begin"].shape
    query, key, value = (torch.randn(rows, count, length, 8) for count in (*heads, heads[1]))
    found, expected = (
        packed_attention(torch.nn.Identity(), query, key, value, mask, scaling=0.3)[0]
        for mask in (pair_spans(packed), attention_mask(packed, "sdpa"))
    )
    real = torch.zeros(rows, length, dtype=torch.bool)
    for row, start, _, _, end in pair_spans(packed)[0, 0].tolist():
        real[row, start:end] = True
    torch.testing.assert_close(found[real], expected[real], rtol=1e-5, atol=1e-6)
    assert not found[~real].any()


def test_spans_say_where_pairs_and_their_answers_begin_and_end():
    spans = pair_spans(batch(64))
    assert spans.shape == (1, 1, len(LENGTHS), 5)
    for (row, start, *others), (prompt, chosen, rejected) in zip(
        spans[0, 0].tolist(), LENGTHS, strict=True
    ):
        ends = np.cumsum((prompt, chosen, rejected)) + start
        assert row == 0 and others == ends.tolist()
