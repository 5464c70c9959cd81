"""Whole files in the place of others, of another run or of the same: none is read as the other."""

import itertools
import json
import os
import pickle
import re
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inspection.digest import digest

from plc_core import TrainConfig, evaluate, train
from plc_core.analysis.routing.pooling import pooled_visits
from plc_core.data import DataError, load_pairs
from plc_core.engine.checkpoints import last_checkpoint, load_trained, trained_checkpoint
from plc_core.engine.models.load import ModelError, load_policy
from plc_core.label_audit.blind_check import BlindCheck
from plc_core.runs import create_run, open_run, visit_files
from plc_core.runs.cleaned import export_cleaned
from plc_core.runs.decisions import decide, read_decisions, undo
from plc_core.runs.visit_files import files_to_read
from plc_core.storage.cache import ContentStore, cached_folder, cached_table, is_whole
from plc_core.storage.checksums import sealed_json
from plc_core.storage.files import ForeignFileError, RunError, read_json, write_json, write_table
from plc_core.storage.identity import Origin
from plc_core.storage.seals import parquet_seal, seal_parquet


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
    run = open_run(run.path)
    run.status, run.metrics(), run.pairs(), run.findings(), run.visits()
    for name in TABLES[6:]:
        run.table(name)
    for name in RECORDS[1:]:
        read_json(run.path / name)
    last_checkpoint(run)


VISITS = [f"visits/{first:08d}-{first + 1:08d}.parquet" for first in (0, 2, 4)]
TABLES = [
    "metrics.parquet", "pairs.parquet", "findings.parquet", *VISITS,
    "generations/world.parquet", "judgements/gold-world.parquet",
]  # fmt: skip
RECORDS = ["run.json", "status.json", "generations/world.json", "judgements/gold-world.json"]
FILES = TABLES + RECORDS[1:]


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
        with pytest.raises(RunError, match=r"written as checkpoints/checkpoint-2/.*-9/.* delete"):
            use(run)


@pytest.mark.parametrize("name", TABLES + RECORDS)
def test_a_file_of_the_same_run_in_the_place_of_another_is_a_sentence(runs, name):
    """Also the records of checkpoints, which are the only other JSON that says where it belongs."""
    run = open_run(runs / "one")
    read_whole(run)
    raw = (run.path / name).read_bytes()
    state = "checkpoints/checkpoint-6/plc_state.json"
    for other in TABLES if name in TABLES else [*RECORDS, state]:
        if other == name:
            continue
        shutil.copy(run.path / other, run.path / name)
        sentence = f"{name} was written as {other}, and lies in the place of {name}. Put a copy"
        with pytest.raises(RunError, match=re.escape(sentence)):
            read_whole(run)
        (run.path / name).write_bytes(raw)
    read_whole(run)


def test_a_record_of_a_library_does_not_pass_for_one_of_the_run(runs):
    run = open_run(runs / "one")
    shutil.copy(trained_checkpoint(run) / "trainer_state.json", run.path / "status.json")
    with pytest.raises(RunError, match=r"status\.json is damaged: it has no checksum"):
        _ = run.status


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(VISITS, 2)))
def test_visits_of_other_steps_are_a_sentence_for_app_analysis_and_resume(runs, source, target):
    run = open_run(runs / "one")
    before = run.visits()
    shutil.copy(run.path / source, run.path / target)
    shutil.rmtree(run.path / "checkpoints" / "checkpoint-6")
    config = TrainConfig(**run.info["config"] | {"runs_dir": str(runs), "resume": True})
    run.update_info(trained_steps=None)
    uses = [run.visits, lambda: digest(run), lambda: pooled_visits([run]), lambda: train(config)]
    for use in uses:
        with pytest.raises(RunError, match=f"{target} was written as {source}, and lies in"):
            use()
    if target == VISITS[2]:  # whose steps are after the checkpoint, and are made again
        (run.path / target).unlink()
        pd.testing.assert_frame_equal(train(config).visits(), before)


