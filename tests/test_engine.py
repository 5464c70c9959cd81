"""From tokens to log-probs: packed rows, the reference cache, sampling."""

import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from plc_core.data import pairs_from_rows
from plc_core.engine.forward import vocabulary
from plc_core.engine.forward.attention import attention_mask
from plc_core.engine.forward.logprobs import pair_logps, response_logps
from plc_core.engine.forward.packing import PairCollator, StepCollator
from plc_core.engine.models.adapters import add_lora
from plc_core.engine.models.load import ModelError, load_policy
from plc_core.engine.reference import with_reference
from plc_core.engine.sampling import generate_responses
from plc_core.engine.tokens.tokenized import tokenize_pairs
from plc_core.progress import Progress


@pytest.fixture(scope="module")
def world():
    return load_policy("world")


@pytest.fixture(scope="module")
def pairs():
    from plc_core.data.world import sample_prompts, write_response

    rng = __import__("numpy").random.default_rng(0)
    rows = [
        {"prompt": p.text, "chosen": write_response(p, rng), "rejected": write_response(p, rng)}
        for p in sample_prompts(40, seed=5)
    ]
    return pairs_from_rows(rows, "test")


TINY = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97,
}  # fmt: skip
SHAPES = [(5, 7, 3), (1, 1, 1), (12, 2, 9), (3, 30, 1), (8, 4, 4)]


def random_rows(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    return [
        {
            name: torch.randint(97, (size,), generator=generator).tolist()
            for name, size in zip(names, shape, strict=True)
        }
        for shape in shapes
    ]


def plain_logp(model, prompt, response):
    """One sequence, one forward, the textbook way."""
    ids = torch.tensor([prompt + response])
    logps = model(input_ids=ids).logits.float().log_softmax(-1)
    positions = range(len(prompt) - 1, ids.shape[1] - 1)
    return sum(logps[0, at, ids[0, at + 1]] for at in positions)


def test_a_packed_row_spelled_out():
    # Two pairs in one row: P P | C C | R   and   P | C | R R
    batch = PairCollator(64)(
        [
            {"prompt_ids": [10, 11], "chosen_ids": [20, 21], "rejected_ids": [30]},
            {"prompt_ids": [12], "chosen_ids": [22], "rejected_ids": [31, 32]},
        ]
    )
    assert batch["input_ids"].tolist() == [[10, 11, 20, 21, 30, 12, 22, 31, 32]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 2, 0, 1, 1, 2]]
    assert batch["begin"].tolist() == [[0, 0, 0, 0, 0, 5, 5, 5, 5]]
    # The rejected responses do not see the chosen ones, at [2, 4) and [6, 7).
    assert batch["gap_from"].tolist() == [[0, 0, 0, 0, 2, 0, 0, 6, 6]]
    assert batch["gap_to"].tolist() == [[0, 0, 0, 0, 4, 0, 0, 7, 7]]
    assert batch["targets"].tolist() == [20, 21, 30, 22, 31, 32]
    # The prompt's last token predicts the first token of both responses.
    assert batch["predict_column"].tolist() == [1, 2, 1, 5, 5, 7]
    assert batch["lengths"].tolist() == [2, 1, 1, 2]
    assert batch["spans"].tolist() == [[0, 0, 2, 4, 5], [0, 5, 6, 7, 9]]
    mask = attention_mask(batch, "sdpa")[0, 0].int()
    assert mask.tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0, 0, 0],  # the rejected response does not see the chosen one
        [0, 0, 0, 0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 0, 1, 0],
        [0, 0, 0, 0, 0, 1, 0, 1, 1],
    ]


def test_single_responses_score_like_pairs():
    model = LlamaForCausalLM(LlamaConfig(**TINY)).eval()
    rows = random_rows(SHAPES)
    alone = response_logps(
        model, [r["prompt_ids"] for r in rows], [r["chosen_ids"] for r in rows], PairCollator(50), 2
    )
    chosen, _ = pair_logps(model, PairCollator(50)(rows))
    torch.testing.assert_close(torch.tensor(alone), chosen.detach(), rtol=1e-5, atol=1e-5)


def test_the_vocabulary_sees_response_positions_only_and_in_tiles(world, monkeypatch):
    seen = []
    project = vocabulary._project

    def watched(*args):
        seen.append(project(*args))
        return seen[-1]

    monkeypatch.setattr(vocabulary, "_project", watched)
    monkeypatch.setattr(vocabulary, "_TILE_LOGITS", 5 * 203)
    pair_logps(world[0], PairCollator(64)(random_rows([(9, 4, 2), (3, 1, 5)])))
    assert [tuple(logits.shape) for logits in seen] == [(4, 203)] * 3


# ---- reference cache -----------------------------------------------------------------------------


def referenced(pairs, world, folder, model=None):
    policy, tokenizer = world
    tokens = tokenize_pairs(pairs, tokenizer, 128).dataset
    collator = StepCollator(PairCollator(256), 16)
    return with_reference(tokens, model or policy, folder, collator, False, Progress())


def test_the_reference_pass_leaves_the_random_state_alone(world, pairs, tmp_path):
    before = torch.get_rng_state()
    referenced(pairs, world, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


# ---- models and sampling -------------------------------------------------------------------------


def test_fresh_adapters_change_nothing_and_are_all_that_is_trained(world, pairs):
    policy, tokenizer = load_policy("world")
    rows = list(tokenize_pairs(pairs, tokenizer, 128).dataset)
    before, _ = pair_logps(policy, PairCollator(256)(rows))
    adapted = add_lora(policy, rank=4, alpha=4)
    after, _ = pair_logps(adapted, PairCollator(256)(rows))
    assert torch.equal(before, after)
    trained = [n for n, p in adapted.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in n for n in trained)


def test_a_missing_model_is_a_sentence(tmp_path):
    with pytest.raises(ModelError, match="no model folder"):
        load_policy(str(tmp_path / "nothing"))
    with pytest.raises(ModelError, match=r"no model 'tiny': .*tiny is not a folder, and .* hub"):
        load_policy("tiny")
    with pytest.raises(ModelError, match=r"did you mean 'world'\?$"):
        load_policy("wrold")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_policy(str(tmp_path / "empty"))


def test_greedy_responses_do_not_depend_on_the_batch_and_sampling_on_the_seed_alone(world, pairs):
    policy, tokenizer = world
    tokens: Dataset = tokenize_pairs(pairs, tokenizer, 128).dataset
    prompts = tokens["prompt_ids"][:]
    one, many = (
        generate_responses(policy, tokenizer, prompts, "greedy", 64, 0, size) for size in (1, 40)
    )
    assert one == many
    before = torch.get_rng_state()
    sampled = [
        generate_responses(policy, tokenizer, prompts, "sampled", 64, seed) for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(r.finished and r.ids[-1] == tokenizer.eos_token_id for r in one)
