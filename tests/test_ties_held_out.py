"""Exact ties of several scored answers a prompt, and pairs that are kept out of training."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import ValidationError

from notebooks.studies.routing_probe import held_out_pairs, held_out_ties
from notebooks.studies.tie_selectivity import ExactTieConfig
from plc_core import TrainConfig, train
from plc_core.data import DATASETS, DataError, load_pairs, split_held_out
from plc_core.data.slices import prompt_digests
from plc_core.engine.row_sources import load_ties, source_of
from plc_core.engine.training_pairs import trained_and_held_out
from plc_core.progress import Progress
from plc_core.storage.files import RunError
from tests.fake_run import change_json

ASPECTS = ("helpfulness", "honesty", "instruction_following", "truthfulness")


def answer(text, score, rating=4, **other):
    """A completion as openbmb/UltraFeedback has it."""
    notes = {a: {"Rating": str(rating), "Rationale": "so"} for a in ASPECTS}
    return {
        "model": f"model of {text}",
        "principle": "honesty",
        "custom_system_prompt": "be good",
        "response": text,
        "critique": "well",
        "overall_score": score,
        "fine-grained_score": rating if rating != "N/A" else None,
        "annotations": notes,
    } | other


def row(instruction, *answers, source="flan"):
    models = [a["model"] for a in answers]
    return {"source": source, "instruction": instruction, "models": models,
            "completions": list(answers), "correct_answers": ["None"],
            "incorrect_answers": ["None"]}  # fmt: skip


ROWS = [
    row("one tie", answer("a", 7.0), answer("b", 7.0), answer("c", 5.0), answer("d", 3.0)),
    row("two ties", answer("a", 7.0), answer("b", 6.5), answer("c", 6.5), answer("d", 7.0)),
    row("three alike", answer("a", 8.0), answer("b", 8.0), answer("c", 8.0), answer("d", 2.0)),
    row("none", answer("a", 8.0), answer("b", 7.0), answer("c", 6.0), answer("d", 2.0)),
    row("a text twice", answer("a", 8.0), answer("a", 8.0), answer("c", 6.0), answer("d", 2.0)),
    row("by ratings", answer("a", None, 4), answer("b", None, 4), answer("c", None, 3),
        answer("d", None, "N/A")),
    row("one was ten", answer("a", 10.0, 1), answer("b", 10.0, 5), answer("c", 6.0),
        answer("d", 2.0)),
    row("both are ten", answer("a", 10.0, 5), answer("b", 10.0, 5), answer("c", 6.0),
        answer("d", 2.0)),
    row("no scores", answer("a", None, "N/A"), answer("b", None, "N/A")),
]  # fmt: skip
TIES = {  # answers by prompt: each in one tie at most, level scores alone
    "one tie": [{"a", "b"}],
    "two ties": [{"a", "d"}, {"b", "c"}],
    "by ratings": [{"a", "b"}],
    "both are ten": [{"a", "b"}],
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A local copy of some of the dataset's files; truthful_qa is none of those that are read."""
    folder = tmp_path / "UltraFeedback"
    folder.mkdir()
    for name, rows in (("flan", ROWS[:5]), ("sharegpt", ROWS[5:])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "truthful_qa.jsonl").write_text(
        json.dumps(row("not this", answer("a", 1.0), answer("b", 1.0)))
    )
    return folder


def found(pairs):
    """The answers of each tie by prompt."""
    ties = {}
    for pair in pairs.dataset:
        ties.setdefault(pair["prompt"][0]["content"], []).append({pair["chosen"], pair["rejected"]})
        assert pair["score_chosen"] == pair["score_rejected"]
    return {prompt: sorted(own, key=sorted) for prompt, own in ties.items()}


def test_the_ties_of_ultrafeedbacks_four_answers(copy: Path) -> None:
    config = TrainConfig(
        name="x", data="ultrafeedback", model="m", tie_rate=0.3, tie_pool_files=str(copy)
    )
    pool = load_ties(source_of(config.data), config, Progress())
    assert {p: own for p, own in found(pool).items() if p != "three alike"} == TIES
    assert len(found(pool)["three alike"]) == 1  # of three, no answer stands in two
    assert set(pool.table["source"].to_pylist()) == {"ultrafeedback"}
    metadata = json.loads(pool.dataset[0]["metadata"])
    assert metadata["subset"] == "flan"
    assert metadata["model_chosen"] == f"model of {pool.dataset[0]['chosen']}"
    # Rows read are ties kept and rows listed, each with its reason.
    report = pool.report()
    assert pool.rows_read == len(pool) + report.count("no-tie") + report.count("ten-was-one") + 1
    (reason,) = set(report.of_rule("no-tie")["reason"][:1])
    assert reason == "the scores of the answers are 8, 7, 6, 2"
    assert "mean rating is 1" in report.of_rule("ten-was-one")["reason"].item()
    assert "two answers with a score" in report.of_rule("wrong-type")["reason"].item()


