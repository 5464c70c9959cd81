"""Training runs on the embedded world: the record, invariance, resuming, bad input."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import safetensors.torch
import torch
import transformers
from transformers import TrainerCallback

from plc_core import evaluate
from plc_core.data import DataError
from plc_core.engine import pipeline
from plc_core.engine.arguments import check_processes
from plc_core.engine.checkpoints import (
    STATE_FILE,
    KnowsTiedWeights,
    load_trained,
    trained_checkpoint,
)
from plc_core.engine.config import TrainConfig
from plc_core.engine.forward.attention import LONG_ROWS
from plc_core.engine.models.load import load_policy
from plc_core.engine.pipeline import train
from plc_core.engine.trainer import PreferenceTrainer
from plc_core.objective import FlipPosterior, PairLogps, build_objective
from plc_core.parameters import ParameterError, checked
from plc_core.runs import open_run
from plc_core.storage.files import RunError, read_json, write_json
from plc_core.storage.manifest import list_checksums
from tests.fake_run import fake_info
from tests.paths import ROOT

SMALL = {
    "num_pairs": 64, "batch_pairs": 16, "pairs_per_forward": 16, "flip_rate": 0.3,
    "eval_prompts": 0, "learning_rate": 1e-3,
}  # fmt: skip
PROMPT = "cook soup . cover chop , boil . skip bake ."
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def small(folder, name, **changes):
    return TrainConfig(**(SMALL | {"name": name, "runs_dir": str(folder)} | changes))


@pytest.fixture(scope="module")
def plc(folder):
    return train(small(folder, "plc", save_steps=2))


def state_of(run, step):
    return read_json(run.path / "checkpoints" / f"checkpoint-{step}" / STATE_FILE)


def test_the_run_folder_says_everything(plc):
    run = open_run(plc.path)
    assert run.status["state"] == "done"
    assert (run.status["step"], run.status["total_steps"]) == (4, 4)
    assert run.info["config"]["objective"] == "plc"
    assert run.info["calibration_order"] == "update-first"
    assert run.info["data"]["rows"] == len(run.pairs()) == 64
    assert run.info["data"]["flipped"] == run.pairs()["flipped"].sum() > 5
    # The world's tokens are words, and a terminator; the sides are those of the label as observed.
    pairs = run.pairs(["chosen", "rejected", "chosen_tokens", "rejected_tokens"])
    for side in ("chosen", "rejected"):
        words = pairs[side].str.split().str.len()
        assert (pairs[f"{side}_tokens"] == words + 1).mean() > 0.9  # an answer may be cut off
        assert pairs[f"{side}_tokens"].between(words, words + 1).all()
    assert run.info["reference"]["model"]
    assert run.info["versions"]["transformers"]
    metrics = run.metrics()
    assert metrics["step"].tolist() == [0, 1, 2, 3]
    assert metrics["learning_rate"].max() == pytest.approx(1e-3)
    assert metrics["gamma"].tolist() == pytest.approx(
        [0, *(0.85 * (p - 0.07) / 0.93 for p in (0.25, 0.5, 0.75))]
    )


def test_every_pair_is_visited_once_an_epoch_under_its_id(plc):
    visits, pairs = plc.visits(), plc.pairs()
    assert sorted(visits["pair_id"]) == sorted(pairs["pair_id"])
    assert visits.groupby("step").size().tolist() == [16] * 4
    assert visits["epoch"].tolist() == [step / 4 for step in range(4) for _ in range(16)]
    assert not visits.drop(columns="p_flip").isna().any().any()
    assert visits["p_flip"].isna().all()  # four steps say nothing of how many labels are reversed
    assert plc.metrics()[["p_flip", "noise_rate", "noise_low", "noise_high"]].isna().all().all()


def test_the_visits_are_recomputed_from_the_log_probs_alone(plc):
    """A sceptic's check: margins, z, q, weights and losses of the whole run, from the files."""
    config, metrics = plc.info["config"], plc.metrics()
    objective = build_objective("plc", beta=config["beta"], recipe=config["recipe"])
    for step, rows in plc.visits().groupby("step"):
        logps = [
            torch.tensor(rows[f"{who}_{side}"].to_numpy())
            for who in ("policy", "reference")
            for side in ("chosen", "rejected")
        ]
        ones = torch.ones(len(rows))
        out = objective(PairLogps(*logps, ones, ones), progress=step / 4)
        expected = {"margin": out.margin, "z": out.routing.z, "q_flip": out.routing.flip}
        expected |= {"q_clean": out.routing.clean, "weight": out.routing.weight}
        for name, values in expected.items():
            torch.testing.assert_close(
                torch.tensor(rows[name].to_numpy()).double(), values.double(), atol=1e-5, rtol=1e-4
            )
        assert out.loss.mean().item() == pytest.approx(metrics["loss"][step], abs=1e-6)


