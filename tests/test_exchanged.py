"""Whole files that are copied from one run into another: none is read as if it were the other's."""

import json
import re
import shutil

import pandas as pd
import pytest

from plc_core import TrainConfig, evaluate, train
from plc_core.engine.checkpoints import last_checkpoint, load_trained, trained_checkpoint
from plc_core.files import RunError, read_json, write_json
from plc_core.runs import create_run, open_run
from plc_core.storage import cached_folder, is_whole


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two runs that differ in their seed alone, with three checkpoints, answers and rewards."""
    folder = tmp_path_factory.mktemp("two")
    for number, name in enumerate(("one", "other")):
        run = train(
            TrainConfig(
                name=name, runs_dir=str(folder), num_pairs=20, epochs=2.0, batch_pairs=8,
                pairs_per_forward=4, save_steps=2, flip_rate=0.3, learning_rate=1e-3, seed=number,
            )
        )  # fmt: skip
        evaluate(run, prompts=4)
        create_run(folder, f"report-{number}", {"kind": "analysis"})
    return folder


@pytest.fixture
def runs(two, tmp_path):
    """Copies of both, to exchange files between."""
    shutil.copytree(two, tmp_path / "runs")
    return tmp_path / "runs"


def read_whole(run):
    """Everything that a run says, read as training, the reports and the app read it."""
    run.status, run.metrics(), run.pairs(), run.findings(), run.visits()
    run.table("generations/world.parquet"), run.table("judgements/gold-world.parquet")
    for name in ("generations/world.json", "judgements/gold-world.json"):
        read_json(run.path / name)
    last_checkpoint(run)


FILES = [
    "status.json", "metrics.parquet", "pairs.parquet", "findings.parquet",
    "visits/00000000-00000001.parquet",
    "generations/world.parquet", "generations/world.json",
    "judgements/gold-world.parquet", "judgements/gold-world.json",
]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_run_is_a_sentence(runs, name):
    run = open_run(runs / "one")
    read_whole(run)
    shutil.copy(runs / "other" / name, run.path / name)
    with pytest.raises(RunError, match=f"{re.escape(name)} is of another run.*Put a copy of it"):
        read_whole(run)


def test_the_record_of_another_run_is_a_sentence(runs):
    shutil.copy(runs / "other" / "run.json", runs / "one" / "run.json")
    run = open_run(runs / "one")
    for read in (lambda: run.status, run.metrics, run.pairs, run.findings, run.visits):
        with pytest.raises(RunError, match="is of another run: it was not written for the one who"):
            read()


def test_a_checkpoint_of_another_run_is_neither_gone_on_from_nor_answers(runs):
    run = open_run(runs / "one")
    name = trained_checkpoint(run).relative_to(run.path)
    shutil.rmtree(run.path / name)
    shutil.copytree(runs / "other" / name, run.path / name)
    sentence = rf"{re.escape(str(name))}/checksums\.json is of another run.*Delete the folder"
    for use in (last_checkpoint, load_trained):
        with pytest.raises(RunError, match=sentence):
            use(run)
    (run.path / name / "checksums.json").unlink()
    for use in (last_checkpoint, load_trained):
        with pytest.raises(RunError, match=r"checksums\.json is damaged or missing. Delete"):
            use(run)


def test_a_checkpoint_under_the_name_of_a_later_one_is_not_taken_for_it(runs):
    run = open_run(runs / "one")
    folder = run.path / "checkpoints"
    shutil.copytree(folder / "checkpoint-2", folder / "checkpoint-9")
    for use in (last_checkpoint, load_trained):
        with pytest.raises(RunError, match=r"written as checkpoints/checkpoint-2/.*-9/.*Delete"):
            use(run)


def test_a_run_that_is_renamed_moved_copied_or_resumed_stays_the_same_run(runs, tmp_path):
    before = open_run(runs / "one")
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(runs / "one", runs / "copy")
    (runs / "one").rename(tmp_path / "elsewhere" / "renamed")
    for path in (runs / "copy", tmp_path / "elsewhere" / "renamed"):
        run = open_run(path)
        assert run.info["run_id"] == before.info["run_id"]
        read_whole(run)
        config = {"name": path.name, "runs_dir": str(path.parent), "resume": True}
        again = train(TrainConfig(**run.info["config"] | config))
        assert again.info["run_id"] == before.info["run_id"]
        read_whole(again)


def test_a_resumed_run_writes_what_is_read_as_its_own(runs):
    run = open_run(runs / "one")
    expected = run.visits()
    run.update_info(trained_steps=None)
    shutil.rmtree(run.path / "checkpoints" / "checkpoint-6")
    config = run.info["config"] | {"runs_dir": str(runs), "resume": True}
    again = train(TrainConfig(**config))
    assert again.info["run_id"] == run.info["run_id"]
    read_whole(again)
    pd.testing.assert_frame_equal(again.visits(), expected)


def test_a_report_that_is_made_again_keeps_its_id(runs):
    before = open_run(runs / "report-0")
    run = create_run(runs, "report-0", {"kind": "analysis"})
    assert run.info["run_id"] == before.info["run_id"] == open_run(run.path).info["run_id"]
    assert run.status["state"] == "queued"


def test_files_of_a_run_without_an_id_are_read_and_those_of_others_are_not(runs):
    """As older versions left it: with checksums, and without an id anywhere."""
    path = runs / "one"
    info = read_json(path / "run.json")
    del info["run_id"]
    tables = {name: open_run(path).table(name) for name in ("metrics.parquet", "findings.parquet")}
    write_json(path / "run.json", info)
    with pytest.raises(RunError, match=r"metrics\.parquet is of another run"):
        open_run(path).metrics()
    run = open_run(path)
    (path / "metrics.parquet").unlink()
    run.update_info(trained_steps=None)
    run.append_metrics(tables["metrics.parquet"].to_dict("records"))
    pd.testing.assert_frame_equal(run.metrics(), tables["metrics.parquet"])
    with pytest.raises(RunError, match=r"metrics\.parquet is of another run"):
        shutil.copy(path / "metrics.parquet", runs / "other" / "metrics.parquet")
        open_run(runs / "other").metrics()


def test_a_training_outlives_damage_to_its_record(runs):
    run = open_run(runs / "one")
    run.set_status(step=1)
    record = (run.path / "run.json").read_bytes()
    (run.path / "run.json").write_bytes(record[: len(record) // 2])
    run.set_status(step=2)
    run.update_info(trained_steps=6)
    assert open_run(run.path).status["step"] == 2


def test_the_cache_has_no_run(runs, tmp_path):
    def make(folder):
        write_json(folder / "made.json", {"rows": 1})

    entry = cached_folder(tmp_path / "cache" / "entry", make)
    assert "run_id" not in json.loads((entry / "made.json").read_text())
    # In a run that was copied into another, it is made anew.
    inside = cached_folder(runs / "one" / "cache" / "entry", make)
    assert is_whole(inside)
    shutil.copytree(runs / "one" / "cache", runs / "other" / "cache")
    assert not is_whole(runs / "other" / "cache" / "entry")
    assert is_whole(cached_folder(runs / "other" / "cache" / "entry", make))
