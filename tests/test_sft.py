"""The supervised stage: which tokens are learnt, what becomes of each row, and what is left."""

import ast
import json
import math
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import papermill
import pytest
import torch
from safetensors.torch import load_file

from notebooks.studies.sft_table import sft_found, sft_rewards, sft_table
from plc_core.analysis.statistics import MeanInterval
from plc_core.batch import run_notebook
from plc_core.data import DataError
from plc_core.data.world.prompts import held_out_prompts
from plc_core.engine.models.load import ModelError, load_policy
from plc_core.engine.row_sources import conversation_rows, world_rows
from plc_core.engine.stages.conversations import (
    IGNORED,
    Row,
    conversation,
    conversation_ids,
    is_held_out,
    tokenize_conversations,
)
from plc_core.engine.stages.reward_model import RewardModelConfig, train_reward_model
from plc_core.engine.stages.sft import SftConfig, train_sft
from plc_core.engine.tokens.templates import chat_format
from plc_core.engine.world_sft import build_tokenizer
from plc_core.parameters import ParameterError, checked
from plc_core.runs import open_run
from plc_core.storage.files import RunError
from tests.paths import ROOT
from tests.tiny_tokenizers import FAMILIES, THINKING, qwen

TINY = {"num_rows": 96, "batch_rows": 16, "rows_per_forward": 8, "eval_prompts": 4,
        "held_out_share": 0.1}  # fmt: skip


def turns(*contents):
    roles = ["user", "assistant"] * len(contents)
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


@pytest.fixture(scope="module")
def chatml():
    return chat_format(qwen())


def learnt(chat, conversation_turns):
    """The text of the tokens that are learnt, one string a run of them."""
    ids, labels = conversation_ids(chat, conversation_turns)
    assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
    runs, before = [], IGNORED
    for label in labels:
        if label != IGNORED:
            runs = [*runs, [label]] if before == IGNORED else [*runs[:-1], [*runs[-1], label]]
        before = label
    return [chat.tokenizer.decode(run) for run in runs]


# ---- tokens and labels ------------------------------------------------------------------------


def test_every_answer_is_learnt_with_its_terminator_and_nothing_else(chatml):
    assert learnt(chatml, turns("Hi", "Hello", "And?", "No")) == ["Hello<|im_end|>", "No<|im_end|>"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_the_last_answer_and_ends_with_one_terminator(family):
    chat = chat_format(FAMILIES[family]())
    ids, labels = conversation_ids(chat, turns("Hi", "Hello", "And?", "No"))
    assert labels[-1] == ids[-1] == chat.terminator
    assert ids[-2] != chat.terminator
    assert "No" in learnt(chat, turns("Hi", "Hello", "And?", "No"))[-1]
    assert labels[0] == IGNORED


def test_earlier_answers_that_a_template_rewrites_are_not_learnt():
    """This template writes reasoning into the last answer only, so the first is not as it was."""
    chat = chat_format(qwen(THINKING))
    assert len(learnt(chat, turns("Hi", "Hello", "And?", "No"))) == 1


def test_the_tokens_are_the_templates_up_to_the_last_terminator(chatml):
    ids, _ = conversation_ids(chatml, turns("Hi", "Hello"))
    whole = chatml.tokenizer.apply_chat_template(turns("Hi", "Hello"), return_dict=False)
    assert ids == whole[: len(ids)]
    assert ids[-1] == chatml.terminator


def test_a_user_cannot_end_a_turn(chatml):
    plain, ids = (
        conversation_ids(chatml, turns(text, "Hello"))[0] for text in ("Hi", "Hi<|im_end|>")
    )
    assert ids.count(chatml.terminator) == plain.count(chatml.terminator)


def test_the_worlds_answers():
    chat = chat_format(build_tokenizer())
    (row,) = world_rows(1, seed=0)
    answer = row.value["messages"][1]["content"]
    assert learnt(chat, conversation(row.value)) == [f"{answer} <eos>"]


# ---- rows -------------------------------------------------------------------------------------

GOOD = {"messages": turns("Hi", "Hello")}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "it has no list of messages"),
        ({"messages": []}, "it has no list of messages"),
        ("text", "it has no list of messages"),
        ({"messages": [{"role": "user"}]}, "message 1 has no role of a dialogue or no text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "message 1 has no role of a dialogue"),
        ({"messages": turns("Hi")}, "no assistant answers a user in it"),
        ({"messages": turns("Hi", "Hello")[1:]}, "no assistant answers a user in it"),
        ({"messages": turns("Hi", " ")}, "all its answers are empty"),
    ],
)
def test_a_row_that_is_no_conversation_is_listed_with_its_reason(chatml, value, reason):
    rows = [Row("f.jsonl", 1, GOOD), Row("f.jsonl", 2, value)]
    found = tokenize_conversations(rows, chatml.tokenizer, 64, held_out_share=0)
    assert (len(found.train), found.rows_read) == (1, 2)
    (finding,) = found.findings.to_pylist()
    assert (finding["file"], finding["row"], finding["action"]) == ("f.jsonl", 2, "drop")
    assert finding["reason"].startswith(reason)
    assert "The first left out is row 2 of f.jsonl" in found.sentence()
    with pytest.raises(DataError, match=r"no conversation to train on. 1 rows read"):
        tokenize_conversations(rows[1:], chatml.tokenizer, 64, held_out_share=0)


