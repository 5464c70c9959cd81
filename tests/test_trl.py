"""TRL 1.16: the same losses and gradients, and the adapter inside a script of its users."""

import importlib
import json
import math

import pandas as pd
import pytest
import torch
from datasets import Dataset, load_dataset
from inspection.digest import digest
from transformers import MixtralConfig, MixtralForCausalLM
from trl import DPOConfig, DPOTrainer

from plc_core.data import pairs_from_rows
from plc_core.data.world import sample_prompts, write_response
from plc_core.engine import trl_adapter
from plc_core.engine.checkpoints import STATE_FILE
from plc_core.engine.forward.logprobs import pair_logps
from plc_core.engine.forward.packing import PairCollator
from plc_core.engine.models.load import load_policy
from plc_core.engine.tokens.tokenized import tokenize_pairs
from plc_core.engine.trl_adapter import ObjectiveDPOTrainer
from plc_core.objective import PairLogps, build_objective
from plc_core.runs import open_run
from plc_core.runs.cleaned import export_cleaned
from plc_core.runs.decisions import decide
from plc_core.runs.visit_files import VISITS_SCHEMA
from plc_core.storage.files import RunError
from tests.fake_run import write_fake_run
from tests.rewritten import rewrite

BETA = 0.3


@pytest.fixture(scope="module")
def rows():
    rng = __import__("numpy").random.default_rng(1)
    return [
        {"prompt": p.text, "chosen": write_response(p, rng), "rejected": write_response(p, rng)}
        for p in sample_prompts(16, seed=9)
    ]


def conversations(rows):
    def said(role, content):
        return [{"role": role, "content": content}]

    return Dataset.from_list(
        [
            {
                "prompt": said("user", row["prompt"]),
                "chosen": said("assistant", row["chosen"]),
                "rejected": said("assistant", row["rejected"]),
            }
            for row in rows
        ]
    )


def arguments(folder, **changes):
    settings = {
        "output_dir": str(folder), "beta": BETA, "per_device_train_batch_size": 8,
        "max_length": 256, "learning_rate": 1e-3, "logging_steps": 1, "report_to": [],
        "use_cpu": True, "disable_tqdm": True, "gradient_checkpointing": False,
        "save_strategy": "no", "bf16": False,
    }  # fmt: skip
    return DPOConfig(**(settings | changes))


def trainer(rows, folder, cls=DPOTrainer, more=None, **changes):
    policy, tokenizer = load_policy("world")
    return cls(
        model=policy,
        args=arguments(folder, **changes),
        train_dataset=rows if isinstance(rows, Dataset) else conversations(rows),
        processing_class=tokenizer,
        **(more or {}),
    )


