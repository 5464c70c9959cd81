"""The path that every token takes: forwards of a step, masks, attention, adapters, vocabulary."""

import pytest
import torch
from peft.tuners.lora import Linear as PeftLinear
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig, AutoModelForCausalLM

from notebooks.overhead.arithmetic import needed_flops
from notebooks.overhead.benchmark import random_pairs, random_qwen, time_engine, word_tokenizer
from plc_core.data import DataError
from plc_core.engine.config import TrainConfig
from plc_core.engine.forward import attention, vocabulary
from plc_core.engine.forward.attention import block_mask, dense_mask, whole_blocks
from plc_core.engine.forward.logprobs import pair_logps, verify_packing
from plc_core.engine.forward.packing import (
    PairCollator,
    StepCollator,
    balanced_bins,
    check_budget,
    pair_sizes,
    pair_tokens,
)
from plc_core.engine.forward.vocabulary import LogitTransform, token_logps
from plc_core.engine.models.adapters import LowRankLinear, add_lora
from plc_core.engine.models.load import ModelError, compile_layers
from tests.test_engine import plain_logp, random_rows

TINY = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip
FAMILIES = {
    "llama": {"model_type": "llama"},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True},
    "phi": {"model_type": "phi", "num_key_value_heads": 4},  # a head with a bias
    "gemma": {"model_type": "gemma", "tie_word_embeddings": True},
    "cohere": {"model_type": "cohere", "logit_scale": 0.25, "tie_word_embeddings": True},
    "granite": {"model_type": "granite", "logits_scaling": 4.0},
    "gemma2, logits capped": {
        "model_type": "gemma2", "final_logit_softcapping": 0.5, "attn_logit_softcapping": None,
        "sliding_window": 4096,
    },
}  # fmt: skip
SHAPES = [(1, 1, 1), (5, 7, 3), (12, 2, 30), (3, 1, 9), (60, 1, 2)]
SHAPE = {k: v for k, v in TINY.items() if k != "head_dim"}


def tiny(**settings):
    torch.manual_seed(0)
    config = TINY | settings
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).eval()


def qwen():
    torch.manual_seed(0)
    return random_qwen(torch.device("cpu"), **SHAPE)


# ---- packed against plain -----------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("row_tokens", [1, 64, 1000])
def test_packed_log_probs_and_gradients_equal_those_of_plain_forwards(family, row_tokens):
    model, rows = tiny(**FAMILIES[family]), random_rows(SHAPES)
    chosen, rejected = pair_logps(model, PairCollator(row_tokens)(rows))
    (chosen - 2 * rejected).sum().backward()
    packed = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    plain = [
        torch.stack([plain_logp(model, r["prompt_ids"], r[f"{side}_ids"]) for r in rows])
        for side in ("chosen", "rejected")
    ]
    (plain[0] - 2 * plain[1]).sum().backward()
    torch.testing.assert_close(chosen, plain[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rejected, plain[1], rtol=1e-5, atol=1e-5)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(packed[name], parameter.grad, rtol=1e-3, atol=1e-5)


def test_a_model_that_caps_its_attention_scores_is_refused_by_name():
    model = tiny(**FAMILIES["gemma2, logits capped"] | {"attn_logit_softcapping": 50.0})
    with pytest.raises(ModelError, match="Gemma2Attention cannot be trained on packed rows"):
        verify_packing(model, random_pairs(3, 97, 32), bf16=False)


def test_a_sliding_window_shorter_than_a_pair_is_refused():
    model = tiny(model_type="mistral", sliding_window=4)
    with pytest.raises(ModelError, match="MistralForCausalLM cannot be trained on packed rows"):
        verify_packing(model, random_pairs(3, 97, 32), bf16=False)


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("again", [False, True])
def test_layers_that_are_computed_again_attend_as_they_did(tmp_path, rank, again):
    """Two heads of queries share one of keys, which another attention would spread out."""
    config = TrainConfig(
        name="again", batch_pairs=4, pairs_per_forward=2, gradient_checkpointing=again
    )
    model = qwen().eval()  # as models are loaded
    computed = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: computed.append(1))
    model = add_lora(model, rank, rank) if rank else model
    steps = time_engine("again", model, random_pairs(8, 97, 32), config, 1, tmp_path).seconds
    assert len(steps) == 1
    assert len(computed) == 4 * (1 + again)  # two steps of two forwards


