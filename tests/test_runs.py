"""The run folder: written atomically, readable at any time, every fault a sentence."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from plc_core.runs import SCHEMA, create_run, open_run, resolve
from plc_core.runs.listing import list_runs
from plc_core.runs.visit_files import VISITS_SCHEMA
from plc_core.storage.files import RunError, write_json, write_table
from plc_core.storage.paths import exclusive


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path, "first", {"kind": "training", "config": {"objective": "plc"}})


def visits(step, pairs=("a", "b")):
    numbers = {n: np.full(len(pairs), step / 7) for n in VISITS_SCHEMA.names[2:]}
    return {"pair_id": list(pairs), "step": np.full(len(pairs), step)} | numbers


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", ".hidden", "a b", "x" * 129, "é", "a\n"]
)
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path, name):
    with pytest.raises(RunError, match="not usable"):
        resolve(tmp_path, name)


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path)
    with pytest.raises(RunError, match="leads outside"):
        resolve(tmp_path / "runs", "link")
    assert "leads outside" in list_runs(tmp_path / "runs")[0].problem


def test_a_taken_name_is_refused_and_nothing_is_changed(run):
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(RunError, match="'first' exists"):
        create_run(run.path.parent, "first", {})
    assert (run.path / "run.json").read_bytes() == before


def test_an_analysis_may_be_made_again(tmp_path):
    first = create_run(tmp_path, "report", {"kind": "analysis"})
    (first.path / "report.html").write_text("old")
    (first.path / "tables").mkdir()
    create_run(tmp_path, "report", {"kind": "analysis", "config": {"a": 1}})
    assert not (first.path / "tables").exists()
    # The old report stays until the new one replaces it.
    assert (first.path / "report.html").read_text() == "old"
    assert open_run(first.path).info["config"] == {"a": 1}
    with pytest.raises(RunError, match="'report' exists"):
        create_run(tmp_path, "report", {"kind": "training"})


def test_a_run_that_ended_before_its_first_step_gives_its_name_back(run):
    with pytest.raises(RunError), run.running("preparing"):
        raise RunError("no such model")
    again = create_run(run.path.parent, "first", {"kind": "training"})
    assert again.status["state"] == "queued"
    assert again.status["reason"] is None
    # Cut off when the folders were there and nothing in them.
    for part in ("visits", "checkpoints"):
        (run.path / part).mkdir(exist_ok=True)
    with pytest.raises(RunError), again.running("training"):
        raise RunError("out of memory")
    again = create_run(run.path.parent, "first", {"kind": "training"})
    again.append_visits(visits(0))
    with pytest.raises(RuntimeError), again.running("training"):
        raise RuntimeError
    with pytest.raises(RunError, match="'first' exists"):
        create_run(run.path.parent, "first", {"kind": "training"})


def test_only_one_process_works_on_a_run(run):
    with run.running("training"):
        with pytest.raises(RunError, match="Another process is at work on the run 'first'"):
            open_run(run.path).running("training").__enter__()
        assert run.status["state"] == "running"
    with open_run(run.path).running("training"):
        pass


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "has no run.json"),
        ("", "cannot be read"),
        ('{"schema": 1', "cannot be read"),
        ("[1]", "should hold a JSON object"),
        ('{"schema": 99}', "has schema 99, and this version reads schema 1"),
        ("{}", "is not the record of a run: it names no schema. Put a copy of it back"),
        ('{"schema": 1, "config": 5}', "run.json should hold config as dict"),
        ('{"schema": 1, "data": []}', "run.json should hold data as dict"),
        ('{"schema": 1, "trained_steps": "x"}', "run.json should hold trained_steps as int"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_broken_run_is_a_sentence_and_the_others_are_listed(run, content, sentence):
    broken = run.path.parent / "broken"
    broken.mkdir()
    if content is not None:
        raw = content if isinstance(content, bytes) else content.encode()
        (broken / "run.json").write_bytes(raw)
    with pytest.raises(RunError, match=sentence):
        open_run(broken)
    listed = {s.name: s for s in list_runs(run.path.parent)}
    assert sentence in listed["broken"].problem
    assert listed["first"].problem is None
    assert listed["first"].state == "queued"


def test_nothing_there_is_a_sentence_or_an_empty_list(tmp_path):
    assert list_runs(tmp_path / "nothing") == []
    with pytest.raises(RunError, match="no run folder"):
        open_run(tmp_path / "nothing")


def test_metrics_and_visits_are_read_back_in_order(run):
    assert run.metrics().empty
    assert run.visits().empty
    assert list(run.visits().columns) == VISITS_SCHEMA.names
    for step in (0, 1):
        run.append_visits(visits(step))
        run.append_metrics([{"step": step, "loss": 0.5 - step}])
    assert run.visits()["step"].tolist() == [0, 0, 1, 1]
    assert run.visits(["z"], pair_id="b")["z"].tolist() == pytest.approx([0, 1 / 7])
    assert run.metrics()["loss"].tolist() == [0.5, -0.5]


def test_truncating_forgets_what_a_resumed_run_makes_again(run):
    both = [visits(0), visits(1)]
    run.append_visits({k: np.concatenate([v[k] for v in both]) for k in both[0]})
    run.append_visits(visits(2))
    run.append_metrics([{"step": s} for s in (0, 1, 2)])
    run.truncate_after(1)
    assert run.visits()["step"].tolist() == [0, 0]
    assert run.metrics()["step"].tolist() == [0]


def test_visits_of_an_older_version_are_read_and_cut_with_what_they_lack_left_empty(run):
    older = pa.schema([field for field in VISITS_SCHEMA if field.name != "p_flip"])
    (run.path / "visits").mkdir()
    both = [visits(0), visits(1)]
    columns = {k: np.concatenate([v[k] for v in both]) for k in older.names}
    write_table(run.path / "visits" / "00000000-00000001.parquet", pa.table(columns, schema=older))
    run.append_visits(visits(2))
    assert run.visits(["p_flip"])["p_flip"].isna().tolist() == [True] * 4 + [False] * 2
    run.truncate_after(1)
    assert run.visits()["step"].tolist() == [0, 0]
    assert run.visits()["p_flip"].isna().all()


def test_pairs_leave_texts_on_disk_unless_one_is_asked_for(run):
    with pytest.raises(RunError, match=r"no pairs\.parquet yet"):
        run.pairs()
    rows = [{"pair_id": "a", "prompt": [{"role": "user", "content": "Hi"}], "chosen": "x",
             "rejected": "y", "metadata": "{}", "flipped": True}]  # fmt: skip
    run.write_pairs(pa.Table.from_pylist(rows))
    assert list(run.pairs().columns) == ["pair_id", "flipped"]
    assert run.pair("a")["prompt"] == [{"role": "user", "content": "Hi"}]
    with pytest.raises(RunError, match="no pair 'b'"):
        run.pair("b")


def test_damaged_tables_are_a_sentence(run):
    (run.path / "metrics.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"metrics\.parquet cannot be read"):
        run.metrics()
    run.append_visits(visits(0))
    part = next((run.path / "visits").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(RunError, match=r"visits/0{8}-0{8}\.parquet cannot be read: it is cut"):
        run.visits()


def test_states_follow_what_happens(run):
    with run.running("training"):
        assert run.status["state"] == "running"
        assert run.status["phase"] == "training"
    assert run.status["state"] == "done"
    with pytest.raises(ZeroDivisionError), run.running("training"):
        _ = 1 / 0
    assert run.status["state"] == "failed"
    assert run.status["reason"] == "ZeroDivisionError: division by zero"
    with pytest.raises(KeyboardInterrupt), run.running("training"):
        raise KeyboardInterrupt
    assert run.status["state"] == "killed"


def test_a_process_that_vanished_counts_as_killed(run):
    code = (
        "import os, signal; from plc_core.runs import open_run\n"
        f"with open_run({str(run.path)!r}).running('training'): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert open_run(run.path).status["state"] == "killed"
    assert "without a word" in list_runs(run.path.parent)[0].reason


def test_a_stale_heartbeat_of_another_machine_counts_as_killed(run):
    old = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    for heartbeat, state in ((old, "killed"), (datetime.now(UTC).isoformat(), "running")):
        status = {"state": "running", "heartbeat": heartbeat, "host": "elsewhere", "pid": 1}
        write_json(run.path / "status.json", status)
        assert run.status["state"] == state


def test_a_heartbeat_of_the_future_says_nothing_and_the_time_of_the_file_counts(run):
    """As of a machine whose clock is a year ahead: it beats, or it has stopped to."""
    ahead = (datetime.now(UTC) + timedelta(days=365)).isoformat()
    status = {"state": "running", "heartbeat": ahead, "host": "elsewhere", "pid": 1}
    write_json(run.path / "status.json", status)
    assert run.status["state"] == "running"
    for seconds in (-3600, 3600):  # the file's clock may be wrong as well
        os.utime(run.path / "status.json", (time.time() + seconds,) * 2)
        assert run.status["state"] == "killed"
    own = {"host": socket.gethostname(), "pid": os.getpid()}  # whose process is known
    write_json(run.path / "status.json", status | own)
    os.utime(run.path / "status.json", (time.time() + 3600,) * 2)
    assert run.status["state"] == "running"


def test_a_reader_never_sees_half_a_file(run):
    deadline = time.monotonic() + 1.0
    writer = multiprocessing.get_context("spawn").Process(target=_write, args=(run.path, 1.0))
    writer.start()
    read = 0
    while time.monotonic() < deadline or writer.is_alive():
        assert open_run(run.path).info["schema"] == SCHEMA
        read += 1
    writer.join()
    assert read > 10
    assert not list(run.path.glob("*.tmp"))


def _write(path, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        write_json(path / "run.json", {"schema": SCHEMA, "filler": "x" * 100_000})


def test_a_full_disk_leaves_the_old_file(run, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(RunError, match=r"run\.json cannot be written: No space left"):
        run.update_info(more=1)
    assert (run.path / "run.json").read_bytes() == before
    assert not list(run.path.glob(".*.tmp"))


def test_one_process_at_a_time_makes_what_is_shared(tmp_path):
    target = tmp_path / "cache" / "thing"
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_make_once, args=(target,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert json.loads(target.read_text()) == ["made"]


def _make_once(target):
    with exclusive(target):
        if not target.exists():
            time.sleep(0.2)
            made = json.loads(target.read_text()) if target.exists() else []
            target.write_text(json.dumps([*made, "made"]))


def test_the_index_is_never_trusted_where_a_run_has_changed(run, monkeypatch):
    root = run.path.parent
    run.set_status(state="done")
    assert [s.state for s in list_runs(root)] == ["done"]
    index = root / ".index.json"
    assert "first" in json.loads(index.read_text())["runs"]
    monkeypatch.setattr("plc_core.runs.listing._summarise", lambda *args: pytest.fail("read again"))
    assert [s.state for s in list_runs(root)] == ["done"]
    monkeypatch.undo()
    run.set_status(state="failed", reason="why")
    assert [(s.state, s.reason) for s in list_runs(root)] == [("failed", "why")]
    for damage in ("", "[1]", '{"schema": 1, "runs": {"first": 5}}', '{"schema": 9}'):
        index.write_text(damage)
        assert [s.state for s in list_runs(root)] == ["failed"]
    run.path.rename(root / "second")
    assert [s.name for s in list_runs(root)] == ["second"]
    assert list(json.loads(index.read_text())["runs"]) == ["second"]
