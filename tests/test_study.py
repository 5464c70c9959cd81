"""The study end to end on the smallest numbers, what it keeps, and how the next call goes on."""

import contextlib
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import psutil
import pytest
import yaml

from notebooks.replication.__main__ import main
from notebooks.replication.measures import accuracy, agreement, of_training, of_votes
from notebooks.replication.plan import (
    SLICES,
    Choice,
    Job,
    ReplicationConfig,
    jobs_of,
    read_study,
    seed_by_seed,
)
from notebooks.replication.results import Results
from notebooks.replication.splits import prepare
from notebooks.replication.worker import Laboratory
from plc_core.analysis.audit import ALIKE_LENGTH
from plc_core.data import load_pairs
from plc_core.engine.config import TrainConfig
from plc_core.engine.models.load import model_identity
from plc_core.runs import open_run
from plc_core.storage.files import RunError
from tests.fake_run import write_fake_run
from tests.paths import ROOT, shared_file
from tests.real_shapes import tiny_model
from tests.waiting import is_alive, wait_for

RECIPES = ROOT / "notebooks" / "recipes" / "study"


def recipe(recipe_name, **changes):
    return ReplicationConfig(
        **(yaml.safe_load((RECIPES / f"{recipe_name}.yaml").read_text()) | changes)
    )


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_job_of_a_recipe_is_a_training_run_of_a_name_of_its_own(path):
    study = read_study(str(path))
    names = ("train-all", "train-scored", "train-helpful", "train-fresh", "tie-base", "ties")
    files = {name: f"{name}.jsonl" for name in names}
    jobs = [job for part in ("choice", "main", "frontier", "ties", "variants")
            for job in jobs_of(study, part)]  # fmt: skip
    assert len({job.name for job in jobs}) == len(jobs) > 5
    choice = study.choice or Choice(learning_rate=1e-5, beta=0.1)
    configs = [job.config(study, None if job.slice == "choice" else choice, files) for job in jobs]
    assert all(isinstance(config, TrainConfig) for config in configs)


