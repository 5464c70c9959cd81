"""Training runs on the embedded world: the record, invariance, resuming, bad input."""

import json
import shutil

import pandas as pd
import pytest
import torch
from transformers import TrainerCallback

from plc_core import evaluate
from plc_core.engine import pipeline
from plc_core.engine.config import TrainConfig
from plc_core.engine.objective_state import STATE_FILE
from plc_core.engine.pipeline import last_checkpoint, train
from plc_core.engine.trainer import PreferenceTrainer
from plc_core.evaluation.generate import load_trained
from plc_core.files import RunError
from plc_core.objective import PairLogps, build_objective
from plc_core.parameters import ParameterError, checked
from plc_core.runs import open_run

SMALL = {
    "num_pairs": 64, "batch_pairs": 16, "pairs_per_forward": 16, "flip_rate": 0.3,
    "eval_prompts": 0, "learning_rate": 1e-3,
}  # fmt: skip
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
    return json.loads((run.path / "checkpoints" / f"checkpoint-{step}" / STATE_FILE).read_text())


def weights_of(run):
    return (last_checkpoint(run) / WEIGHTS).read_bytes()


def test_the_run_folder_says_everything(plc):
    run = open_run(plc.path)
    assert run.status["state"] == "done"
    assert (run.status["step"], run.status["total_steps"]) == (4, 4)
    assert run.info["config"]["objective"] == "plc"
    assert run.info["calibration_order"] == "update-first"
    assert run.info["data"]["rows"] == len(run.pairs()) == 64
    assert run.info["data"]["flipped"] == run.pairs()["flipped"].sum() > 5
    assert run.info["reference"]["weights"]
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
    assert not visits.isna().any().any()


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


def test_step_zero_is_the_reference(plc):
    first = plc.visits().query("step == 0")
    assert first["margin"].abs().max() < 1e-4
    assert plc.metrics()["loss"][0] == pytest.approx(0.693147, abs=1e-5)


@pytest.fixture(scope="module")
def in_double():
    """Double precision: Adam divides by the gradient's size, so fp32 noise would grow to 1e-3."""
    with pytest.MonkeyPatch.context() as patch:
        original = pipeline.load_policy
        patch.setattr(
            pipeline, "load_policy", lambda *args: (lambda m, t: (m.double(), t))(*original(*args))
        )
        yield


@pytest.fixture(scope="module")
def whole_step(folder, in_double):
    return train(small(folder, "whole", calibration_order="score-first"))


@pytest.mark.parametrize("pairs_per_forward", [1, 4, 8])
def test_score_first_does_not_depend_on_how_a_step_is_split(
    folder, in_double, whole_step, pairs_per_forward
):
    run = train(
        small(
            folder,
            f"split-{pairs_per_forward}",
            calibration_order="score-first",
            pairs_per_forward=pairs_per_forward,
        )
    )
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


@pytest.mark.parametrize(
    ("name", "changes"),
    [("plc", {}), ("dpo", {"objective": "dpo"}), ("lora", {"lora_rank": 4})],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(folder, monkeypatch, name, changes):
    whole = train(small(folder, f"uninterrupted-{name}", save_steps=2, **changes))
    config, _ = interrupted(folder, f"resumed-{name}", monkeypatch, 3, **changes)
    resumed = train(config.model_copy(update={"resume": True}))
    pd.testing.assert_frame_equal(resumed.visits(), whole.visits())
    timing = ["seconds", "pairs_per_second"]
    pd.testing.assert_frame_equal(
        resumed.metrics().drop(columns=timing), whole.metrics().drop(columns=timing)
    )
    assert state_of(resumed, 4) == state_of(whole, 4)
    file = WEIGHTS if name != "lora" else "adapter_model.safetensors"
    both = [(last_checkpoint(r) / file).read_bytes() for r in (resumed, whole)]
    assert both[0] == both[1]
    assert resumed.status["state"] == "done"


def test_a_checkpoint_without_its_state_is_a_sentence(folder, monkeypatch):
    config, run = interrupted(folder, "stateless", monkeypatch, 3)
    (run.path / "checkpoints" / "checkpoint-2" / STATE_FILE).unlink()
    visits = run.visits()
    with pytest.raises(RunError, match=f"has no {STATE_FILE}"):
        train(config.model_copy(update={"resume": True}))
    pd.testing.assert_frame_equal(open_run(run.path).visits(), visits)


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"step": 2, "objective": {}}',
                '{"step": 2, "objective": {"calibration": {"average": [1, 2]}}}']
)  # fmt: skip
def test_a_damaged_state_is_a_sentence(folder, plc, content, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(plc.path, copy)
    (copy / "checkpoints" / "checkpoint-4" / STATE_FILE).write_text(content)
    config = TrainConfig(
        **(plc.info["config"] | {"name": "copy", "runs_dir": str(tmp_path), "resume": True})
    )
    info = open_run(copy).info | {"config": config.model_dump()}
    (copy / "run.json").write_text(json.dumps(info))
    with pytest.raises(RunError, match=r"plc_state\.json"):
        train(config)


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


def test_evaluation_answers_held_out_prompts_and_says_the_kl(folder, plc):
    table = evaluate(plc, prompts=24)
    assert table["n"].tolist() == [24] * 4
    generations = plc.table("generations/world.parquet")
    assert len(generations) == 24 * 4
    reference = generations[generations["policy"] == "reference"]
    assert (reference["policy_logp"] == reference["reference_logp"]).all()
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
        ({"name": "x", "pairs_per_forward": 48}, r"\(48\) must divide batch_pairs \(64\)"),
        ({"name": "x", "prior": [0.5, 0.5, 0.5]}, "sum to 1"),
        ({"name": "x", "resume": "yes"}, "'resume' is 'yes'"),
    ],
)
def test_wrong_parameters_are_a_sentence_each(values, sentence):
    with pytest.raises(ParameterError, match=sentence):
        checked(values, TrainConfig)


def test_a_number_in_exponent_form_is_a_number():
    assert checked({"name": "x", "learning_rate": "1e-5"}, TrainConfig).learning_rate == 1e-5
    assert checked({"name": "x", "beta": 1}, TrainConfig).beta == 1.0