def test_visits_of_other_steps_than_their_name_says_are_a_sentence(runs):
    """As if they had been written there: their place is right."""
    run = open_run(runs / "one")
    write_table(run.path / VISITS[1], pq.read_table(run.path / VISITS[0]))
    for use in (run.visits, lambda: digest(run)):
        with pytest.raises(RunError, match=f"{VISITS[1]} holds steps 0 to 1, and not those in its"):
            use()


@pytest.mark.parametrize("name", ["0-of-mine.parquet", "00000006-00000007.parquet"])
def test_a_file_without_steps_says_nothing_against_its_name(runs, name):
    run = open_run(runs / "one")
    write_table(run.path / "visits" / name, pa.table({"pair_id": ["of mine"]}))
    assert run.visits()["step"].isna().sum() == 1


def test_the_steps_of_a_file_are_looked_up_once(runs, monkeypatch):
    run = open_run(runs / "one")
    for name in VISITS:
        os.utime(run.path / name, (1, 1))
    before = run.visits()
    monkeypatch.setattr(visit_files.pq, "read_metadata", None)
    pd.testing.assert_frame_equal(run.visits(), before)
    write_table(run.path / VISITS[0], pq.read_table(run.path / VISITS[0]))
    with pytest.raises(TypeError, match="not callable"):
        run.visits()


def test_a_step_twice_is_a_sentence_and_the_beginning_of_a_longer_file_is_not(runs):
    run = open_run(runs / "one")
    before = run.visits()
    table = pq.read_table(run.path / VISITS[1])
    beginning = run.path / "visits" / "00000002-00000002.parquet"
    write_table(beginning, table.filter(pa.compute.equal(table["step"], 2)))
    pd.testing.assert_frame_equal(run.visits(), before)  # a kill while the longer one was cut
    assert digest(run).visits == len(before)
    beginning.unlink()
    again = run.path / "visits" / "00000003-00000003.parquet"
    write_table(again, table.filter(pa.compute.equal(table["step"], 3)))
    sentence = rf"{again.name} has visits of step 3, which 00000002-00000003\.parquet has as well"
    for use in (run.visits, lambda: digest(run)):
        with pytest.raises(RunError, match=sentence):
            use()
    names = ["00000000-00000003.parquet", "00000002-00000005.parquet"]
    with pytest.raises(RunError, match=r"00000002-00000005\.parquet has visits of step 2, which"):
        files_to_read(run.path, names)


def test_checkpoints_of_one_run_exchanged_are_a_sentence(runs):
    run = open_run(runs / "one")
    folder = run.path / "checkpoints"
    (folder / "checkpoint-4").rename(folder / "aside")
    (folder / "checkpoint-6").rename(folder / "checkpoint-4")
    (folder / "aside").rename(folder / "checkpoint-6")
    sentence = r"written as checkpoints/checkpoint-4/.* Rename the folder .* back to checkpoint-4; "
    for use in (last_checkpoint, load_trained):
        with pytest.raises(RunError, match=sentence):
            use(run)
    with pytest.raises(ModelError, match=sentence):
        load_policy(str(folder / "checkpoint-6"))
    (folder / "checkpoint-6").rename(folder / "aside")
    (folder / "checkpoint-4").rename(folder / "checkpoint-6")
    (folder / "aside").rename(folder / "checkpoint-4")
    assert last_checkpoint(run) == folder / "checkpoint-6"


def test_checkpoints_that_do_not_say_their_place_are_known_by_their_step(runs):
    run = open_run(runs / "one")
    folder = run.path / "checkpoints"
    shutil.rmtree(folder / "checkpoint-6")
    (folder / "checkpoint-4").rename(folder / "checkpoint-6")
    record = folder / "checkpoint-6" / "checksums.json"
    content = json.loads(record.read_text())
    del content["written_as"], content["checksum"]
    record.write_text(sealed_json(json.dumps(content, indent=1)) + "\n")
    for use in (last_checkpoint, load_trained):
        with pytest.raises(
            RunError, match=r"of step 4\. Rename the folder .* back to checkpoint-4"
        ):
            use(run)