def test_the_model_is_as_before_afterwards():
    model, ids = qwen(), torch.tensor([[5, 6, 7]])
    before = model(input_ids=ids).logits
    pair_logps(model, PairCollator(64)(random_rows(SHAPES)))
    assert torch.equal(model(input_ids=ids).logits, before)
    assert "forward" not in vars(model)


# ---- the forwards of a step ---------------------------------------------------------------------


def test_a_token_budget_holds_every_pair_once_in_forwards_of_one_length():
    rows = list(random_pairs(64, 97, 128).add_column("index", range(64)))
    forwards = StepCollator(PairCollator(1000), 64, 1000)(rows)["forwards"]
    tokens = [sum(pair_tokens(rows[i]) for i in forward["place"].tolist()) for forward in forwards]
    assert sorted(i for f in forwards for i in f["place"].tolist()) == list(range(64))
    assert all(f["index"].tolist() == f["place"].tolist() for f in forwards)
    assert max(tokens) <= 1000
    assert max(tokens) - min(tokens) <= max(map(pair_tokens, rows))
    assert len(forwards) == -(-sum(tokens) // 1000)


def test_forwards_without_a_budget_take_pairs_in_their_order():
    forwards = StepCollator(PairCollator(64), 2)(random_rows(SHAPES))["forwards"]
    assert [f["place"].tolist() for f in forwards] == [[0, 1], [2, 3], [4]]


def test_bins_spelled_out():
    assert balanced_bins([4, 4, 4, 4], 8) == [[0, 2], [1, 3]]
    assert balanced_bins([1, 1, 1], 9, most=2) == [[0, 2], [1]]
    assert balanced_bins([7], 7) == [[0]]
    with pytest.raises(ValueError, match="8 does not fit a bin of 7"):
        balanced_bins([8], 7)


def test_a_pair_over_the_budget_is_named_with_what_to_raise():
    pairs = random_pairs(5, 97, 64)
    longest = max(pairs, key=pair_tokens)
    size = pair_tokens(longest)
    assert pair_sizes(pairs).tolist() == [pair_tokens(row) for row in pairs]
    check_budget(pairs, size)
    check_budget(pairs, 0)
    with pytest.raises(
        DataError, match=f"Pair {longest['pair_id']} has {size} tokens .* least {size}"
    ):
        check_budget(pairs, size - 1)


# ---- masks and attention ------------------------------------------------------------------------


@pytest.fixture
def packed_row():
    batch = whole_blocks(PairCollator(700)(list(random_pairs(9, 97, 256, seed=3))))
    return batch["begin"], batch["gap_from"], batch["gap_to"]


def test_blocks_cover_what_is_seen_and_full_ones_hold_nothing_else(packed_row):
    dense, blocks = dense_mask(*packed_row), block_mask(*packed_row)
    rows, _, length, _ = dense.shape
    tiled = dense.view(rows, 1, length // 128, 128, length // 128, 128)
    assert torch.equal(tiled.any(5).any(3), blocks.to_dense().bool())
    full = tiled.all(5).all(3)
    assert torch.equal(full.sum(-1), blocks.full_kv_num_blocks.long())
    assert full.any()
    assert not full.all()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_under_blocks_equals_sdpa_under_the_dense_mask(packed_row, monkeypatch):
    monkeypatch.setattr(attention, "_compiled_flex", lambda: flex_attention)
    dense, blocks = dense_mask(*packed_row), block_mask(*packed_row)
    query = torch.randn(dense.shape[0], 4, dense.shape[-1], 16)
    key, value = torch.randn(2, dense.shape[0], 2, dense.shape[-1], 16)
    got, _ = attention.packed_attention(torch.nn.Module(), query, key, value, blocks)
    want = scaled_dot_product_attention(query, key, value, dense, enable_gqa=True)
    torch.testing.assert_close(got, want.transpose(1, 2), atol=1e-5, rtol=1e-5)


# ---- adapters -----------------------------------------------------------------------------------


def adapted(kind=None):
    model = add_lora(qwen(), rank=4, alpha=8)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    for module in model.modules():
        if kind is not None and type(module) is LowRankLinear:
            module.__class__ = kind
    return model


def log_probs_and_gradients(model):
    chosen, rejected = pair_logps(model, PairCollator(64)(random_rows(SHAPES)))
    (chosen - 2 * rejected).sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    return chosen.detach(), rejected.detach(), gradients


def test_adapters_compute_what_pefts_do():
    ours, theirs = (log_probs_and_gradients(adapted(kind)) for kind in (None, PeftLinear))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_adapters_in_bfloat16_keep_fp32_weights_and_gradients():
    model = adapted().to(torch.bfloat16)
    layer = next(m for m in model.modules() if isinstance(m, LowRankLinear))
    for parameter in layer.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    out = layer(torch.randn(2, 3, 32, dtype=torch.bfloat16))
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert out.shape[:2] == (2, 3)
    assert layer.lora_A["default"].weight.grad.dtype == torch.float32


def test_a_switched_off_adapter_is_the_policy_itself():
    model = adapted()
    batch = PairCollator(64)(random_rows(SHAPES))
    with model.disable_adapter():
        off = pair_logps(model, batch)[0]
    assert torch.equal(off, pair_logps(qwen(), batch)[0])
    assert not torch.equal(off, pair_logps(model, batch)[0])


def test_compiled_layers_compute_the_same(monkeypatch):
    # Traced and differentiated as compiled, but run without generated code, which takes a minute.
    compiled = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda m: compiled(m, backend="aot_eager"))
    model = adapted()
    compile_layers(model.get_base_model())
    torch.testing.assert_close(
        log_probs_and_gradients(model), log_probs_and_gradients(adapted()), rtol=1e-4, atol=1e-5
    )


# ---- vocabulary ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("transform", [(1.0, 0.0), (0.5, 0.0), (1.0, 2.0), (0.25, 1.5)])
def test_tiled_log_probs_and_all_their_gradients_are_the_textbooks(monkeypatch, bias, transform):
    monkeypatch.setattr(vocabulary, "_TILE_LOGITS", 3 * 11)
    torch.manual_seed(0)
    hidden = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    head = torch.nn.Linear(5, 11, bias=bias, dtype=torch.float64)
    targets, weights = torch.randint(11, (8,)), torch.randn(8, dtype=torch.float64)
    wanted = [hidden, *head.parameters()]
    logits = head(hidden) * transform[0]
    logits = transform[1] * (logits / transform[1]).tanh() if transform[1] else logits
    plain = logits.log_softmax(-1)[torch.arange(8), targets]
    tiled = token_logps(hidden, head, targets, LogitTransform(*transform))
    torch.testing.assert_close(tiled, plain)
    torch.testing.assert_close(
        torch.autograd.grad((tiled * weights).sum(), wanted),
        torch.autograd.grad((plain * weights).sum(), wanted),
    )


def test_no_response_tokens_give_no_log_probs():
    head = torch.nn.Linear(5, 11)
    nothing = token_logps(
        torch.empty(0, 5), head, torch.empty(0, dtype=torch.long), LogitTransform()
    )
    assert nothing.shape == (0,)


# ---- the benchmark ------------------------------------------------------------------------------


def test_the_benchmarks_pairs_have_the_lengths_it_says():
    pairs = random_pairs(4000, 97)
    means = [sum(map(len, pairs[f"{x}_ids"])) / 4000 for x in ("prompt", "chosen", "rejected")]
    assert means == pytest.approx([161, 315, 278], rel=0.03)  # 162, 321, 282 before the cut
    longest = max(
        len(r["prompt_ids"]) + max(len(r["chosen_ids"]), len(r["rejected_ids"])) for r in pairs
    )
    assert longest == 1024


def test_needed_arithmetic_spelled_out():
    model = random_qwen(torch.device("cpu"), **SHAPE | {"num_hidden_layers": 1})
    # q and o 32 × 32, k and v 16 × 32, gate and up 48 × 32, down 32 × 48.
    weights = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32
    adapters = 2 * (2 * (32 + 32) + 2 * (16 + 32) + 3 * (48 + 32))
    pairs = [{"prompt_ids": [1, 2], "chosen_ids": [3], "rejected_ids": [4, 5]}]
    seen = 3 + (2 + 1) + (2 * 2 + 3)
    expected = (4 * weights + 6 * adapters) * 5 + 4 * 97 * 32 * 3 + 12 * 32 * seen
    assert needed_flops(model, pairs, lora_rank=2) == expected
    assert needed_flops(model, pairs, 0) == 6 * weights * 5 + 6 * 97 * 32 * 3 + 12 * 32 * seen


def test_words_are_tokens():
    tokenizer = word_tokenizer(50)
    ids = [12, 49, 3, 10, 21]
    assert tokenizer(tokenizer.decode(ids))["input_ids"] == ids