def test_the_flip_posterior_is_recomputed_from_the_margins_strictly_past(folder, monkeypatch):
    short = partial(FlipPosterior, steps=2, pairs=16)
    monkeypatch.setattr(pipeline, "FlipPosterior", short)
    run = train(small(folder, "posterior", batch_pairs=8, pairs_per_forward=8))
    posterior, metrics = short(), run.metrics()
    for step, rows in run.visits().groupby("step"):
        margins = torch.tensor(rows["margin"].to_numpy())
        torch.testing.assert_close(
            torch.tensor(rows["p_flip"].to_numpy()).double(), posterior(margins),
            atol=1e-4, rtol=1e-3, equal_nan=True,
        )  # fmt: skip
        noise = [metrics[f"noise_{name}"][step] for name in ("rate", "low", "high")]
        expected = [float(x) for x in posterior.estimate()]
        assert noise == pytest.approx(expected, abs=1e-3, nan_ok=True)
        posterior.observe(margins, before_any_update=step == 0)
    assert metrics["noise_rate"].notna().any()
    assert metrics["noise_rate"][:3].isna().all()  # the margins of steps 0 and 1 are all noise


def test_step_zero_is_the_reference(plc):
    first = plc.visits().query("step == 0")
    assert first["margin"].abs().max() < 1e-4
    assert plc.metrics()["loss"][0] == pytest.approx(0.693147, abs=1e-5)


@contextlib.contextmanager
def doubled():
    """Double precision: Adam divides by the gradient's size, so fp32 noise would grow to 1e-3."""
    with pytest.MonkeyPatch.context() as patch:
        original = pipeline.load_policy
        patch.setattr(
            pipeline, "load_policy", lambda *args: (lambda m, t: (m.double(), t))(*original(*args))
        )
        yield


@pytest.fixture
def in_double():
    with doubled():
        yield


@pytest.fixture(scope="module")
def whole_step(folder):
    with doubled():
        return train(small(folder, "whole", calibration_order="score-first"))


@pytest.mark.parametrize(
    "split",
    [
        {"pairs_per_forward": 7},
        {"tokens_per_forward": 300},
        {"tokens_per_forward": 300, "pairs_per_forward": 2, "gradient_checkpointing": True},
    ],
    ids=str,
)
def test_score_first_does_not_depend_on_how_a_step_is_split(folder, in_double, whole_step, split):
    name = "split-" + "-".join(f"{key[0]}{value}" for key, value in split.items())
    run = train(small(folder, name, calibration_order="score-first", **split))
    split, whole = (
        r.visits().set_index(["step", "pair_id"]).sort_index() for r in (run, whole_step)
    )
    pd.testing.assert_frame_equal(split, whole, atol=1e-6, rtol=1e-5)
    average = [state_of(r, 4)["objective"]["calibration"]["average"] for r in (run, whole_step)]
    assert average[0] == pytest.approx(average[1], rel=1e-6, abs=1e-9)
    columns = ["loss", "grad_norm", "ema_std"]
    pd.testing.assert_frame_equal(
        run.metrics()[columns], whole_step.metrics()[columns], rtol=1e-6, atol=1e-9
    )


def test_accumulation_says_that_it_scores_first(folder):
    run = train(small(folder, "accumulated", pairs_per_forward=8))
    assert run.info["calibration_order"] == "score-first"