def test_a_part_of_the_jobs_is_the_whole_study_with_fewer_seeds():
    study = read_study("notebooks/recipes/study/smollm2.yaml")
    jobs = seed_by_seed(jobs_of(study, name) for name in SLICES if name != "choice")
    first = jobs[: len(jobs) // len(study.seeds)]
    assert {job.seed for job in first} == {study.seeds[0]}
    assert {job.slice for job in first} == set(SLICES) - {"choice", "evidence"}  # has none
    assert len({job.name for job in jobs}) == len(jobs)


def test_the_frontier_multiplies_the_chosen_beta():
    study = recipe("smollm2", frontier=[0.5])
    job = next(iter(jobs_of(study, "frontier")))
    files = {"train-all": "x.jsonl"}
    config = job.config(study, Choice(learning_rate=1e-5, beta=0.1), files)
    assert (config.beta, config.objective, config.data) == (0.05, "dpo", "x.jsonl")


def test_the_frontier_reaches_a_larger_kl_by_the_learning_rate():
    study = recipe("smollm2", frontier=[], frontier_rates=[2.0])
    job = next(iter(jobs_of(study, "frontier")))
    config = job.config(study, Choice(learning_rate=1e-5, beta=0.1), {"train-all": "x.jsonl"})
    assert (config.beta, config.learning_rate) == (0.1, 2e-5)
    assert job.name == "frontier-dpo-lr-x2-f0-s0"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Four jobs of the tiny study, by its command, and then nothing left to do."""
    folder = tmp_path_factory.mktemp("study")
    study = yaml.safe_load((RECIPES / "tiny.yaml").read_text())
    study |= {"flip_rates": [0.0, 0.4], "seeds": [0]}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(study))
    results = str(folder / "results")
    options = [str(folder / "tiny.yaml"), "--slice", "main", "--results", results]
    options += ["--visits", str(folder / "visits"), "--minutes", "60"]
    assert main(["run", *options]) == 0
    before = (folder / "results" / "jobs.csv").read_bytes()
    assert main(["run", *options]) == 0
    assert (folder / "results" / "jobs.csv").read_bytes() == before
    return folder


def test_a_job_leaves_its_row_its_numbers_and_its_visits(ran):
    results = Results(ran / "results")
    jobs = results.jobs.set_index("method")
    assert sorted(jobs.index) == ["dpo", "dpo", "plc-aggressive", "plc-aggressive"]
    assert jobs["state"].eq("done").all()
    assert jobs["pairs"].between(90, 96).all()
    assert len(set(jobs["model"])) == 1
    assert jobs.groupby("flip_rate")["data"].nunique().tolist() == [1, 1]
    for job, measures in results.measures.groupby("job"):
        names = set(measures["measure"])
        assert {"accuracy", "ece", "kl"} <= names
        assert "noise_rate" not in names  # so few steps leave the prior
        assert {"reward_auroc", "early_share", "tie_auroc", "tie_selectivity"} <= names
        assert ("votes_trend" in names) == ("-f0-" in job)
        asked = measures.loc[measures["measure"] == "reward_auroc", "group"]
        assert sorted(asked) == ["against length", "q_flip"]
    assert results.rewards.groupby("job").size().tolist() == [8] * 4
    (file,) = (ran / "visits").glob("*.parquet")
    visits = pd.read_parquet(file)
    counted = visits.groupby("job", observed=True).size()
    assert counted.to_dict() == jobs.set_index("job")["pairs"].to_dict()
    assert visits["p_flip"].isna().all()


def test_a_job_that_failed_is_kept_with_its_reason_and_tried_again(tmp_path):
    study = yaml.safe_load((RECIPES / "tiny.yaml").read_text())
    study |= {"flip_rates": [0.4], "seeds": [0], "methods": {"dpo": {"learning_rate": 1e30}},
              "tie_methods": []}  # fmt: skip
    (tmp_path / "broken.yaml").write_text(yaml.safe_dump(study))
    options = [str(tmp_path / "broken.yaml"), "--slice", "main", "--results", str(tmp_path)]
    assert main(["run", *options, "--minutes", "60"]) == 1
    results = Results(tmp_path)
    assert results.jobs["state"].tolist() == ["failed"]
    assert "not finite" in results.jobs["reason"][0]
    assert results.finished() == set()


def test_a_killed_study_leaves_no_process_behind(tmp_path):
    options = [str(RECIPES / "tiny.yaml"), "--results", str(tmp_path / "results")]
    command = [sys.executable, "-m", "notebooks.replication", "run", *options, "--minutes", "60"]
    with (tmp_path / "log").open("wb") as log:
        study = subprocess.Popen(command, cwd=ROOT, stderr=log)
        parent = psutil.Process(study.pid)
        workers: list[psutil.Process] = []

        def begun():
            for child in parent.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "spawn_main" in " ".join(child.cmdline()):
                        workers.append(child)
            return workers

        wait_for(begun, study)
        study.kill()
        study.wait()
    wait_for(lambda: not any(is_alive(worker) for worker in workers))


def row(job, accuracy, **values):
    jobs = {"job": job, "slice": "choice", "state": "done", "seed": 0} | values
    found = {"job": job, "measure": "accuracy", "group": "select", "value": accuracy, "n": 10}
    return jobs, [found]


def test_the_choice_is_the_most_accurate_and_is_then_frozen(tmp_path):
    results = Results(tmp_path)
    a, b, c, d = (Job("choice", name, {}, 0) for name in "abcd")
    results.add(*row(a.name, 0.60, learning_rate=1e-5, beta=0.1))
    with pytest.raises(RunError, match="1 of 3 jobs of the slice choice are done"):
        results.freeze([a, b, c])
    results.add(*row(b.name, 0.62, learning_rate=3e-5, beta=0.1))
    results.add(*row(c.name, 0.62, learning_rate=1e-5, beta=0.3))
    results.add(*row("choice-of-another-grid", 0.70, learning_rate=1e-4, beta=0.1))
    assert results.freeze([a, b, c]) == Choice(learning_rate=1e-5, beta=0.3)
    results.add(*row(d.name, 0.90, learning_rate=9e-5, beta=0.1))
    assert Results(tmp_path).freeze([a, b, c, d]) == Choice(learning_rate=1e-5, beta=0.3)
    assert len(json.loads((tmp_path / "choice.json").read_text())["table"]) == 3


def test_a_job_is_done_when_all_its_numbers_are_written(tmp_path, monkeypatch):
    """Killed between two files, it is run again."""
    written = []
    monkeypatch.setattr(
        "notebooks.replication.results.write_csv", lambda p, t: written.append(p.name)
    )
    rewards = [{"job": "a", "prompt": 0, "reward": 1.0, "kl": 0.1, "tokens": 3}]
    Results(tmp_path).add(*row("a", 0.60), rewards)
    assert written == ["measures.csv", "rewards.csv.gz", "jobs.csv"]


def test_a_failed_job_takes_its_old_numbers_with_it(tmp_path):
    results = Results(tmp_path)
    results.add(*row("a", 0.60))
    results.add({"job": "a", "slice": "main", "state": "failed", "reason": "x"})
    assert not len(Results(tmp_path).measures)


def test_two_calls_do_not_write_into_one_folder(tmp_path):
    refused = pytest.raises(RunError, match="Another call writes into")
    with Results(tmp_path).alone(), refused, Results(tmp_path).alone():
        pass


def test_a_question_writes_nothing_and_a_wrong_study_is_a_sentence(tmp_path, capsys):
    tiny = str(RECIPES / "tiny.yaml")
    assert main(["status", tiny, "--results", str(tmp_path / "none")]) == 0
    assert not (tmp_path / "none").exists()
    wrong = yaml.safe_load((RECIPES / "tiny.yaml").read_text()) | {"seedz": [1]}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    assert main(["status", str(tmp_path / "wrong.yaml")]) == 1
    said = capsys.readouterr().err
    assert "wrong.yaml" in said and "seedz" in said and "pydantic" not in said


def test_results_made_with_other_settings_are_not_gone_on_with(tmp_path, ran, capsys):
    study = yaml.safe_load((ran / "tiny.yaml").read_text())
    other = study | {"choice": {"learning_rate": 5.0e-4, "beta": 0.1}}
    other["methods"] = study["methods"] | {
        "plc-aggressive": {"objective": "plc", "recipe": "balanced"}
    }
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    jobs = (ran / "results" / "jobs.csv").read_bytes()
    for what in ("status", "run"):
        given = [what, str(tmp_path / "other.yaml"), "--results", str(ran / "results")]
        assert main(given) == 1
        assert "other settings (choice, methods: plc-aggressive; " in capsys.readouterr().err
    assert (ran / "results" / "jobs.csv").read_bytes() == jobs


def test_methods_seeds_and_rates_may_be_added_to_results(tmp_path):
    results, study = Results(tmp_path), recipe("tiny")
    results.agree_with(study, keep=True)
    more = study.methods | {"cdpo": {"objective": "cdpo"}}
    results.agree_with(recipe("tiny", methods=more, seeds=[0, 1, 2], flip_rates=[0.2]), keep=True)
    results.agree_with(study)
    with pytest.raises(RunError, match="methods: cdpo"):
        results.agree_with(recipe("tiny", methods=more | {"cdpo": {"objective": "dpo"}}))


@pytest.mark.parametrize("name", ["smollm2", "world"])
def test_the_results_that_are_kept_are_of_the_recipes(name):
    folder = ROOT / "data" / "results" / name
    assert (folder / "study.json").exists()
    Results(folder).agree_with(recipe(name))


def test_results_of_another_version_are_a_sentence(tmp_path):
    (tmp_path / "jobs.csv").write_text("job,other\na,1\n")
    with pytest.raises(RunError, match="is of another version"):
        Results(tmp_path)


def pair(prompt, number, **scores):
    answers = {"chosen": f"good {prompt} {number}", "rejected": f"bad {prompt} {number}"}
    return {"prompt": prompt, "source": "s"} | answers | scores


@pytest.fixture
def files(tmp_path):
    scored = [pair(f"q {i // 2}", i, score_chosen=2.0, score_rejected=1.0) for i in range(200)]
    scored += [pair("tied one", 0, score_chosen=1.0, score_rejected=1.0), pair("Tied, one!", 1)]
    scored += [pair("asked", 0), pair("voted", 0)]
    helpful = [pair(f"Q: {i}", i) for i in range(100)]
    votes = [{"prompt": "voted", "response_a": "a", "response_b": "b", "votes": ["a", "tie"]}]
    prompts = [{"benchmark": "vicuna_bench", "prompt": ["asked"]}]
    named = {"scored": scored, "helpful": helpful, "votes": votes, "prompts": prompts}
    for name, rows in named.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return {name: str(tmp_path / f"{name}.jsonl") for name in named}


def test_adapters_an_audit_and_a_judge_with_other_tokens(tmp_path, files):
    """All that a study of a large model needs, with two tiny ones."""
    for name, seed in (("model", 0), ("judge", 1)):
        tiny_model(tmp_path / name, seed)
    own = str(tmp_path / "model")
    methods = {"dpo": {"objective": "dpo"}, "cdpo-w": {"objective": "cdpo", "audit": "weight"}}
    train = {"lora_rank": 2, "precision": "bf16", "max_length": 64, "batch_pairs": 32}
    study = recipe(
        "label-audit", name="adapters", model=own, judge=str(tmp_path / "judge"), methods=methods,
        train=train, flip_rates=[0.2], seeds=[0], responses=1, response_tokens=4, **files,
        shares={"train": 0.4, "select": 0.0, "test": 0.3, "reward": 0.3},
    )  # fmt: skip
    laboratory = Laboratory(study, prepare(study), tmp_path / "results", tmp_path / "scratch", 1)
    before = model_identity(laboratory.policy)
    for job in jobs_of(study, "main"):
        outcome = laboratory.run(job, study.choice)
        found = {(row["measure"], row["group"]): row["value"] for row in outcome.measures}
        assert 0 <= found["accuracy", "test"] <= 1
        assert found["reward_accuracy", "test"] > 0.9  # "good" against "bad", for any backbone
        assert np.isfinite(found["kl", "responses"])
        assert (("ece", "audit p_flip") in found) == (job.audit is not None)
    assert model_identity(laboratory.policy) == before  # the reference stays as it is
    assert laboratory.judge.model is not laboratory.policy
    # The weights that were kept are those of the other backbone, and are taken up as they are.
    kept = pd.read_csv(tmp_path / "results" / "reward.csv")["weight"].to_numpy()
    assert kept == pytest.approx(laboratory.judge.weights, rel=1e-4)


def test_no_two_parts_share_a_prompt(files):
    material = prepare(recipe("smollm2", name="split", responses=1, most_pairs={}, **files))
    parts = {
        name: {row["prompt"][0]["content"] for row in load_pairs(path, split=None).dataset}
        for name, path in material.files.items()
        if name in ("train-all", "select", "test", "reward")
    }
    seen = [prompt.strip(":").lower() for prompts in parts.values() for prompt in prompts]
    assert len(seen) == len(set(seen)) >= 200
    assert not {"asked", "voted"} & set(seen)
    assert material.counts["left_out"]["prompt among votes or benchmark"] == 2
    assert {"tied one", "Tied, one!"} <= parts["train-all"]  # one prompt, but for its spelling
    assert len(load_pairs(material.files["ties"], split=None)) == 1
    assert material.prompts == [[{"role": "user", "content": "asked"}]]


def test_the_split_of_the_real_files_is_by_prompt():
    paths = {
        name: str(shared_file(f"data/{file}.jsonl.gz"))
        for name, file in {"scored": "scored_pairs", "helpful": "hh_helpful_pairs",
                           "votes": "human_votes", "prompts": "eval_prompts"}.items()
    }  # fmt: skip
    material = prepare(recipe("smollm2", name="real-split", **paths))
    pairs = {name: sum(by.values()) for name, by in material.counts["pairs"].items()}
    assert pairs["ties"] == 134
    assert 3500 < pairs["train-all"] < 4500
    assert pairs["test"] > 1000
    assert sum(pairs[p] for p in ("train-all", "select", "test", "reward")) + sum(
        material.counts["left_out"].values()
    ) == len(load_pairs(paths["scored"], split=None)) + len(
        load_pairs(paths["helpful"], split=None)
    )


def test_measures_follow_the_markers(tmp_path):
    run = open_run(write_fake_run(tmp_path, "fake", oracle=False))
    pairs = run.pairs().assign(injected_tie=False, tokens=20)
    pairs["longer"] = np.where(pairs["flipped"], -4, 4)  # the better answer is the longer one
    visits = run.visits()
    found = pd.DataFrame(of_training(visits, pairs, run.metrics()))
    value = found.set_index(["measure", "group"])["value"]
    assert value["flip_auroc", "-margin"] > 0.6
    # Of answers that are all as long, the margin per token ranks as the margin does.
    assert value["flip_auroc", "-margin per token"] == value["flip_auroc", "-margin"]
    assert value["q_flip", "flipped"] > value["q_flip", "not flipped"]
    assert value["early_share", "all"] < 0.1
    assert value["tie_selectivity", "world"] > 0.5
    # A length that says all of the label, and nothing of the gap.
    assert value["flip_auroc", "against length"] == 1.0
    assert value["tie_selectivity", f"{ALIKE_LENGTH}, world"] == 0.5


def test_accuracy_is_told_apart_by_length():
    """A policy that only likes length is right where the chosen answer is longer."""
    longer = np.array([5, 3, -2, -4])
    table = pd.DataFrame({"pair_id": list("abcd"), "source": "s", "score_chosen": 2.0,
                          "score_rejected": [1.0, 1.5, 0.0, 1.8]})  # fmt: skip
    found = pd.DataFrame(accuracy(longer.astype(float), table, longer, "test"))
    value = found.set_index(["measure", "group"])["value"]
    assert value["accuracy", "test"] == 0.5
    assert value["accuracy", "test, chosen longer"] == 1.0
    assert value["accuracy", "test, chosen not longer"] == 0.0
    assert value["accuracy", "test, wide gap"] == 0.5
    assert value["length_correlation", "test"] == pytest.approx(1)


@pytest.mark.parametrize(("likes", "area"), [(1, 1.0), (-1, 0.0)], ids=["longer", "shorter"])
def test_lengths_alone_are_asked_for_the_reward_models_disagreement(likes, area):
    """Labels mostly prefer longer answers: read from them, whatever the reward model likes."""
    longer = np.array([9, 7, 5, 3, -2, -4])
    found = pd.DataFrame(
        agreement(np.ones(6), np.full(6, 0.2), likes * longer.astype(float), longer)
    )
    rows = found.set_index(["measure", "group"])
    assert rows.loc[("reward_auroc", "against length"), "value"] == area
    assert rows.loc[("reward_auroc", "q_flip"), "value"] == 0.5
    assert rows.loc["reward_auroc", "n"].tolist() == [6, 6]


def test_votes_in_order_have_a_positive_trend():
    groups = pd.Series(["unanimous", "divergent", "tie-majority"] * 20 + [None])
    q_tie = [0.05, 0.06, 0.07] * 20 + [0.9]
    table = pd.DataFrame({"group": groups, "source": ["a"] * 30 + ["b"] * 31})
    per_token = np.array([0.1, -0.3, 0.2] * 20 + [0.0])
    longer = np.array([9, -5, 1] * 20 + [0])
    found = pd.DataFrame(of_votes(np.array(q_tie), np.zeros(61), per_token, longer, table))
    rows = found.set_index(["measure", "group"])
    value = rows["value"]
    assert value["votes_trend", "tau"] == pytest.approx(1)
    assert value["votes_trend", "tau, a"] == pytest.approx(1)
    assert value["votes_trend", f"tau, {ALIKE_LENGTH}, b"] == pytest.approx(1)
    low, tau, high = rows.loc[("votes_trend", "tau, -|margin| per token"), ["low", "value", "high"]]
    assert tau == pytest.approx(-1 / 3) and -0.6 < low < tau < high < 0
    assert value["votes_q_tie", "divergent"] == pytest.approx(0.06)


def test_a_name_says_all_that_makes_a_job_this_job():
    job = Job("ties", "re-po", {}, seed=2, tie_rate=0.3)
    assert job.name == "ties-re-po-f0-t0.3-s2"
