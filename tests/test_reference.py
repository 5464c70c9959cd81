"""The reference cache: what hits it, what misses it, and what becomes of a damaged file."""

import json
import secrets
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from torch.nn.attention.flex_attention import flex_attention

from plc_core.data import flip_labels
from plc_core.engine.checkpoints import load_trained, trained_checkpoint
from plc_core.engine.config import TrainConfig
from plc_core.engine.forward import attention, logprobs
from plc_core.engine.forward.logprobs import pair_logps
from plc_core.engine.forward.packing import PairCollator, StepCollator
from plc_core.engine.models.adapters import add_lora
from plc_core.engine.models.load import ModelError, load_policy, model_identity
from plc_core.engine.pipeline import train
from plc_core.engine.reference import with_reference
from plc_core.engine.tokens.tokenized import tokenize_pairs
from plc_core.engine.training_pairs import training_pairs
from plc_core.progress import Progress
from plc_core.storage.files import RunError

PAIRS = 24
PROMPT = "cook soup . cover chop , boil . skip bake ."


@pytest.fixture(scope="module")
def pairs():
    config = TrainConfig(name="x", num_pairs=PAIRS)
    return training_pairs(config, *load_policy("world"), Progress())


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """A folder of adapters on the world's model that change what it computes."""
    folder = tmp_path_factory.mktemp("adapters")
    policy, tokenizer = load_policy("world")
    torch.manual_seed(1)
    adapted = add_lora(policy, rank=4, alpha=8)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    adapted.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def changed(policy):
    with torch.no_grad():
        next(policy.parameters()).view(-1)[0] += 1e-3
    return policy


def other_config(policy):
    policy.config.rope_parameters = policy.config.rope_parameters | {"rope_theta": 12345.0}
    return policy


def other_attention(patch):
    patch.setattr(logprobs, "attention_kind", lambda model, row_tokens=0: "flex")
    patch.setattr(attention, "_compiled_flex", lambda: flex_attention)  # compiling takes a minute


class Setting:
    """What a reference pass is made of; each row of the table below changes one thing of it."""

    def __init__(self, pairs, adapters):
        self.pairs, self.adapters = pairs, adapters
        self.policy, self.tokenizer = load_policy("world")
        self.bf16, self.max_length = False, 128
        self.collator = StepCollator(PairCollator(256), 16)

    def tokens(self):
        return tokenize_pairs(self.pairs, self.tokenizer, self.max_length).dataset

    def with_reference(self, folder, tokens=None):
        given = tokens or self.tokens()
        return with_reference(given, self.policy, folder, self.collator, self.bf16, Progress())


def reordered(s):
    s.pairs = s.pairs.map(lambda batch, _: batch.take(np.arange(batch.num_rows)[::-1].copy()))


