"""Attention pair by pair: what a dense mask of the row gives, forward and backward."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from plc_core.engine.forward import attention
from plc_core.engine.forward.attention import (
    LONG_ROWS,
    attention_kind,
    attention_mask,
    packed_attention,
    packed_rows,
)
from plc_core.engine.forward.logprobs import autocast, pair_logps, verify_packing
from plc_core.engine.forward.packing import PairCollator
from plc_core.engine.forward.pair_attention import attend_by_pair
from plc_core.engine.models.load import ModelError
from tests.test_engine import random_rows
from tests.test_hot_path import TINY, random_pairs

LENGTHS = ((5, 3, 4), (2, 1, 6), (7, 4, 1), (1, 2, 2))  # of prompt, chosen and rejected answer
EMPTY = ((5, 3, 0), (2, 0, 6), (4, 0, 0))  # and one side of a pair, or both, without tokens


def batch(row_tokens, lengths=LENGTHS):
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    return PairCollator(row_tokens)(
        [dict(zip(names, map(np.arange, counts), strict=True)) for counts in lengths]
    )


def attended(packed, kind, query, key, value):
    mask = attention_mask(packed, kind)
    return packed_attention(torch.nn.Identity(), query, key, value, mask, scaling=0.3)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("lengths", [LENGTHS, LENGTHS + EMPTY], ids=["answers", "empty ones too"])
@pytest.mark.parametrize("row_tokens", [64, 20], ids=["one row", "rows with padding"])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2)], ids=["own keys", "shared keys"])
def test_attention_by_pair_is_attention_under_the_dense_mask(row_tokens, heads, lengths, dtype):
    torch.manual_seed(0)
    packed = batch(row_tokens, lengths)
    rows, length = packed["begin"].shape
    given = [
        torch.randn(rows, count, length, 8).to(dtype).requires_grad_()
        for count in (*heads, heads[1])
    ]
    real = torch.zeros(rows, length, dtype=torch.bool)
    for row, start, _, _, end in packed["spans"].tolist():
        real[row, start:end] = True
    weights = torch.randn(int(real.sum()), heads[0], 8)
    values, gradients = [], []
    for kind in ("pair by pair", "sdpa"):
        out = attended(packed, kind, *given)
        assert out.dtype == dtype
        values.append(out[real].float())
        gradients.append(torch.autograd.grad((values[-1] * weights).sum(), given))
        if kind == "pair by pair":
            assert not out[~real].any()
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.03}
    torch.testing.assert_close(*values, **close)
    torch.testing.assert_close(*gradients, **close)


@pytest.mark.parametrize("lengths", [LENGTHS, EMPTY + LENGTHS], ids=["answers", "empty ones too"])
def test_spans_say_where_pairs_and_their_answers_begin_and_end(lengths):
    spans = batch(64, lengths)["spans"]
    assert spans.shape == (len(lengths), 5)
    begins = np.cumsum([0, *map(sum, lengths)])
    for (row, start, *others), (prompt, chosen, rejected), begin in zip(
        spans.tolist(), lengths, begins[:-1], strict=True
    ):
        ends = np.cumsum((prompt, chosen, rejected)) + start
        assert (row, start) == (0, begin) and others == ends.tolist()


def test_a_pair_without_prompt_tokens_is_refused():
    with pytest.raises(ValueError, match="no prompt tokens"):
        batch(64, ((2, 1, 1), (0, 3, 4)))


# ---- models -------------------------------------------------------------------------------------


def tiny(family):
    torch.manual_seed(0)
    settings = {k: v for k, v in TINY.items() if k != "head_dim"} | {"model_type": family}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).eval()


def log_probs_and_gradients(model, packed, row_tokens):
    model.zero_grad()
    with packed_rows(model):
        chosen, rejected = pair_logps(model, packed, row_tokens)
        loss = -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()
        loss.backward()
    return loss.detach(), chosen.detach(), rejected.detach(), {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("row_tokens", [LONG_ROWS, 2 * LONG_ROWS])
def test_losses_and_gradients_are_those_under_the_dense_mask(family, row_tokens):
    """DPO's loss; 28 pairs of 14 to 90 tokens, in one row and in several with padding."""
    rng = np.random.default_rng(0)
    shapes = [tuple(map(int, rng.integers((4, 5, 5), (30, 30, 30)))) for _ in range(28)]
    packed = PairCollator(row_tokens)(random_rows(shapes))
    model = tiny(family)
    by_pair, dense = (log_probs_and_gradients(model, packed, row) for row in (row_tokens, 0))
    torch.testing.assert_close(by_pair, dense, rtol=1e-4, atol=1e-6)


def test_a_cpu_attends_pair_by_pair_in_long_rows_alone():
    model = tiny("llama")
    kinds = [attention_kind(model, row_tokens) for row_tokens in (0, LONG_ROWS - 1, LONG_ROWS)]
    assert kinds == ["sdpa", "sdpa", "pair by pair"]


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("row_tokens", [128, LONG_ROWS])
def test_packing_is_verified_with_the_attention_that_will_run(row_tokens, bf16, monkeypatch):
    seen = []

    def watched(*args):
        seen.append(args)
        return attend_by_pair(*args)

    monkeypatch.setattr(attention, "attend_by_pair", watched)
    verify_packing(tiny("llama"), random_pairs(3, 97, 32), bf16, row_tokens)
    assert bool(seen) == (row_tokens == LONG_ROWS)


@pytest.mark.parametrize(
    "altered", [lambda m: m.bool(), lambda m: m[..., :-1], lambda m: m.float()],
    ids=["boolean", "cut", "added"],
)  # fmt: skip
def test_a_model_that_alters_the_mask_on_its_way_is_refused_in_words(altered):
    model = tiny("llama")

    def alter(layer, args, given):
        return args, given | {"attention_mask": altered(given["attention_mask"])}

    for layer in model.model.layers:
        layer.register_forward_pre_hook(alter, with_kwargs=True)
    with pytest.raises(ModelError, match="was handed another mask than its model was given"):
        verify_packing(model, random_pairs(3, 97, 32), False, LONG_ROWS)


def test_log_probs_of_an_empty_side_are_zero_and_the_others_as_alone():
    model = tiny("qwen2")
    rows = random_rows([(6, 4, 5), (3, 7, 2)])
    cut = [dict(row) for row in rows]
    cut[0]["rejected_ids"], cut[1]["chosen_ids"] = [], []
    for bf16, close in ((False, {"rtol": 1e-5, "atol": 1e-5}), (True, {"rtol": 0.02, "atol": 0.3})):
        with torch.no_grad(), autocast(model.device, bf16):
            whole = pair_logps(model, PairCollator(LONG_ROWS)(rows), LONG_ROWS)
            some = pair_logps(model, PairCollator(LONG_ROWS)(cut), LONG_ROWS)
        assert some[1][0] == some[0][1] == 0
        torch.testing.assert_close(some[0][0], whole[0][0], **close)
        torch.testing.assert_close(some[1][1], whole[1][1], **close)