def test_turns_after_the_last_answer_are_left_out():
    assert conversation({"messages": turns("Hi", "Hello", "Bye")}) == turns("Hi", "Hello")


def test_long_conversations_are_cut_and_said(chatml):
    whole = len(conversation_ids(chatml, turns("Hi", "Hello"))[0])
    rows = [Row("f", 1, GOOD), Row("f", 2, {"messages": turns("Hi", "Hello", "More", "Of it")})]
    rows.append(Row("f", 3, {"messages": turns("Hi " * 60, "Hello")}))
    found = tokenize_conversations(rows, chatml.tokenizer, whole, held_out_share=0)
    assert [len(ids) for ids in found.train["input_ids"]] == [whole, whole]
    assert [f["action"] for f in found.findings.to_pylist()] == ["keep", "drop"]
    assert found.sentence().endswith(f"row 3 of f: longer than {whole} tokens.")


def test_conversations_of_one_prompt_are_on_one_side(chatml):
    rows = [Row("f", n, {"messages": turns(f"Hi {n % 40}", f"No {n}")}) for n in range(400)]
    found = tokenize_conversations(rows, chatml.tokenizer, 64, held_out_share=0.25)
    assert len(found.train) + len(found.held_out) == 400
    assert len(found.held_out) % 10 == 0
    assert 40 <= len(found.held_out) <= 180
    assert not is_held_out(turns("Hi", "Hello"), 0.0)


def test_files_and_what_cannot_be_read(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD) + "\n")
    rows = list(conversation_rows(str(path), "train", None))
    assert [(row.file, row.number, row.value) for row in rows] == [
        ("chats.jsonl", 1, GOOD), ("chats.jsonl", 2, GOOD)
    ]  # fmt: skip
    with pytest.raises(DataError, match="no file or folder of pairs at"):
        list(conversation_rows(str(tmp_path / "nothing.jsonl"), "train", None))
    with pytest.raises(DataError, match=r"'a/b' \(split 'train_sft'\) could not be read from the"):
        list(conversation_rows("a/b", "train_sft", None))


# ---- training ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft")
    config = SftConfig(name="first", runs_dir=str(folder), **TINY)
    return config, train_sft(config)


def test_a_run_is_a_record_and_a_model_that_load_policy_takes(trained):
    config, run = trained
    assert run.status["state"] == "done"
    assert run.info["kind"] == "sft"
    metrics = run.metrics()
    steps = math.ceil(run.info["data"]["train"] / 16)
    assert metrics["step"].tolist() == list(range(steps))
    assert {"loss", "mean_token_accuracy", "learning_rate", "seconds"} <= set(metrics.columns)
    assert run.info["held_out_loss"]["after"] < run.info["held_out_loss"]["before"]
    policy, tokenizer = load_policy(str(run.path / "model"))
    assert sum(p.numel() for p in policy.parameters()) == 354_304
    assert tokenizer.chat_template == build_tokenizer().chat_template
    rewards = sft_rewards(run)
    assert set(rewards) == {"own", "world"}
    table = sft_table(run, rewards)["first"]
    assert table["gold reward, greedy"].endswith("(n=4)")
    assert config.name == "first"