def test_a_token_budget_scores_first_and_names_the_pair_it_cannot_hold(folder):
    run = train(small(folder, "budget", tokens_per_forward=300))
    assert run.info["calibration_order"] == "score-first"
    with pytest.raises(DataError, match=r"Pair \w+ has \d+ tokens .* tokens_per_forward \(20\)"):
        train(small(folder, "small-budget", tokens_per_forward=20))


class _Dies(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def interrupted(folder, name, monkeypatch, step, **changes):
    config = small(folder, name, save_steps=2, **changes)
    with monkeypatch.context() as patch:
        original = PreferenceTrainer.__init__

        def dying(self, *args, **kwargs):
            original(self, *args, **kwargs)
            self.add_callback(_Dies(step))

        patch.setattr(PreferenceTrainer, "__init__", dying)
        with pytest.raises(KeyboardInterrupt):
            train(config)
    run = open_run(folder / name)
    assert run.status["state"] == "killed"
    return config, run


def warnings_of_transformers(monkeypatch):
    warned = []
    monkeypatch.setattr(
        transformers.trainer.logger, "warning", lambda said, *_: warned.append(said)
    )
    return warned


def test_of_weights_that_a_checkpoint_lacks_only_those_not_tied_are_warned_of(monkeypatch):
    warned = warnings_of_transformers(monkeypatch)
    trainer = object.__new__(KnowsTiedWeights)
    trainer.model, _ = load_policy("world")
    weights = trainer.model.state_dict()
    del weights["lm_head.weight"]
    trainer._issue_warnings_after_load(trainer.model.load_state_dict(weights, strict=False))
    assert warned == []
    del weights["model.norm.weight"]
    trainer._issue_warnings_after_load(trainer.model.load_state_dict(weights, strict=False))
    assert warned == [
        "There were missing keys in the checkpoint model loaded: ['model.norm.weight']."
    ]
    warned.clear()
    del weights["model.embed_tokens.weight"]  # neither name of the tied weights is there
    trainer._issue_warnings_after_load(trainer.model.load_state_dict(weights, strict=False))
    assert all(name in warned[0] for name in ("lm_head.weight", "embed_tokens", "norm"))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("plc", {}),
        ("dpo", {"objective": "dpo"}),
        ("lora", {"lora_rank": 4}),
        ("by-pair", {"row_tokens": LONG_ROWS}),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(folder, monkeypatch, name, changes):
    whole = train(small(folder, f"uninterrupted-{name}", save_steps=2, **changes))
    config, _ = interrupted(folder, f"resumed-{name}", monkeypatch, 3, **changes)
    warned = warnings_of_transformers(monkeypatch)
    resumed = train(config.model_copy(update={"resume": True}))
    assert not [said for said in warned if "keys in the checkpoint" in said]
    pd.testing.assert_frame_equal(resumed.visits(), whole.visits())
    timing = ["seconds", "pairs_per_second"]
    pd.testing.assert_frame_equal(
        resumed.metrics().drop(columns=timing), whole.metrics().drop(columns=timing)
    )
    assert state_of(resumed, 4) == state_of(whole, 4)
    file = WEIGHTS if name != "lora" else "adapter_model.safetensors"
    both = [(trained_checkpoint(r) / file).read_bytes() for r in (resumed, whole)]
    assert both[0] == both[1]
    assert resumed.status["state"] == "done"


def test_a_trained_run_without_its_last_checkpoint_is_trained_to_its_end_again(folder, tmp_path):
    config = small(folder, "lost-checkpoint", save_steps=2)
    run = train(config)
    steps = run.info["trained_steps"]
    shutil.copytree(run.path, tmp_path / run.name)
    lost = open_run(tmp_path / run.name)
    shutil.rmtree(trained_checkpoint(lost))
    with pytest.raises(RunError, match=f"to step {steps}, .*checkpoint-.*resume set to true"):
        load_trained(lost)  # not the earlier policy in silence
    again = train(config.model_copy(update={"resume": True, "runs_dir": str(tmp_path)}))
    assert (again.info["trained_steps"], again.status["state"]) == (steps, "done")
    pd.testing.assert_frame_equal(again.visits(), run.visits())
    both = [(trained_checkpoint(r) / WEIGHTS).read_bytes() for r in (again, run)]
    assert both[0] == both[1]


@pytest.fixture(scope="module")
def half(folder, tmp_path_factory):
    """A run that was interrupted after step 3, with a checkpoint after step 2."""
    with pytest.MonkeyPatch.context() as patch:
        return interrupted(folder, "half", patch, 3)


def copied(half, tmp_path):
    config, run = half
    shutil.copytree(run.path, tmp_path / "half")
    return config.model_copy(update={"resume": True, "runs_dir": str(tmp_path)})


def as_before_checksums(run):
    """Leave a run as versions left it that wrote no checksums of a checkpoint's files."""
    info = read_json(run / "run.json")
    del info["checksums"]
    write_json(run / "run.json", info)
    for path in run.glob("checkpoints/*/checksums.json"):
        path.unlink()


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        (STATE_FILE, "remove", f"has no {STATE_FILE}"),
        (STATE_FILE, "truncate", f"{STATE_FILE} cannot be read"),
        (STATE_FILE, "[]", "should hold a JSON object"),
        (STATE_FILE, "{}", "not the state of this run's objective"),
        (STATE_FILE, '{"step": 2, "objective": {}}', "not the state of this run's objective"),
        (STATE_FILE, '{"step": 2, "objective": {"calibration": {"average": [1, 2]}}}',
         "not the state of this run's objective"),
        (STATE_FILE, '{"step": 2, "objective": {"calibration": {"average": [1, 2, 1]}}}',
         "not the state of this run's objective"),
        ("model.safetensors", "remove", "has no weights"),
        ("model.safetensors", "truncate", r"model\.safetensors of checkpoint-2 is damaged"),
        ("optimizer.pt", "remove", r"has no optimizer\.pt"),
        ("optimizer.pt", "truncate", r"optimizer\.pt of checkpoint-2 is damaged"),
        ("scheduler.pt", "remove", r"has no scheduler\.pt"),
        ("optimizer.pt", "scribble", r"optimizer\.pt of checkpoint-2 is damaged"),
        ("rng_state.pth", "truncate", r"rng_state\.pth of checkpoint-2 is damaged"),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_without_checksums_is_a_sentence_and_changes_nothing(
    half, tmp_path, name, damage, sentence
):
    config = copied(half, tmp_path)
    as_before_checksums(tmp_path / "half")
    path = tmp_path / "half" / "checkpoints" / "checkpoint-2" / name
    if damage == "remove":
        path.unlink()
    elif damage == "truncate":
        truncated(path)
    elif damage == "scribble":
        raw = bytearray(path.read_bytes())
        middle = len(raw) // 2
        raw[middle : middle + 300] = b"\xaa" * 300
        path.write_bytes(raw)
    else:
        path.write_text(damage)
    before = open_run(tmp_path / "half").visits()
    with pytest.raises(RunError, match=sentence):
        train(config)
    run = open_run(tmp_path / "half")
    pd.testing.assert_frame_equal(run.visits(), before)
    assert run.status["state"] == "killed"


@pytest.mark.parametrize("damage", ["remove", "truncate", "text"])
def test_a_checkpoint_that_was_cut_off_is_passed_over(half, plc, tmp_path, damage):
    config = copied(half, tmp_path)
    checkpoints = tmp_path / "half" / "checkpoints"
    shutil.copytree(checkpoints / "checkpoint-2", checkpoints / "checkpoint-3")
    state = checkpoints / "checkpoint-3" / "trainer_state.json"
    state.unlink()
    list_checksums(checkpoints / "checkpoint-3")  # which are written before it
    shutil.copy(checkpoints / "checkpoint-2" / state.name, state)
    if damage == "remove":
        state.unlink()
    elif damage == "truncate":
        truncated(state)
    else:
        state.write_text('{"global_step": "x"}')
    pd.testing.assert_frame_equal(train(config).visits(), plc.visits())


def test_a_run_without_a_checkpoint_starts_again(half, plc, tmp_path):
    config = copied(half, tmp_path)
    shutil.rmtree(tmp_path / "half" / "checkpoints")
    run = train(config)
    pd.testing.assert_frame_equal(run.visits(), plc.visits())
    assert run.metrics()["step"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("part", ["visits", "metrics.parquet"])
def test_a_record_with_a_gap_is_a_sentence(half, tmp_path, part):
    config = copied(half, tmp_path)
    path = tmp_path / "half" / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(RunError, match=f"in its {part} 2 of the steps before are missing"):
        train(config)


@pytest.mark.parametrize("content", [None, b"PAR1junk"])
def test_lost_pairs_are_written_again(half, plc, tmp_path, content):
    config = copied(half, tmp_path)
    path = tmp_path / "half" / "pairs.parquet"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert train(config).pairs()["pair_id"].tolist() == plc.pairs()["pair_id"].tolist()


def test_a_finished_run_is_returned_as_it_is(folder, plc):
    before = {p: p.stat().st_mtime_ns for p in plc.path.rglob("*")}
    assert train(small(folder, "plc", save_steps=2, resume=True)).path == plc.path
    assert {p: p.stat().st_mtime_ns for p in plc.path.rglob("*")} == before


def test_a_run_does_not_go_on_with_other_data(folder, monkeypatch, tmp_path):
    rows = [
        {"prompt": f"cook soup . cover chop , boil . skip {item} .", "chosen": a, "rejected": b}
        for item in ("salt", "bake", "fry")
        for a, b in (("then chop it .", "then boil it ."), ("then boil it .", "well"))
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    changes = {"data": str(file), "num_pairs": None, "batch_pairs": 2, "pairs_per_forward": 2}
    config, run = interrupted(folder, "other-data", monkeypatch, 2, **changes)
    before = run.visits()
    file.write_text("\n".join(map(json.dumps, rows[:4])))
    with pytest.raises(RunError, match="its data changed since it began"):
        train(config.model_copy(update={"resume": True}))
    pd.testing.assert_frame_equal(open_run(run.path).visits(), before)


def test_only_the_same_parameters_go_on(folder, plc):
    config = small(folder, "plc", save_steps=2, resume=True, beta=0.3)
    with pytest.raises(RunError, match="other parameters: beta changed"):
        train(config)
    with pytest.raises(RunError, match="no run folder"):
        train(small(folder, "never-made", resume=True))


def test_a_taken_name_changes_nothing(folder, plc):
    before = {p: p.stat().st_mtime_ns for p in plc.path.rglob("*")}
    with pytest.raises(RunError, match="'plc' exists"):
        train(small(folder, "plc"))
    assert {p: p.stat().st_mtime_ns for p in plc.path.rglob("*")} == before


def test_all_objectives_share_one_reference_pass_and_one_order(folder, plc):
    dpo = train(small(folder, "shadow", objective="dpo"))
    assert dpo.info["reference"]["computed"] == 0
    assert dpo.info["data"]["fingerprint"] == plc.info["data"]["fingerprint"]
    assert dpo.visits()["pair_id"].tolist() == plc.visits()["pair_id"].tolist()
    # Shadow routing: logged, and without influence on the loss.
    assert dpo.visits()["q_flip"].notna().all()
    margin = dpo.visits().query("step == 2")["margin"].to_numpy()
    loss = -torch.nn.functional.logsigmoid(torch.tensor(margin)).mean().item()
    assert dpo.metrics()["loss"][2] == pytest.approx(loss, abs=1e-6)


def test_a_log_prob_that_is_not_finite_stops_the_run_and_names_the_pairs(folder, monkeypatch):
    original = pipeline.with_reference

    def poisoned(*args, **kwargs):
        tokens, record = original(*args, **kwargs)
        values = list(tokens["reference_chosen"])
        values[7] = float("nan")
        tokens = tokens.remove_columns("reference_chosen").add_column("reference_chosen", values)
        return tokens, record

    monkeypatch.setattr(pipeline, "with_reference", poisoned)
    with pytest.raises(RunError, match=r"1 pairs of this step .* not finite") as error:
        train(small(folder, "poisoned"))
    run = open_run(folder / "poisoned")
    assert run.pairs()["pair_id"][7] in str(error.value)
    assert run.status["state"] == "failed"
    assert run.pairs()["pair_id"][7] in run.status["reason"]


def test_a_smaller_last_batch_and_micro_batch_weigh_by_their_pairs(folder, in_double):
    """45 pairs in steps of 16: the last step has 13, its last micro-batch 5 of 8."""
    config = {"num_pairs": 45, "epochs": 2.0, "calibration_order": "score-first"}
    whole = train(small(folder, "uneven-whole", **config))
    split = train(small(folder, "uneven-split", pairs_per_forward=8, **config))
    assert whole.visits().groupby("step").size().tolist() == [16, 16, 13] * 2
    columns = ["loss", "grad_norm", "margin_std", "ema_std"]
    pd.testing.assert_frame_equal(
        split.metrics()[columns], whole.metrics()[columns], rtol=1e-6, atol=1e-9
    )


def test_processes_train_as_one(folder, in_double, tmp_path):
    """45 pairs in steps of 16: an epoch does not divide evenly, and no pair counts twice."""
    splits = {"pairs_per_forward": {}, "tokens_per_forward": {"length_evidence": True}}
    both_have = {
        name: {"num_pairs": 45, "calibration_order": "score-first", "objective_options": options}
        for name, options in splits.items()
    }
    script = tmp_path / "ranks.py"
    script.write_text(
        "import sys, json\n"
        "from plc_core.engine import pipeline\n"
        "from plc_core.engine.config import TrainConfig\n"
        "load = pipeline.load_policy\n"
        "pipeline.load_policy = lambda *a: (lambda m, t: (m.double(), t))(*load(*a))\n"
        "for config in json.loads(sys.argv[1]):\n"
        "    pipeline.train(TrainConfig(**config))\n"
    )
    configs = [
        small(folder, "ranks-pairs_per_forward", **both_have["pairs_per_forward"])
        .model_copy(update={"pairs_per_forward": 4}),
        small(folder, "ranks-tokens_per_forward", **both_have["tokens_per_forward"])
        .model_copy(update={"pairs_per_forward": 8, "tokens_per_forward": 150}),
    ]  # fmt: skip
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node=4", str(script)]
    result = subprocess.run(
        [sys.executable, "-m", *launch, json.dumps([config.model_dump() for config in configs])],
        capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | {"PYTHONPATH": "."},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    for name, settings in both_have.items():
        ranks, one = open_run(folder / f"ranks-{name}"), train(small(folder, name, **settings))
        assert ranks.status["state"] == "done"
        assert ranks.info["hardware"]["processes"] == 4
        both = (r.visits().set_index(["step", "pair_id"]).sort_index() for r in (ranks, one))
        pd.testing.assert_frame_equal(*both, atol=1e-6, rtol=1e-5)
        columns = ["loss", "grad_norm", "ema_mean", "ema_std"]
        pd.testing.assert_frame_equal(
            ranks.metrics()[columns], one.metrics()[columns], rtol=1e-6, atol=1e-9
        )


def test_a_batch_that_does_not_divide_over_the_processes_is_a_sentence():
    config = TrainConfig(name="x", batch_pairs=24)  # less than pairs_per_forward, which is a limit
    check_processes(config, SimpleNamespace(num_processes=2))
    with pytest.raises(RunError, match=r"multiple of the number of processes \(5\)"):
        check_processes(config, SimpleNamespace(num_processes=5))


def test_bfloat16_trains_fp32_weights_and_says_its_noise(folder):
    run = train(small(folder, "bf16", precision="bf16"))
    weights = safetensors.torch.load_file(trained_checkpoint(run) / WEIGHTS)
    assert {w.dtype for w in weights.values()} == {torch.float32}
    assert "autocast" in run.info["reference"]["precision"]
    assert 0 < run.info["margin_noise"]["step_0_std"] < 0.1


def test_pairs_without_a_difference_are_said(folder, tmp_path, caplog):
    same = "then chop it . " * 4
    rows = [
        {"prompt": PROMPT, "chosen": same + tail, "rejected": same + "well"}
        for tail in ("so", "um", "hmm")
    ]
    file = tmp_path / "alike.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    changes = {"data": str(file), "num_pairs": None, "max_length": 12}
    with pytest.raises(DataError, match="3 of 3 pairs have the same tokens on both sides"):
        train(small(folder, "alike", **changes))
    rows.append({"prompt": PROMPT, "chosen": "then chop it .", "rejected": "then boil it ."})
    file.write_text("\n".join(map(json.dumps, rows)))
    run = train(small(folder, "alike", **changes))  # the failed run gave its name back
    assert "3 of 4 pairs have the same tokens" in caplog.text
    assert "3 of 4 pairs have the same tokens on both sides" in run.data_sentence()


HALF_ALIKE = {"max_length": 16, "num_pairs": None, "flip_rate": 0.0, "learning_rate": 3e-3}


@pytest.fixture(scope="module")
def half_alike(tmp_path_factory):
    """32 pairs of which each differs, and 32 that a maximum length of 16 makes alike."""
    verbs, same = ("chop", "boil", "salt", "cook"), "then chop it . " * 4
    rows = [
        {"prompt": f"{a} soup . skip {b} .", "chosen": f"then {a} it .", "rejected": f"{end} ."}
        for a in verbs
        for b in verbs
        for end in ("well", "so")
    ]
    rows += [
        {"prompt": f"{a} soup . skip {b} .", "chosen": same + end, "rejected": same + "well"}
        for a in verbs
        for b in verbs
        for end in ("um", "so")
    ]
    path = tmp_path_factory.mktemp("alike") / "half.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.mark.parametrize("objective", ["plc", "dpo"])
def test_pairs_of_the_same_tokens_are_no_evidence(folder, half_alike, objective, monkeypatch):
    short = partial(FlipPosterior, steps=2, pairs=8)
    monkeypatch.setattr(pipeline, "FlipPosterior", short)
    changes = {"data": half_alike, "objective": objective, **HALF_ALIKE}
    name = f"half-alike-{objective}"
    run = train(small(folder, name, save_steps=2, **changes))
    visits, metrics, pairs = run.visits(), run.metrics(), run.pairs(["pair_id", "chosen"])
    alike = set(pairs.loc[pairs["chosen"].str.startswith("then chop it . then"), "pair_id"])
    equal = visits["pair_id"].isin(alike)
    assert equal.sum() == len(alike) == 32
    read = ["z", "q_clean", "q_flip", "q_tie", "confidence", "weight", "p_flip"]
    assert visits.loc[equal, read].isna().all().all()
    assert not visits.loc[~equal].drop(columns="p_flip").isna().any().any()
    assert not visits.loc[equal, ["margin", "policy_chosen"]].isna().any().any()
    # As if they were not there: the statistics are those of the others alone, step by step.
    router, posterior = (
        build_objective("plc", beta=run.info["config"]["beta"]).router,
        short(),
    )
    for step, rows in visits[~equal].groupby("step"):
        margin = torch.tensor(rows["margin"].to_numpy()).double()
        routing = router(margin, progress=step / 4)
        expected = {"z": routing.z, "q_flip": routing.flip, "p_flip": posterior(margin)}
        for column, values in expected.items():
            torch.testing.assert_close(
                torch.tensor(rows[column].to_numpy()).double(), values,
                atol=2e-4, rtol=1e-3, equal_nan=True,
            )  # fmt: skip
        posterior.observe(margin, before_any_update=step == 0)
        line = metrics.set_index("step").loc[step]
        assert line["q_flip"] == pytest.approx(routing.flip.mean().item(), abs=1e-4)
        assert line["margin_mean"] == pytest.approx(margin.mean().item(), abs=1e-6)
        assert line["ema_mean"] == pytest.approx(
            router.calibration.statistics()[0].item(), abs=1e-5
        )
    config, _ = interrupted(folder, f"{name}-cut", monkeypatch, 3, **changes)
    resumed = train(config.model_copy(update={"resume": True}))
    pd.testing.assert_frame_equal(resumed.visits(), visits)


def test_the_share_of_pairs_without_a_difference_is_of_all_that_were_read(
    folder, half_alike, caplog
):
    changes = {"data": half_alike, "data_actions": {"identical-tokens": "drop"}, **HALF_ALIKE}
    run = train(small(folder, "half-left-out", **changes))
    assert len(run.pairs()) == 32
    assert "32 of 64 pairs have the same tokens on both sides and are left out" in caplog.text
    assert not run.visits().drop(columns="p_flip").isna().any().any()


@pytest.mark.parametrize(("objective", "options"), [("re-po", {}), ("gamma-po", {"gamma_0": 0.5})])
def test_objectives_with_a_state_train_and_resume(folder, monkeypatch, objective, options):
    changes = {"objective": objective, "objective_options": options}
    whole = train(small(folder, f"whole-{objective}", save_steps=2, **changes))
    config, _ = interrupted(folder, f"cut-{objective}", monkeypatch, 3, **changes)
    resumed = train(config.model_copy(update={"resume": True}))
    pd.testing.assert_frame_equal(resumed.visits(), whole.visits())
    assert "gamma" not in whole.metrics()
    with pytest.raises(ValueError, match="would ignore 'strength'"):
        train(small(folder, "wrong", objective=objective, objective_options={"strength": 1}))
    assert not (folder / "wrong").exists()


def test_the_fake_run_of_the_apps_tests_has_the_shape_of_a_real_one(plc):
    fake = fake_info(TrainConfig(**plc.info["config"]))
    real = open_run(plc.path).info
    assert set(fake) == set(real)
    for name in ("data", "reference", "model", "hardware", "git", "versions", "margin_noise"):
        assert set(fake[name]) == set(real[name]), name
        kinds = {key: type(value) for key, value in fake[name].items()}
        assert kinds == {key: type(value) for key, value in real[name].items()}, name


def test_evaluation_answers_held_out_prompts_and_says_the_kl(folder, plc):
    table = evaluate(plc, prompts=24)
    assert table["n"].tolist() == [24] * 4
    generations = plc.table("generations/world.parquet")
    assert len(generations) == 24 * 4
    assert generations.groupby(["policy", "decoding"]).size().tolist() == [24] * 4
    assert len(plc.table("generations/world-log-probs.parquet")) == 24
    trained = [turn[0]["content"] for turn in plc.pairs(["prompt"])["prompt"]]
    assert not set(trained) & set(generations["prompt"])
    assert load_trained(plc).num_parameters() == 354_304


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "'name' is missing"),
        ({"name": "x", "gama_max": 0.8}, "Unknown parameter 'gama_max'"),
        ({"name": "x", "flip_rat": 0.1}, "did you mean 'flip_rate'"),
        ({"name": "x", "beta": "large"}, "'beta' is 'large'"),
        ({"name": "x", "beta": True}, "'beta' is True"),
        ({"name": "x", "beta": -1}, "'beta' is -1"),
        ({"name": "x", "beta": float("nan")}, "'beta' is nan"),
        ({"name": "x", "seed": 1.5}, "'seed' is 1.5"),
        ({"name": "x", "seed": "1"}, "'seed' is '1'"),
        ({"name": "x", "objective": "dpoo"}, "'objective' is 'dpoo'"),
        ({"name": "x", "flip_rate": 1.2}, "'flip_rate' is 1.2"),
        ({"name": "x", "pairs_per_forward": 0}, "'pairs_per_forward' is 0"),
        ({"name": "x", "prior": [0.5, 0.5, 0.5]}, "sum to 1"),
        ({"name": "x", "resume": "yes"}, "'resume' is 'yes'"),
        ({"name": None}, "'name' is None"),
        ({"name": "x", "seed": 2**32}, "'seed' is 4294967296"),
        ({"name": "x", "beta": "1_0"}, "'beta' is '1_0'"),
        (
            {"name": "x", "objective_options": {"recipe": "bold"}},
            "recipe is a parameter of its own",
        ),
    ],
)
def test_wrong_parameters_are_a_sentence_each(values, sentence):
    with pytest.raises(ParameterError, match=sentence):
        checked(values, TrainConfig)


def test_a_number_in_exponent_form_is_a_number():
    assert checked({"name": "x", "learning_rate": "1e-5"}, TrainConfig).learning_rate == 1e-5
    assert checked({"name": "x", "beta": 1}, TrainConfig).beta == 1.0