def test_the_dataset_is_pinned_and_a_file_serves_as_well(copy: Path) -> None:
    public = DATASETS[DATASETS["ultrafeedback"].tie_pool or ""]
    assert public.repository == "openbmb/UltraFeedback"
    assert len(public.revision) == 40
    config = TrainConfig(
        name="x", data="own.jsonl", tie_rate=0.3, tie_pool=str(copy / "flan.jsonl")
    )
    pool = load_ties(source_of(config.data), config, Progress())
    assert set(found(pool)) == {"one tie", "two ties", "three alike"}
    with pytest.raises(ValidationError, match="tie_rate needs a tie_pool: a file of pairs with"):
        TrainConfig(name="x", data="hh-rlhf", tie_rate=0.3)
    # So the tables of exact ties start from a recipe of the paper's alone.
    study = ExactTieConfig(
        name="x", recipe="paper/qwen2.5-7b", benchmarks=["vicuna"], judge="some/model",
        common={"held_out": 8000},
    )  # fmt: skip
    assert study.variants()["dpo 0.3"] == {"objective": "dpo", "tie_rate": 0.3}
    # Read as pairs, such rows are listed and never guessed.
    with pytest.raises(DataError, match="holds several answers, not a pair"):
        load_pairs(copy / "flan.jsonl")


def pair_rows(count, a_prompt=1):
    return [
        {"prompt": f"p{n // a_prompt}", "chosen": f"good {n}", "rejected": f"bad {n}",
         "score_chosen": 1.0 + n % 3, "score_rejected": 0.0}
        for n in range(count)
    ]  # fmt: skip


@pytest.fixture
def pairs_file(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, pair_rows(60, 2))))
    return path


def test_whole_prompts_are_held_out_the_same_for_all(pairs_file: Path) -> None:
    pairs = load_pairs(pairs_file)
    train_part, held_out = split_held_out(pairs, 20)
    assert len(held_out) == 20
    assert len(train_part) + len(held_out) == len(pairs)
    assert not set(prompt_digests(train_part)) & set(prompt_digests(held_out))
    report = train_part.report()
    assert report.count("held-out") == 20
    assert report.rows_read == report.rows_kept + 20
    _, fewer = split_held_out(pairs, 7)
    assert len(fewer) == 8  # the last prompt has two pairs
    assert set(fewer.table["pair_id"].to_pylist()) < set(held_out.table["pair_id"].to_pylist())
    with pytest.raises(DataError, match="held_out is 60 of 60 pairs, which leaves none"):
        split_held_out(pairs, 60)


def test_a_run_never_sees_what_it_holds_out_nor_ties_of_such_prompts(
    pairs_file: Path, tmp_path: Path
) -> None:
    ties = [row(f"p{n}", answer("x", 5.0), answer("y", 5.0)) for n in range(30)]
    ties += [row(f"fresh {n}", answer("x", 5.0), answer("y", 5.0)) for n in range(20)]
    pool = tmp_path / "answers.jsonl"
    pool.write_text("\n".join(map(json.dumps, ties)))
    config = TrainConfig(
        name="r", runs_dir=str(tmp_path / "runs"), data=str(pairs_file), model=tiny(tmp_path),
        held_out=20, tie_rate=0.25, tie_pool=str(pool), batch_pairs=20, pairs_per_forward=20,
        eval_prompts=0, flip_rate=0.2,
    )  # fmt: skip
    run = train(config)
    _, held_out = trained_and_held_out(config, Progress())
    assert held_out is not None
    unseen = {pair["prompt"][0]["content"] for pair in held_out.dataset}
    trained = run.pairs(["prompt", "injected_tie"])
    assert trained["injected_tie"].sum() == 10
    assert not unseen & {turns[0]["content"] for turns in trained["prompt"]}
    findings = run.findings()
    assert (findings["rule"] == "held-out").sum() == 20
    # Read zero-shot: with the labels that they were read with, and ties of prompts never seen.
    probe = held_out_pairs(run, 12)
    assert [pair["pair_id"] for pair in probe.dataset] == held_out.table["pair_id"].to_pylist()[:12]
    assert not any(pair["flipped"] for pair in probe.dataset)
    mixed = held_out_ties(run, 20, 0.25)
    table = pd.DataFrame(mixed.dataset[:])
    assert table["injected_tie"].sum() == 5
    said = {turns[0]["content"] for turns in table["prompt"]}
    assert not said & {turns[0]["content"] for turns in trained["prompt"]}


def test_data_without_a_test_split_say_how_to_hold_pairs_out(
    pairs_file: Path, tmp_path: Path
) -> None:
    config = TrainConfig(
        name="r", runs_dir=str(tmp_path / "runs"), data=str(pairs_file), model=tiny(tmp_path),
        batch_pairs=60, pairs_per_forward=60, eval_prompts=0,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"trained on all of its prompts.*Set held_out in common"):
        held_out_pairs(train(config), 10)
    # A run of before there was such a parameter goes on: it held nothing out.
    change_json(tmp_path / "runs" / "r" / "run.json", config=without(config, "held_out"))
    assert train(config.model_copy(update={"resume": True})).is_trained
    with pytest.raises(RunError, match="other parameters: held_out changed"):
        train(config.model_copy(update={"resume": True, "held_out": 10}))
    part = train(TrainConfig(**config.model_dump() | {"name": "part", "num_pairs": 40}))
    rest = held_out_pairs(part, 10)
    assert [pair["chosen"] for pair in rest.dataset] == [f"good {n}" for n in range(40, 50)]


def without(config: TrainConfig, name: str) -> dict[str, Any]:
    return {k: v for k, v in config.model_dump().items() if k != name}


def tiny(folder: Path) -> str:
    from tests.real_shapes import tiny_model

    return tiny_model(folder / "model")