@pytest.mark.parametrize("name", ["best", "checkpoints/best", "models/checkpoint-6", "../model"])
def test_a_copy_of_a_checkpoint_and_a_link_to_it_are_models(runs, name):
    run = open_run(runs / "one")
    checkpoint, best = trained_checkpoint(run), run.path / name
    best.parent.mkdir(exist_ok=True)
    best.symlink_to(checkpoint)
    load_policy(str(best))
    best.unlink()
    shutil.copytree(checkpoint, best)
    load_policy(str(best))
    assert last_checkpoint(run) == checkpoint
    (best / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json is damaged"):
        load_policy(str(best))


def test_a_checkpoint_of_another_run_is_a_model_by_a_link_and_not_by_a_copy(runs):
    best = runs / "one" / "best"
    best.symlink_to(trained_checkpoint(open_run(runs / "other")))
    load_policy(str(best))
    best.unlink()
    shutil.copytree(trained_checkpoint(open_run(runs / "other")), best)
    with pytest.raises(ModelError, match=r"if you copied it here yourself, delete that checksums"):
        load_policy(str(best))
    (best / "checksums.json").unlink()
    load_policy(str(best))


def test_a_linked_checkpoint_is_gone_on_from_where_it_is_of_the_run(runs, tmp_path):
    run = open_run(runs / "one")
    checkpoint = trained_checkpoint(run)
    checkpoint.rename(tmp_path / "larger-disk")
    checkpoint.symlink_to(tmp_path / "larger-disk")
    assert last_checkpoint(run) == checkpoint
    load_trained(run)
    checkpoint.unlink()
    checkpoint.symlink_to(trained_checkpoint(open_run(runs / "other")))
    for use in (last_checkpoint, load_trained):
        with pytest.raises(RunError, match=r"is of another run.*Delete the folder"):
            use(run)


def test_a_sentence_about_a_foreign_file_comes_out_of_a_worker_as_it_was(runs):
    shutil.copy(runs / "one" / "pairs.parquet", runs / "one" / "metrics.parquet")
    with pytest.raises(ForeignFileError) as caught:
        open_run(runs / "one").metrics()
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert (again.path, again.why) == (caught.value.path, caught.value.why)
    assert again.written_as == "pairs.parquet"


def test_files_that_do_not_say_their_place_are_read(runs):
    """As versions before wrote them: with the run's id alone."""
    run = open_run(runs / "one")
    run_id = run.info["run_id"]
    for name in TABLES:
        pq.write_table(pq.read_table(run.path / name), run.path / name)
        seal_parquet(run.path / name, Origin(run_id))
        assert parquet_seal(run.path / name).origin == Origin(run_id)
    for name in RECORDS:
        content = json.loads((run.path / name).read_text())
        assert content.pop("written_as") == name
        del content["checksum"]
        (run.path / name).write_text(sealed_json(json.dumps(content, indent=1)) + "\n")
    read_whole(run)
    shutil.copy(run.path / VISITS[0], run.path / VISITS[1])
    with pytest.raises(RunError, match=f"{VISITS[1]} holds steps 0 to 1, and not those in its"):
        run.visits()


def test_the_place_is_from_the_run_however_one_comes_to_it(runs, tmp_path, monkeypatch):
    run = open_run(runs / "one")
    (tmp_path / "link").symlink_to(runs)
    read_whole(open_run(tmp_path / "link" / "one"))
    (run.path / "visits").rename(tmp_path / "visits")
    (run.path / "visits").symlink_to(tmp_path / "visits")  # on a larger disk
    read_whole(run)
    monkeypatch.chdir(run.path)
    read_whole(open_run("."))
    monkeypatch.chdir(run.path / "generations")
    read_whole(open_run(".."))
    os.link(run.path / "metrics.parquet", tmp_path / "metrics.parquet")
    read_whole(run)
    odd = run.path / "generations" / "odd\udcff é.json"  # no UTF-8, as a file system may have it
    write_json(odd, {"rows": 1})
    assert read_json(odd) == {"rows": 1}


def test_lines_of_another_run_are_neither_decisions_nor_verdicts(runs):
    """A pair has one id in both, and may have its label reversed in one of them alone."""
    one, other = open_run(runs / "one"), open_run(runs / "other")
    pair = str(one.pairs()["pair_id"].iloc[0])
    log = one.path / "decisions" / "decisions.jsonl"
    decide(one, pair, "flip")
    (other.path / "decisions").mkdir()
    shutil.copy(log, other.path / "decisions")
    for use in (read_decisions, undo):
        with pytest.raises(RunError, match=r"line 1, is .*no decision \(it was written in anoth"):
            use(other)
    entry = json.loads(log.read_text())
    assert entry.pop("run_id") == one.info["run_id"]
    del entry["checksum"]
    log.write_text(json.dumps(entry) + "\n")  # as a person, or an older version, leaves it
    assert read_decisions(one)[pair].decision == "flip"
    for run in (one, other):
        (run.path / "blind_check").mkdir()
    BlindCheck(one.path).add(pair, "left")
    assert len(BlindCheck(one.path).verdicts()) == 1
    shutil.copy(one.path / "blind_check" / "verdicts.jsonl", other.path / "blind_check")
    with pytest.raises(RunError, match=r"line 1, is .* no verdict \(it was written in another run"):
        BlindCheck(other.path).verdicts()


def test_an_export_of_another_run_is_a_sentence(runs, tmp_path):
    paths = [export_cleaned(open_run(runs / name))[0] for name in ("one", "other")]
    expected = load_pairs(paths[1]).table
    shutil.copy(paths[1], paths[0])
    with pytest.raises(DataError, match=r"cleaned\.parquet is of another run.*Write it anew"):
        load_pairs(paths[0])
    assert load_pairs(shutil.copy(paths[1], tmp_path)).table == expected  # it may lie anywhere else


def test_lines_are_read_where_the_run_is_not_known(runs):
    one = open_run(runs / "one")
    (one.path / "blind_check").mkdir()
    BlindCheck(one.path).add(str(one.pairs()["pair_id"].iloc[0]), "left")
    shutil.copytree(one.path / "blind_check", runs / "kept" / "blind_check")
    assert len(BlindCheck(runs / "kept").verdicts()) == 1  # outside of runs
    (runs / "kept" / "run.json").write_text("{")
    assert len(BlindCheck(runs / "kept").verdicts()) == 1


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


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def test_an_entry_of_the_cache_in_the_place_of_another_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("PLC_CACHE", str(tmp_path))

    def folder(name: str) -> str:
        def make(new: Path) -> None:
            (new / "said").write_text(name)

        return (cached_folder(tmp_path / "tokens" / name, make) / "said").read_text()

    def table(name: str) -> str:
        return str(cached_table("pairs", name, lambda: pa.table({"said": [name]}))["said"][0])

    def store(name: str) -> ContentStore:
        schema = pa.schema([("key", pa.string()), ("said", pa.string())])
        return ContentStore("answers", {"of": name}, schema)

    for name in ("one", "other"):
        assert (folder(name), table(name)) == (name, name)
        store(name).add([{"key": "q", "said": name}])
    exchange(tmp_path / "tokens" / "one", tmp_path / "tokens" / "other")
    exchange(*(tmp_path / "pairs").glob("*.parquet"))
    exchange(*(next(store(name).folder.glob("[0-9a-f]*.parquet")) for name in ("one", "other")))
    for name in ("one", "other"):
        assert (folder(name), table(name)) == (name, name)
        assert "q" not in store(name)