def moved(model):
    """Away from the reference, where margins are not all 0."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter += 0.02 * parameter.abs().mean() * noise


def test_pairs_of_the_same_tokens_are_outside_the_adapters_statistics(rows, tmp_path):
    alike = [row | {"rejected": row["chosen"]} for row in rows[8:]]
    more = {"objective": build_objective("plc", beta=BETA)}
    adapted = trainer([*rows[:8], *alike], tmp_path, ObjectiveDPOTrainer, more,
                      per_device_train_batch_size=16, max_steps=2)  # fmt: skip
    adapted.current_gradient_accumulation_steps = 1
    moved(adapted.model)
    [batch] = adapted.get_train_dataloader()
    del batch[trl_adapter.INDEX]  # visits are of a training, which this is not
    distinct = trl_adapter._distinct(batch)
    assert distinct.sum() == sum(row["chosen"] != row["rejected"] for row in rows[:8]) >= 7
    adapted.model.train()
    with torch.no_grad():
        adapted.compute_loss(adapted.model, batch)
    mean, deviation = more["objective"].router.calibration.statistics()
    half = len(batch["input_ids"]) // 2
    mask = batch["completion_mask"][:, 1:]
    with torch.no_grad():
        logits = adapted.model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).logits[:, :-1]
    logps = logits.log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    policy = (logps * mask).sum(1)
    margin = (
        BETA
        * (policy[:half] - policy[half:] - batch["ref_chosen_logps"] + batch["ref_rejected_logps"])[
            distinct
        ].double()
    )
    assert mean.item() == pytest.approx(margin.mean().item(), abs=1e-5)
    assert deviation.item() == pytest.approx(margin.std(correction=0).item(), abs=1e-5)
    adapted.state.log_history.clear()
    routed = more["objective"].router(margin, 0.0, update=False)
    adapted.log({})
    assert adapted.state.log_history[0]["routing/q_flip"] == pytest.approx(
        routed.flip.mean().item(), abs=1e-4
    )


@pytest.mark.parametrize(
    ("theirs", "name", "options"),
    [
        ({}, "dpo", {}),
        ({"loss_type": ["hinge"]}, "rso", {}),
        ({"loss_type": ["robust"], "label_smoothing": 0.1}, "rdpo-robust", {"epsilon": 0.1}),
        (
            # TRL 1.16 has no cDPO; this combination of two of its losses equals it.
            {"loss_type": ["sigmoid", "robust"], "label_smoothing": 0.1,
             "loss_weights": [2 * 0.9, -0.8]},
            "cdpo",
            {"epsilon": 0.1},
        ),
        ({"loss_type": ["ipo"]}, "ipo", {"tau": BETA}),
    ],
    ids=["dpo", "hinge", "robust", "cdpo", "ipo"],
)  # fmt: skip
def test_losses_and_gradients_equal_trls(rows, tmp_path, theirs, name, options):
    reference = trainer(rows, tmp_path, precompute_ref_log_probs=True, **theirs)
    model = reference.model
    before, tokenizer = load_policy("world")
    moved(model)
    batch = next(iter(reference.get_train_dataloader()))
    model.train()
    loss = reference.compute_loss(model, batch)
    loss.backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()

    # The same pairs as this package sees them, in the order in which TRL drew them.
    packed = PairCollator(256)(_drawn(rows, tokenizer, batch))
    with torch.no_grad():
        ours_reference = pair_logps(before, packed)
    lengths = packed["lengths"].view(-1, 2)
    logps = PairLogps(*pair_logps(model, packed), *ours_reference, *lengths.unbind(1))
    ours = build_objective(name, beta=BETA, **options)(logps, progress=0.0).loss.mean()
    ours.backward()
    torch.testing.assert_close(ours, loss.detach(), rtol=1e-4, atol=1e-4)
    scale = max(g.abs().max() for g in expected.values())
    for parameter, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[parameter], rtol=1e-3, atol=1e-4 * scale.item())


def _drawn(rows, tokenizer, batch):
    tokens = list(tokenize_pairs(pairs_from_rows(rows, "test"), tokenizer, 256).dataset)
    by_ids = {tuple(t["prompt_ids"] + t["chosen_ids"]): t for t in tokens}
    half = len(batch["input_ids"]) // 2
    # Found by their ids: so TRL's tokens and these are the same.
    return [
        by_ids[tuple(ids[mask.bool()].tolist())]
        for ids, mask in zip(batch["input_ids"][:half], batch["attention_mask"][:half], strict=True)
    ]


def test_the_adapter_trains_dpo_as_trl_does(rows, tmp_path):
    plain = trainer(rows, tmp_path / "plain", precompute_ref_log_probs=True)
    plain.train()
    adapted = trainer(
        rows,
        tmp_path / "adapted",
        ObjectiveDPOTrainer,
        {"objective": build_objective("dpo", beta=BETA)},
    )
    adapted.train()
    theirs, ours = (
        [log["loss"] for log in t.state.log_history if "loss" in log] for t in (plain, adapted)
    )
    assert len(theirs) == 6
    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-4)
    shadow = [log for log in adapted.state.log_history if "routing/q_flip" in log]
    assert len(shadow) == 6
    assert shadow[0]["routing/q_clean"] == pytest.approx(0.8, abs=0.01)
    assert "routing/gamma" not in shadow[0]  # DPO corrects nothing
    assert len(open_run(tmp_path / "adapted" / "runs" / "training-1").visits()) == 3 * len(rows)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_adapter_calibrates_once_a_step_and_survives_a_stop(rows, tmp_path, accumulation):
    changes = {
        "per_device_train_batch_size": 8 // accumulation,
        "gradient_accumulation_steps": accumulation,
        "save_strategy": "steps",
        "save_steps": 2,
    }

    def run(folder):
        return trainer(
            rows, folder, ObjectiveDPOTrainer, {"objective": build_objective("plc", beta=BETA)},
            **changes,
        )  # fmt: skip

    whole = run(tmp_path / "whole")
    whole.train()
    record = open_run(tmp_path / "whole" / "runs" / "training-1")
    _record_agrees_with_logs(record, whole.state.log_history)
    visits = record.visits()
    state = json.loads((tmp_path / "whole" / "checkpoint-2" / STATE_FILE).read_text())
    # The bias-corrected EMA's mass after two steps, whatever the accumulation.
    assert state["objective"]["calibration"]["average"][2] == pytest.approx(1 - 0.98**2)
    resumed = run(tmp_path / "whole")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert resumed.objective.state_dict() == whole.objective.state_dict()
    pd.testing.assert_frame_equal(record.visits(), visits)  # taken back to step 2, and made again
    assert [path.name for path in record.path.parent.glob("training-*")] == ["training-1"]
    (tmp_path / "whole" / "checkpoint-4" / STATE_FILE).unlink()
    with pytest.raises(RunError, match=f"has no {STATE_FILE}"):
        run(tmp_path / "whole").train(
            resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4")
        )
    assert len(record.visits()) == len(visits)


def _record_agrees_with_logs(record, logs):
    visits, metrics = record.visits(), record.metrics()
    logs = pd.DataFrame([log for log in logs if "routing/weight" in log])
    assert visits.groupby("step").size().tolist() == [8] * 6
    assert visits[VISITS_SCHEMA.names].drop(columns="p_flip").notna().all(axis=None)
    for name in ("q_clean", "q_flip", "q_tie", "confidence", "weight"):
        means = visits.groupby("step")[name].mean()
        assert logs[f"routing/{name}"].tolist() == pytest.approx(means.tolist(), abs=1e-6)
    assert logs["routing/gamma"].tolist() == pytest.approx(metrics["gamma"].tolist(), abs=1e-6)
    assert metrics["gamma"].iloc[-1] > metrics["gamma"].iloc[0] == 0
    assert metrics["grad_norm"].tolist() == pytest.approx(logs["grad_norm"].tolist(), rel=1e-4)
    assert metrics["loss"].tolist() == pytest.approx(logs["loss"].tolist(), rel=1e-3)
    assert metrics["learning_rate"].tolist() == pytest.approx(logs["learning_rate"].tolist())
    assert (record.status["state"], record.status["step"], record.is_trained) == ("done", 6, True)


def test_a_pair_of_the_adapters_record_is_the_users_row(rows, tmp_path):
    """By the id that `load_pairs` gives it, once more where the row is there twice."""
    odd = {**rows[1], "rejected": ""}  # TRL trains it
    several = [*rows[:5], rows[0], odd]
    data = conversations(several).add_column("mine", [f"row {i}" for i in range(7)])
    policy, tokenizer = load_policy("world")
    args = arguments(tmp_path, num_train_epochs=1)
    objective = build_objective("plc", beta=BETA)
    adapted = ObjectiveDPOTrainer(
        policy, args=args, train_dataset=data, processing_class=tokenizer, objective=objective
    )
    adapted.train()
    record = open_run(tmp_path / "runs" / "training-1")
    pairs = record.pairs()
    assert pairs["pair_id"].tolist()[:5] == pairs_from_rows(rows[:5], "mine").dataset["pair_id"][:]
    assert pairs["pair_id"].is_unique
    assert sorted(record.visits()["pair_id"]) == sorted(pairs["pair_id"])
    fifth, again, last = (record.pair(pairs["pair_id"][i]) for i in (4, 5, 6))
    assert fifth["chosen"] == rows[4]["chosen"]
    assert fifth["prompt"] == [{"role": "user", "content": rows[4]["prompt"]}]
    assert json.loads(fifth["metadata"]) == {"mine": "row 4"}
    assert again["chosen"] == rows[0]["chosen"]
    assert rows[1]["chosen"] in last["chosen"]
    # The tokens of the log-probs are the pair's, in whatever order they were drawn.
    tokens = adapted.train_dataset.to_pandas().set_index(pairs["pair_id"])
    visits = record.visits().set_index("pair_id").join(tokens)
    assert visits["reference_chosen"].tolist() == pytest.approx(visits["ref_chosen_logps"].tolist())
    assert digest(record).visits == 7  # what the inspector shows


def test_the_adapters_reward_metrics_use_the_objectives_beta(rows, tmp_path):
    args = {"objective": build_objective("plc", beta=0.01)}
    adapted = trainer(rows, tmp_path, ObjectiveDPOTrainer, args, beta=0.1)
    adapted.train()
    assert adapted.beta == 0.01
    logs = [log for log in adapted.state.log_history if "rewards/margins" in log]
    assert abs(logs[-1]["rewards/margins"]) < 0.2  # ten times that with TRL's default of 0.1


def test_a_log_prob_that_is_not_finite_stops_the_adapter(rows, tmp_path, monkeypatch):
    def poisoned():
        adapted = trainer(
            rows, tmp_path, ObjectiveDPOTrainer, {"objective": build_objective("dpo", beta=BETA)}
        )
        data = adapted.train_dataset
        values = list(data["ref_chosen_logps"])
        values[5] = math.nan
        data = data.remove_columns("ref_chosen_logps").add_column("ref_chosen_logps", values)
        adapted.train_dataset = data
        return adapted

    name = pairs_from_rows(rows, "test").dataset["pair_id"][5]
    for _ in range(2):
        with pytest.raises(RunError, match=f"1 pairs of this step .* not finite .*: {name}. The"):
            poisoned().train()
        # As on a GPU, where the objective does not wait to look: found once a step.
        monkeypatch.setattr("plc_core.objective.base._on_cpu", lambda m: False)
    status = [open_run(tmp_path / "runs" / f"training-{number}").status for number in (1, 2)]
    assert [s["state"] for s in status] == ["failed", "failed"]


def test_the_balancing_loss_of_a_mixture_of_experts_is_kept(rows, tmp_path):
    def mixture():
        torch.manual_seed(0)
        return MixtralForCausalLM(
            MixtralConfig(
                hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, vocab_size=203, num_local_experts=4,
                output_router_logits=True, router_aux_loss_coef=0.5,
            )
        )  # fmt: skip

    _, tokenizer = load_policy("world")
    shared = {"train_dataset": conversations(rows[:8]), "processing_class": tokenizer}
    plain = DPOTrainer(
        model=mixture(), args=arguments(tmp_path / "a", precompute_ref_log_probs=True), **shared
    )
    adapted = ObjectiveDPOTrainer(
        model=mixture(), args=arguments(tmp_path / "b"),
        objective=build_objective("dpo", beta=BETA), **shared,
    )  # fmt: skip
    theirs, ours = (
        next(log["loss"] for log in _trained(t).state.log_history if "loss" in log)
        for t in (plain, adapted)
    )
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert ours > 1.0  # log 2 alone without it


def _trained(trainer):
    trainer.train()
    return trainer


def test_another_version_of_trl_is_refused_at_import(monkeypatch):
    monkeypatch.setattr("trl.__version__", "1.17.0")
    with pytest.raises(ImportError, match=r"tested with TRL 1\.16; 1\.17\.0 is installed"):
        importlib.reload(trl_adapter)
    monkeypatch.undo()
    importlib.reload(trl_adapter)


def test_evaluation_in_the_adapter_moves_no_state(rows, tmp_path):
    adapted = trainer(
        rows,
        tmp_path,
        ObjectiveDPOTrainer,
        {
            "objective": build_objective("plc", beta=BETA),
            "eval_dataset": conversations(rows[:4]),
        },
    )
    adapted.train()
    before = adapted.objective.state_dict()
    metrics = adapted.evaluate()
    assert math.isfinite(metrics["eval_loss"])
    assert adapted.objective.state_dict() == before
    assert any("eval_routing/q_flip" in log for log in adapted.state.log_history)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"loss_type": ["hinge"]}, r"loss_type=\['hinge'\] changes TRL's own loss"),
        ({"label_smoothing": 0.1}, "label_smoothing=0.1 changes"),
        ({"ld_alpha": 0.5}, "ld_alpha=0.5 changes"),
    ],
)
def test_options_that_would_be_ignored_are_refused(rows, tmp_path, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        trainer(rows, tmp_path, ObjectiveDPOTrainer,
                {"objective": build_objective("plc", beta=BETA)}, **changes)  # fmt: skip
    with pytest.raises(ValueError, match="they must agree"):
        trainer(rows, tmp_path, ObjectiveDPOTrainer,
                {"objective": build_objective("plc", beta=0.01)})  # fmt: skip


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_the_cleaned_export_of_a_run_is_what_trl_takes(rows, tmp_path, form):
    run = open_run(write_fake_run(tmp_path, "run", pairs=len(rows), votes=True))
    pairs = pd.read_parquet(run.path / "pairs.parquet")
    own = [
        # As rows come: some lack a field, one is of another kind, one has TRL's name for a text.
        {"id": f"row-{n}", "chosen-rating": n, "rejected-rating": -n, "note": "mine"}
        | ({"grade": "A" if n else 7, "messages": None, "lang": {"code": "en"}} if n % 2 else {})
        for n in range(len(rows))
    ]
    pairs = pairs.assign(
        prompt=[[{"role": "user", "content": row["prompt"]}] for row in rows],
        chosen=[row["chosen"] for row in rows],
        rejected=[row["rejected"] for row in rows],
        metadata=[json.dumps(row) for row in own],
        votes=None,
    )
    rewrite(run.path / "pairs.parquet", pairs)
    for place, decision in enumerate(("flip", "tie", "drop", "keep")):
        decide(run, pairs["pair_id"][place], decision, "why")
    path, counts = export_cleaned(run, form, ties=False)
    exported = load_dataset(
        {"jsonl": "json"}.get(form, form),
        data_files=str(path),
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    assert exported["id"] == [f"row-{n}" for n in range(len(rows)) if n not in (1, 2)]
    assert (counts["tie"], counts["ties"]) == (1, 1)
    assert not any(exported["tie"])
    assert set(exported["note"]) == {"mine"}
    assert exported["plc_note"][:2] == ["why", "why"]
    for line in exported:
        number = int(line["id"].removeprefix("row-"))
        said = rows[number]["chosen"], rows[number]["rejected"]
        rated = number, -number
        turned = number == 0 or (number > 3 and pairs["flipped"][number])
        # Ratings are of the data as it was read, and so is an undecided pair.
        reversed_ = turned != bool(pairs["flipped"][number])
        assert (line["chosen"][0]["content"], line["rejected"][0]["content"]) == (
            said[::-1] if turned else said
        )
        assert (line["chosen-rating"], line["rejected-rating"]) == (
            rated[::-1] if reversed_ else rated
        )
    start = trainer(exported, tmp_path / "out", max_steps=1)
    assert start.train().global_step == 1
    # The answers reach the model as the same messages do.
    same = trainer(exported.select_columns(["prompt", "chosen", "rejected"]), tmp_path / "same")
    assert start.train_dataset["chosen_ids"] == same.train_dataset["chosen_ids"]