HIT, MISS = 0, PAIRS
CHANGES = {
    "nothing": (lambda s, _: None, HIT),
    "all labels reversed": (lambda s, _: setattr(s, "pairs", flip_labels(s.pairs, 1.0, 0)), HIT),
    "a noise rate": (lambda s, _: setattr(s, "pairs", flip_labels(s.pairs, 0.3, 0)), HIT),
    "a noise rate of another seed": (
        lambda s, _: setattr(s, "pairs", flip_labels(s.pairs, 0.3, 7)), HIT
    ),
    "the order": (lambda s, _: reordered(s), HIT),
    "rows and forwards": (
        lambda s, _: setattr(s, "collator", StepCollator(PairCollator(128), 64, 512)), HIT
    ),
    "the model loaded again": (lambda s, _: setattr(s, "policy", load_policy("world")[0]), HIT),
    "one weight": (lambda s, _: changed(s.policy), MISS),
    "the configuration": (lambda s, _: other_config(s.policy), MISS),
    "weights in bfloat16": (
        lambda s, _: setattr(s, "policy", load_policy("world", "bf16")[0]), MISS
    ),
    "bfloat16 by autocast": (lambda s, _: setattr(s, "bf16", True), MISS),
    "the attention": (lambda s, patch: other_attention(patch), MISS),
    "adapters to start from": (
        lambda s, _: setattr(s, "policy", load_policy(str(s.adapters))[0]), MISS
    ),
    "the tokens, by max_length": (lambda s, _: setattr(s, "max_length", 12), MISS),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("change", CHANGES)
def test_what_hits_and_what_misses(pairs, adapters, tmp_path, monkeypatch, change):
    Setting(pairs, adapters).with_reference(tmp_path)
    setting = Setting(pairs, adapters)
    make, computed = CHANGES[change]
    make(setting, monkeypatch)
    record = setting.with_reference(tmp_path)[1]
    assert (record["computed"], record["reused"]) == (computed, PAIRS - computed)


def test_a_pair_whose_tokens_changed_is_computed_and_the_others_are_not(pairs, adapters, tmp_path):
    setting = Setting(pairs, adapters)
    setting.with_reference(tmp_path)
    rows = list(setting.tokens())
    rows[3]["rejected_ids"] = rows[3]["rejected_ids"][:-1]
    edited = Dataset.from_list(rows, features=setting.tokens().features)
    assert setting.with_reference(tmp_path, edited)[1]["computed"] == 1


def test_the_bits_do_not_depend_on_whose_labels_came_first(adapters, tmp_path):
    """Nor on the threads: two workers that share pairs but not flips are as each by itself."""
    config = TrainConfig(name="x", num_pairs=64)
    pairs = training_pairs(config, *load_policy("world"), Progress())
    flips = flip_labels(pairs, 0.5, 0)
    before = torch.get_num_threads()
    found = []
    try:
        for number, given in enumerate((pairs, flips)):
            torch.set_num_threads(number + 1)
            rows, record = Setting(given, adapters).with_reference(tmp_path / str(number))
            assert record["computed"] == len(rows)
            found.append([rows["reference_chosen"][:], rows["reference_rejected"][:]])
    finally:
        torch.set_num_threads(before)
    swapped = flips.dataset["flipped"][:]
    assert 0 < sum(swapped) < len(swapped)
    (a, b), (c, d) = found
    for i, swap in enumerate(swapped):
        assert (a[i], b[i]) == ((d[i], c[i]) if swap else (c[i], d[i]))


def test_the_record_names_the_pairs_that_were_computed_together(pairs, adapters, tmp_path):
    """A forward's company decides the last bits of a log-prob, so that two records tell."""
    setting = Setting(pairs, adapters)
    whole = setting.with_reference(tmp_path / "whole")[1]["grouping"]
    assert setting.with_reference(tmp_path / "whole")[1]["grouping"] == whole
    assert setting.with_reference(tmp_path / "again")[1]["grouping"] == whole
    setting.with_reference(tmp_path / "parts", setting.tokens().select(range(10)))
    assert setting.with_reference(tmp_path / "parts")[1]["grouping"] != whole


# ---- through whole runs -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """A file of pairs, trained on once with full weights in fp32 and a cache of its own."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [
        {"prompt": PROMPT.replace("bake", item), "chosen": "then chop it .", "rejected": answer}
        for item in ("salt", "bake", "fry", "stir")
        for answer in ("then boil it .", "well , so")
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def run(name, **changes):
        values = {
            "name": name, "runs_dir": str(folder), "data": str(folder / "pairs.jsonl"),
            "batch_pairs": 4, "pairs_per_forward": 4, "learning_rate": 1e-3,
        }  # fmt: skip
        return train(TrainConfig(**values | changes))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLC_CACHE", str(folder / "cache"))
        assert run("first").info["reference"]["computed"] == 8
        yield run


def test_runs_share_the_reference_where_it_is_the_same(first_run):
    """In bfloat16 full training autocasts fp32 weights and adapters' base is in 16 bits: two."""
    for name, changes, computed in (
        ("adapted", {"lora_rank": 4}, 0),  # fresh adapters add nothing
        ("autocast", {"precision": "bf16"}, 8),
        ("adapted in 16 bits", {"precision": "bf16", "lora_rank": 4}, 8),
        ("again", {"precision": "bf16", "objective": "dpo", "flip_rate": 0.5}, 0),
    ):
        record = first_run(name.replace(" ", "-"), **changes).info["reference"]
        assert (record["computed"], record["reused"]) == (computed, 8 - computed), name


def test_adapters_are_trained_on_against_the_model_with_them_as_given(first_run, adapters):
    run = first_run("on", model=str(adapters), lora_rank=4, lora_alpha=8, epochs=2.0)
    assert run.info["reference"]["computed"] == 8
    assert run.info["reference"]["model"] == model_identity(load_policy(str(adapters))[0])
    first = run.visits().query("step == 0")
    assert first["margin"].abs().max() < 1e-4
    assert not np.allclose(run.visits().query("step == 3")["margin"], 0, atol=1e-3)
    assert run.info["model"]["trainable"] < run.info["model"]["parameters"] / 2
    trained, given = load_trained(run), load_policy(str(adapters))[0]
    assert isinstance(trained, PeftModel)
    assert len(trained.state_dict()) == len(given.state_dict())
    assert model_identity(trained) != model_identity(given)
    # What was trained is a starting point again.
    again = first_run("on-again", model=str(trained_checkpoint(run)), lora_rank=4, lora_alpha=8)
    assert again.info["reference"]["computed"] == 8


def test_the_reference_of_adapters_is_the_model_with_them(pairs, adapters, tmp_path):
    setting = Setting(pairs, adapters)
    setting.policy = load_policy(str(adapters))[0]
    dataset, _ = setting.with_reference(tmp_path)
    batch = PairCollator(256)(list(dataset))
    given = PeftModel.from_pretrained(load_policy("world")[0], adapters)
    expected = pair_logps(given, batch)[0].detach()
    torch.testing.assert_close(
        torch.tensor(dataset["reference_chosen"][:]), expected, rtol=1e-4, atol=1e-4
    )
    assert (expected - pair_logps(load_policy("world")[0], batch)[0]).abs().min() > 1e-3


def test_a_model_has_the_hash_that_it_would_have_in_16_bits(adapters):
    for folder in ("world", str(adapters)):
        loaded, in_16_bits = load_policy(folder)[0], load_policy(folder, "bf16")[0]
        assert model_identity(loaded) != model_identity(in_16_bits)
        assert model_identity(loaded, torch.bfloat16) == model_identity(in_16_bits)


def test_adapters_that_add_more_strongly_are_another_reference(adapters, tmp_path):
    shutil.copytree(adapters, tmp_path / "strong")
    path = tmp_path / "strong" / "adapter_config.json"
    path.write_text(path.read_text().replace('"lora_alpha": 8', '"lora_alpha": 16'))
    names = [model_identity(load_policy(str(f))[0]) for f in (adapters, tmp_path / "strong")]
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        ({"base_model_name_or_path": "/nowhere/base"}, "'.*' cannot be loaded"),
        ({"base_model_name_or_path": None}, "cannot be loaded"),
        ({"peft_type": "IA3"}, "are IA3, not LoRA"),
        ({"r": 5}, "The adapters in .* cannot be loaded"),
    ],
    ids=str,
)
def test_adapters_that_cannot_be_used_are_a_sentence(adapters, tmp_path, edit, sentence):
    shutil.copytree(adapters, tmp_path / "broken")
    path = tmp_path / "broken" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises(ModelError, match=sentence):
        load_policy(str(tmp_path / "broken"))


