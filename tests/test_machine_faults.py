"""What the machine may do: a clock that goes back, no home, folders that nobody can write, two
processes at one thing. A full disk is in test_kill, one entry made by two in test_damage."""

import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from inspection.digest import digest
from reading import read_digest

from plc_core import TrainConfig, evaluate, train
from plc_core.data import load_pairs
from plc_core.engine import visits
from plc_core.engine.checkpoints import last_checkpoint, load_trained
from plc_core.evaluation.completeness import is_judged
from plc_core.evaluation.judges.named import named_judge
from plc_core.label_audit.blind_check import BlindCheck, draw
from plc_core.runs import Run, create_run, decisions, open_run, resolve
from plc_core.runs.cleaned import export_cleaned
from plc_core.runs.decisions import decide, decide_all, read_decisions
from plc_core.runs.listing import list_runs
from plc_core.storage.files import RunError, read_json, read_table, write_json, write_table
from plc_core.storage.paths import cache_dir
from tests.fake_run import write_fake_run
from tests.paths import ROOT

HOUR = 3600


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A tiny run with answers and their scores."""
    folder = tmp_path_factory.mktemp("faults")
    run = train(TrainConfig(name="whole", runs_dir=str(folder), num_pairs=8, batch_pairs=8))
    evaluate(run, prompts=4)
    return run.path


@pytest.fixture
def run(evaluated, tmp_path):
    return open_run(shutil.copytree(evaluated, tmp_path / "runs" / "whole"))


# ---- a clock that goes back ---------------------------------------------------------------------


def written_later(path, seconds=HOUR):
    """As if it had been written before the clock went back."""
    os.utime(path, (time.time() + seconds,) * 2)


def test_scores_are_of_the_answers_they_were_given_to_whatever_the_clock_says(run):
    judge, answers = named_judge("gold"), run.path / "generations" / "world.parquet"
    assert is_judged(run, "world", judge)
    written_later(answers)  # as after a copy of the folder
    assert is_judged(run, "world", judge)
    for path in (run.path / "judgements").iterdir():
        written_later(path, 2 * HOUR)
    table = read_table(answers).to_pandas()
    changed = table.assign(response=table["response"].str[::-1])
    write_table(answers, read_table(answers).from_pandas(changed, preserve_index=False))
    assert not is_judged(run, "world", judge)


def test_a_run_that_goes_on_is_read_anew_after_the_clock_went_back(tmp_path, monkeypatch):
    path = write_fake_run(tmp_path, "live", pairs=40, epochs=2, state="running")
    last = sorted((path / "visits").glob("*.parquet"))[-1]
    hidden = last.rename(tmp_path / last.name)
    run = open_run(path)
    monkeypatch.setattr("reading.is_live", lambda run: True)
    before = digest(run)
    written_later(before.folder)
    hidden.rename(last)
    assert read_digest(run).visits > before.visits


def test_a_resumed_run_and_the_list_do_not_mind_files_of_tomorrow(run):
    for path in run.path.rglob("*"):
        written_later(path, 24 * HOUR)
    assert [found.state for found in list_runs(run.path.parent)] == ["done"]
    config = run.info["config"] | {"resume": True, "runs_dir": str(run.path.parent)}
    before = run.visits()
    pd.testing.assert_frame_equal(train(TrainConfig(**config)).visits(), before)
    with run.running("evaluating"):
        assert run.status["state"] == "running"


def test_a_run_whose_folder_was_renamed_goes_on_under_its_new_name(run):
    renamed = run.path.rename(run.path.with_name("renamed"))
    before = open_run(renamed).visits()
    shutil.rmtree(renamed / "checkpoints" / "checkpoint-1")
    info = read_json(renamed / "run.json")
    del info["trained_steps"]
    write_json(renamed / "run.json", info)
    config = info["config"] | {"resume": True, "runs_dir": str(renamed.parent), "name": "renamed"}
    pd.testing.assert_frame_equal(train(TrainConfig(**config)).visits(), before)


@pytest.mark.parametrize("kind", ["training", "audit"])
def test_a_run_that_was_killed_before_it_began_leaves_its_name_free(tmp_path, kind):
    code = f"from plc_core.runs import create_run; create_run({str(tmp_path)!r}, 'x', "
    code += f"{{'kind': {kind!r}}})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert open_run(tmp_path / "x").status["state"] == "killed"
    first = create_run(tmp_path, "x", {"kind": kind})
    assert first.status["state"] == "queued"
    with pytest.raises(RunError, match="A run named 'x' exists"):
        create_run(tmp_path, "x", {"kind": kind})


# ---- places -------------------------------------------------------------------------------------


def test_without_a_home_the_cache_asks_for_a_folder(monkeypatch):
    for name in ("PLC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def without():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", without)
    with pytest.raises(RunError, match="Set PLC_CACHE"):
        cache_dir()


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs a folder that nobody can write")
def test_a_cache_that_cannot_be_written_is_a_sentence_for_pairs_too(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"prompt": "q", "chosen": "a", "rejected": "b"}\n')
    monkeypatch.setenv("PLC_CACHE", "/sys/plc")
    with pytest.raises(RunError, match=r"cache folder /sys/plc\S* cannot be written"):
        load_pairs(tmp_path / "a.jsonl")


def test_a_run_that_may_only_be_read_is_read_and_not_decided_on(run, monkeypatch):
    """As on a share of another's: root may write everywhere, so the system call is made to fail."""

    def refused(path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    pair = run.pairs(["pair_id"])["pair_id"][0]
    monkeypatch.setattr("plc_core.storage.files.Path.replace", refused)
    monkeypatch.setattr("plc_core.runs.decisions.Path.mkdir", refused)
    assert [found.state for found in list_runs(run.path.parent)] == ["done"]
    assert len(run.visits())
    with pytest.raises(RunError, match=r"decisions cannot be made: Permission denied"):
        decide(run, pair, "keep")
    with pytest.raises(RunError, match=r"run\.json cannot be written: Permission denied"):
        run.update_info(more=1)


@pytest.fixture
def as_another_user(evaluated):
    """A run with all there is in it, and its cache, read by a user who is not root."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        home = Path(folder)
        patch.setenv("PLC_CACHE", str(home / "cache"))
        run = open_run(shutil.copytree(evaluated, home / "runs" / "whole"))
        decide(run, run.pairs(["pair_id"])["pair_id"][0], "flip")
        (home / "pairs.jsonl").write_text('{"prompt": "q", "chosen": "a", "rejected": "b"}\n')
        use_all(run)  # what is imported late is imported now
        for path in [home, *home.rglob("*")]:
            os.chown(path, *([NOBODY] * 2 if os.geteuid() == 0 else [-1, -1]))
        before = os.geteuid()
        os.seteuid(before or NOBODY)
        try:
            yield run
        finally:
            os.seteuid(before)
            for path in [home, *home.rglob("*")]:
                path.chmod(0o700)


NOBODY = 65534
USES = {
    "run.json": lambda run: open_run(run.path),
    "status.json": lambda run: run.status,
    "metrics.parquet": lambda run: run.metrics(),
    "pairs.parquet": lambda run: run.pairs(),
    "findings.parquet": lambda run: run.findings(),
    "visits": lambda run: run.visits(),
    "visits/00000000-00000000.parquet": lambda run: run.visits(),
    "generations": lambda run: run.table("generations/world.parquet"),
    "generations/world-log-probs.parquet": lambda run: run.table(
        "generations/world-log-probs.parquet"
    ),
    "generations/world.parquet": lambda run: run.table("generations/world.parquet"),
    "judgements/gold-world.json": lambda run: read_json(run.path / "judgements/gold-world.json"),
    "checkpoints": last_checkpoint,
    "checkpoints/checkpoint-1": last_checkpoint,
    "checkpoints/checkpoint-1/checksums.json": load_trained,
    "checkpoints/checkpoint-1/model.safetensors": load_trained,
    "checkpoints/checkpoint-1/optimizer.pt": last_checkpoint,
    "decisions": read_decisions,
    "decisions/decisions.jsonl": read_decisions,
}


def use_all(run):
    """Everything that is read of a run, and everything of the cache that it takes."""
    for use in USES.values():
        use(run)
    export_cleaned(run)
    load_pairs(run.path.parents[1] / "pairs.jsonl")
    return digest(run).table.to_pylist()


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users")
def test_what_this_user_may_not_read_is_a_sentence_and_not_counted_as_missing(as_another_user):
    run, root = as_another_user, as_another_user.path.parent
    for name, use in USES.items():
        path = run.path / name
        before = path.stat().st_mode
        path.chmod(0)
        decisions._read.clear()  # what is remembered of a file needs no reading
        with pytest.raises(RunError, match=f"{re.escape(name)}.*Permission denied"):
            use(run)
        path.chmod(before)
    lock = run.path / ".lock"
    lock.touch()
    lock.chmod(0)
    with pytest.raises(RunError, match=r"\.lock cannot be locked"), run.running("evaluating"):
        pass
    lock.chmod(0o600)
    for folder in (root, run.path):
        folder.chmod(0)
        with pytest.raises(RunError, match="Permission denied"):
            open_run(run.path)
        if folder == run.path:
            assert "Permission denied" in str(list_runs(root)[0].problem)
        else:
            with pytest.raises(RunError, match="Permission denied"):
                list_runs(root)
        folder.chmod(0o700)
    use_all(run)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users")
def test_what_cannot_be_read_of_the_cache_is_made_anew_or_a_sentence(as_another_user):
    run = as_another_user
    before = use_all(run)
    entries = [path for path in cache_dir().rglob("*") if path.suffix != ".lock"]
    assert {path.name for path in entries} > {"pairs", "inspector", "checksums.json"}
    for path in [cache_dir(), *entries]:
        if not path.exists():
            continue
        mode = path.stat().st_mode
        path.chmod(0)
        try:
            assert use_all(run) == before
        except RunError as error:
            assert "Permission denied" in str(error) or "not empty" in str(error)
            assert path.is_dir()
        with contextlib.suppress(FileNotFoundError):
            path.chmod(mode)
    assert use_all(run) == before


def test_a_symlinked_runs_folder_is_listed_and_opened_as_it_is(run, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(run.path.parent)
    assert [found.state for found in list_runs(link)] == ["done"]
    through = open_run(resolve(link, "whole"))
    assert digest(through).folder == digest(run).folder
    pd.testing.assert_frame_equal(through.visits(), run.visits())


@pytest.mark.parametrize("kind", ["a pipe", "a device"])
@pytest.mark.parametrize(
    "name", ["run.json", "status.json", "pairs.parquet", "visits/x", "decisions/decisions.jsonl"]
)
def test_a_pipe_or_a_device_in_place_of_a_file_is_refused_and_not_waited_for(run, name, kind):
    """Either would be read without an end; one that comes back to this line was not opened."""
    part = name.replace("visits/x", "visits/00000000-00000000.parquet")
    path = run.path / part
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    list_runs(run.path.parent)
    with pytest.raises(RunError, match=r"regular file|leads outside|is a link"):
        found = open_run(run.path)
        read_decisions(found)
        digest(found)
        found.status  # noqa: B018
    if name.endswith("parquet") or name == "visits/x":
        with pytest.raises(RunError, match="regular file"):
            open_run(run.path).pairs() if name == "pairs.parquet" else open_run(run.path).visits()


# ---- a disk that takes no more ------------------------------------------------------------------


def test_a_disk_that_is_full_while_one_decides_keeps_what_was_decided(run, largest_file):
    """No half of a line stays, which would make the file of all decisions damaged."""
    ids = run.pairs(["pair_id"])["pair_id"].tolist()
    before = decide(run, ids[0], "keep")
    path = run.path / "decisions" / "decisions.jsonl"
    raw = path.read_bytes()
    for more in (0, 1, len(raw) // 2, len(raw)):
        largest_file(len(raw) + more)
        for action in (
            lambda: decide(run, ids[1], "flip", note="read twice"),
            lambda: decide(run, ids[1], "flip", note="long " * 20_000),
            lambda: decide_all(run, ids, "tie"),
        ):
            with pytest.raises(RunError, match=r"decisions\.jsonl cannot be written: File too"):
                action()
            assert path.read_bytes() == raw
            assert read_decisions(run) == before
    largest_file(resource.RLIM_INFINITY)
    assert decide(run, ids[1], "flip").keys() == set(ids[:2])


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_disk_that_is_full_at_an_export_leaves_the_one_before(run, largest_file, form):
    decide(run, run.pairs(["pair_id"])["pair_id"][0], "keep")
    path, counts = export_cleaned(run, form)
    raw = path.read_bytes()
    names = {file.name for file in path.parent.iterdir()}
    for size in (0, len(raw) // 2, len(raw) - 1):
        largest_file(size)
        with pytest.raises(RunError, match=f"cleaned.{form} cannot be written: .*File too large"):
            export_cleaned(run, form)
        assert path.read_bytes() == raw
        assert {file.name for file in path.parent.iterdir()} == names
    largest_file(resource.RLIM_INFINITY)
    assert export_cleaned(run, form) == (path, counts)


def test_a_disk_that_is_full_in_a_blind_check_keeps_its_verdicts(tmp_path, largest_file):
    check = BlindCheck(tmp_path)
    check.start(draw(["a", "b"], np.array([0.1, 0.9])))
    check.add("a", "left", "me")
    before = check.verdicts()
    raw = (check.folder / "verdicts.jsonl").read_bytes()
    for more in (0, 1, len(raw) // 2):
        largest_file(len(raw) + more)
        with pytest.raises(RunError, match=r"verdicts\.jsonl cannot be written: File too large"):
            check.add("b", "right", "me")
        assert (check.folder / "verdicts.jsonl").read_bytes() == raw
        pd.testing.assert_frame_equal(check.verdicts(), before)
    largest_file(resource.RLIM_INFINITY)
    check.add("b", "right", "me")
    assert check.verdicts()["pair_id"].tolist() == ["a", "b"]


# ---- a folder that is copied while it is written ------------------------------------------------


class SlowCopy:
    """Copies a run folder file by file, one for each file that is written meanwhile."""

    def __init__(self, run, copy):
        self.run, self.copy, self.ended = run, copy, False

    def step(self):
        for path in sorted(self.run.rglob("*")):
            copy = self.copy / path.relative_to(self.run)
            if path.is_file() and path.suffix not in (".tmp", ".lock") and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
                return
        self.ended = True


def test_a_run_that_is_copied_while_it_is_written_is_a_sentence_or_goes_on(tmp_path, monkeypatch):
    """What the copy has of later files it has not of earlier ones; nothing wrong is read of it."""
    config = {"num_pairs": 20, "epochs": 2.0, "batch_pairs": 8, "pairs_per_forward": 4,
              "save_steps": 2, "flip_rate": 0.3, "learning_rate": 1e-3}  # fmt: skip
    copies, writes, fsync = [], 0, os.fsync

    def written(descriptor):
        nonlocal writes
        fsync(descriptor)
        if not (tmp_path / "whole" / "run.json").exists():
            return
        if writes % 5 == 0:
            copies.append(SlowCopy(tmp_path / "whole", tmp_path / f"copy-{len(copies)}"))
        writes += 1
        for copy in copies:
            if not copy.ended:
                copy.step()

    monkeypatch.setattr(os, "fsync", written)
    monkeypatch.setattr(visits, "_STEPS_A_FILE", 1)
    whole = train(TrainConfig(name="whole", runs_dir=str(tmp_path), **config))
    monkeypatch.setattr(os, "fsync", fsync)
    went_on = 0
    for copy in (copy.copy for copy in copies):
        try:
            assert open_run(copy).info["run_id"] == whole.info["run_id"]
        except RunError as error:
            assert "run.json" in str(error)
            continue
        for read in (Run.metrics, Run.pairs, Run.findings, Run.visits, last_checkpoint, digest):
            with contextlib.suppress(RunError):
                read(open_run(copy))
        again = {"name": copy.name, "runs_dir": str(tmp_path), "resume": True}
        with contextlib.suppress(RunError):
            run = train(TrainConfig(**config | again))
            pd.testing.assert_frame_equal(run.visits(), whole.visits())
            went_on += 1
    assert len(copies) > 3
    assert went_on > 0


# ---- two at once --------------------------------------------------------------------------------

ONE = """
import sys
from plc_core import TrainConfig, train
from plc_core.storage.files import RunError
try:
    train(TrainConfig(name="one", runs_dir=sys.argv[1], num_pairs=24, batch_pairs=8, seed=9))
    print("trained")
except RunError as error:
    print(error)
"""


def test_two_processes_on_one_run_and_one_cache(tmp_path):
    environment = os.environ | {"PLC_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", ONE, str(tmp_path / "runs")]
    both = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = sorted(process.communicate()[0].strip() for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert said[1] == "trained"
    assert "exists" in said[0] or "Another process is at work" in said[0]
    found = open_run(tmp_path / "runs" / "one")
    assert found.metrics()["step"].tolist() == [0, 1, 2]
    assert len(found.visits()) == 24