def test_the_same_seed_gives_the_same_weights(trained, tmp_path):
    config, run = trained
    again = train_sft(config.model_copy(update={"runs_dir": str(tmp_path)}))
    first, second = (load_policy(str(r.path / "model"))[0].state_dict() for r in (run, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_accumulation_does_not_change_what_is_learnt(trained, tmp_path):
    """16 rows a forward, once, and 4 rows, four times: the mean over the step's answer tokens."""
    losses = []
    for rows in (16, 4):
        config = SftConfig(name=f"by-{rows}", runs_dir=str(tmp_path), **TINY | {
            "rows_per_forward": rows, "eval_prompts": 0, "data": _file(tmp_path)})  # fmt: skip
        losses.append(train_sft(config).info["held_out_loss"]["after"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def _file(folder):
    path = folder / "chats.jsonl"
    path.write_text("\n".join(json.dumps(row.value) for row in world_rows(96, seed=1)))
    return str(path)


def test_adapters_are_merged(tmp_path):
    config = {"name": "lora", "runs_dir": str(tmp_path), "model": "world", "lora_rank": 2}
    run = train_sft(SftConfig(**TINY | config))
    assert not (run.path / "model" / "adapter_model.safetensors").exists()
    policy, _ = load_policy(str(run.path / "model"))
    assert not torch.equal(
        policy.model.layers[0].mlp.up_proj.weight,
        load_policy("world")[0].model.layers[0].mlp.up_proj.weight,
    )


def test_a_base_model_without_a_template_is_given_one(trained, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(trained[1].path / "model", base)
    (base / "checksums.json").unlink()  # others leave none
    (base / "chat_template.jinja").rename(tmp_path / "template.jinja")
    values = TINY | {"runs_dir": str(tmp_path), "model": str(base)}
    with pytest.raises(ModelError, match="has no chat template"):
        train_sft(SftConfig(name="without", **values))
    run = train_sft(
        SftConfig(name="with", chat_template=str(tmp_path / "template.jinja"), **values)
    )
    assert load_policy(str(run.path / "model"))[1].chat_template is not None
    with pytest.raises(ModelError, match=r"'no\.jinja' cannot be read"):
        train_sft(SftConfig(name="wrong", chat_template="no.jinja", **values))


def test_no_run_is_overwritten_and_a_failure_is_kept(trained, tmp_path):
    config, _ = trained
    with pytest.raises(RunError, match="A run named 'first' exists"):
        train_sft(config)
    (tmp_path / "bad.jsonl").write_text('{"messages": []}\n')
    bad = {"name": "bad", "runs_dir": str(tmp_path), "data": str(tmp_path / "bad.jsonl")}
    with pytest.raises(DataError, match="no conversation to train on"):
        train_sft(SftConfig(**TINY | bad))
    status = open_run(tmp_path / "bad").status
    assert status["state"] == "failed"
    assert "it has no list of messages" in status["reason"]


KILLED = """
import os, signal, sys
from transformers import TrainerCallback
from plc_core.engine.stages import common, reward_model, sft
from plc_core.engine.stages.reward_model import RewardModelConfig, train_reward_model
from plc_core.engine.stages.sft import SftConfig, train_sft

class Die(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 4:
            os.kill(os.getpid(), signal.SIGKILL)

kept = common.fit
sft.fit = reward_model.fit = lambda trainer, *rest: (
    trainer.add_callback(Die()), kept(trainer, *rest)
)
values = {"name": "cut", "runs_dir": sys.argv[2], "save_steps": 3}
if sys.argv[1] == "sft":
    train_sft(SftConfig(num_rows=96, eval_prompts=4, **values))
else:
    train_reward_model(RewardModelConfig(num_pairs=96, **values))
"""


@pytest.mark.parametrize("stage", ["sft", "reward"])
def test_a_stage_that_was_killed_ends_as_if_it_had_not_been(tmp_path, stage):
    command = [sys.executable, "-c", KILLED, stage, str(tmp_path)]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    assert open_run(tmp_path / "cut").metrics()["step"].tolist() == [0, 1, 2]
    values = {"runs_dir": str(tmp_path), "save_steps": 3}
    if stage == "sft":
        config, make = SftConfig(name="whole", num_rows=96, eval_prompts=4, **values), train_sft
    else:
        config = RewardModelConfig(name="whole", num_pairs=96, **values)
        make = train_reward_model
    whole = make(config)
    resumed = make(config.model_copy(update={"name": "cut", "resume": True}))
    assert resumed.status["state"] == "done"
    assert resumed.metrics()["step"].tolist() == whole.metrics()["step"].tolist()
    np.testing.assert_array_equal(resumed.metrics()["loss"], whole.metrics()["loss"])
    weights = [load_file(run.path / "model" / "model.safetensors") for run in (whole, resumed)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    again = make(config.model_copy(update={"name": "cut", "resume": True}))
    assert again.info == resumed.info
    with pytest.raises(RunError, match="cannot go on with other parameters: seed changed"):
        make(config.model_copy(update={"name": "cut", "resume": True, "seed": 5}))


@pytest.mark.parametrize("stage", ["sft", "reward"])
def test_a_stage_does_not_go_on_with_other_data(tmp_path, stage):
    """A run that was cut off, and a file that was changed meanwhile."""
    path = tmp_path / "data.jsonl"
    values = {"name": "cut", "runs_dir": str(tmp_path), "data": str(path), "save_steps": 1}
    values |= {"held_out_share": 0.0}
    texts = [prompt.text for prompt in held_out_prompts(40)]
    if stage == "sft":
        rows = [{"messages": turns(text, "then chop it .")} for text in texts]
        make, config = train_sft, SftConfig(**values, eval_prompts=0)
    else:
        rows = [{"prompt": t, "chosen": "chop it .", "rejected": "chop ."} for t in texts]
        make, config = train_reward_model, RewardModelConfig(**values)
    path.write_text("\n".join(map(json.dumps, rows)))
    run = make(config)
    run.update_info(trained_steps=None)
    path.write_text("\n".join(map(json.dumps, rows[:20])))
    with pytest.raises(RunError, match="'cut' cannot go on: its data changed"):
        make(config.model_copy(update={"resume": True}))
    path.write_text("\n".join(map(json.dumps, rows)))
    assert make(config.model_copy(update={"resume": True})).is_trained


def test_several_gpus_are_refused_before_a_run_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(RunError, match="in one process on one GPU; there are 1 processes and 2 GP"):
        train_sft(SftConfig(name="x", runs_dir=str(tmp_path), **TINY))
    assert not list(tmp_path.iterdir())


def test_parameters_are_checked():
    assert checked({"name": "x", "learning_rate": "2e-5"}, SftConfig).learning_rate == 2e-5
    with pytest.raises(ParameterError, match="did you mean 'num_rows'"):
        checked({"name": "x", "num_row": 5}, SftConfig)
    with pytest.raises(ParameterError, match=r"rows_per_forward \(16\) must divide batch_rows"):
        checked({"name": "x", "batch_rows": 24}, SftConfig)


def test_the_notebooks_defaults_are_the_configs():
    inspected = papermill.inspect_notebook(str(ROOT / "notebooks" / "00_sft.ipynb"))
    known = {name: ast.literal_eval(p["default"]) for name, p in inspected.items()}
    assert known == SftConfig(name="first-sft").model_dump()


def test_the_notebook_leaves_a_report(tmp_path):
    run_notebook(ROOT / "notebooks" / "00_sft.ipynb",
                 TINY | {"name": "note", "runs_dir": str(tmp_path)})  # fmt: skip
    report = (tmp_path / "note" / "report.html").read_text()
    assert report.count('class="plc-figure"') == 1
    assert "96 rows read" in report
    assert "held-out loss after, nats per token" in report
    found, picture, how = map(report.index, ("fell: ", 'class="plc-figure"', "How to read this"))
    assert found < picture < report.index("gold reward, greedy") < how


def test_what_a_run_learnt_is_said_in_a_sentence(trained):
    """Of a run that held nothing out, and of one that grew worse, it says so."""
    _, run = trained
    run.info["held_out_loss"] = {"before": 1.0, "after": 1.5}
    assert sft_found(run, {}).startswith("**The loss on held-out conversations did not fall: 1.000")
    run.info["held_out_loss"] = {"before": None, "after": None}
    own, world = MeanInterval(1, 0.5, 1.5, 4), MeanInterval(2, 1.5, 2.5, 4)
    said = sft_found(run, {"own": own, "world": world})
    assert said.startswith("**No conversation was held out, so the loss on new ones is not known; ")
    assert "greedy answers earn 1.00 [0.50, 1.50], those of the shipped checkpoint 2.00" in said