def test_adapters_of_another_rank_are_a_sentence(first_run, adapters):
    with pytest.raises(RunError, match=r"have rank 4 and alpha 8, .* set lora_rank to 4"):
        first_run("other", model=str(adapters), lora_rank=8)


# ---- damage -------------------------------------------------------------------------------------


def one_value(raw):
    """A bit of the first float changed where the file can still be read."""
    middle = raw.rindex(b"PAR1") // 2
    return raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]


DAMAGES = {
    "cut off": lambda raw: raw[: len(raw) // 2],
    "empty": lambda raw: b"",
    "a bit changed": one_value,
    "other bytes": lambda raw: secrets.token_bytes(len(raw)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_computed_again_and_no_more(pairs, adapters, tmp_path, damage):
    setting = Setting(pairs, adapters)
    few = setting.tokens().select(range(10))
    setting.with_reference(tmp_path, few)
    (victim,) = tmp_path.rglob("*.parquet")
    whole, record = setting.with_reference(tmp_path)
    assert record["computed"] == PAIRS - 10
    victim.write_bytes(DAMAGES[damage](victim.read_bytes()))
    repaired, record = setting.with_reference(tmp_path)
    assert record["computed"] == 10
    assert not victim.exists()
    for name in ("reference_chosen", "reference_rejected"):
        torch.testing.assert_close(torch.tensor(repaired[name][:]), torch.tensor(whole[name][:]))
    assert setting.with_reference(tmp_path)[1]["computed"] == 0


def test_a_value_changed_in_a_file_that_can_be_read_is_not_trusted(pairs, adapters, tmp_path):
    setting = Setting(pairs, adapters)
    setting.with_reference(tmp_path)
    (part,) = tmp_path.rglob("*.parquet")
    table = pq.read_table(part)
    zeros = pa.array([0.0] * PAIRS, pa.float32())
    other = table.set_column(1, table.schema.field(1), zeros)
    pq.write_table(other, part, compression="zstd")
    assert setting.with_reference(tmp_path)[1]["computed"] == PAIRS
