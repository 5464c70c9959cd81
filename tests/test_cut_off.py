"""Runs whose notebook is cut off between training and its evaluation: not done, and gone on with.

How a run is cut off is tried on a notebook that only stands in for training; that the next call
evaluates without training again is tried on the real one.
"""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from plc_core import TrainConfig, train
from plc_core.batch.jobs import run_jobs
from plc_core.progress import BATCH_RUN_VARIABLE, BATCH_VARIABLE
from plc_core.runs import create_run, open_run
from plc_core.runs.listing import list_runs
from tests.paths import ROOT
from tests.stand_in import STAY, TINY, stays, training_stand_in, with_cell
from tests.waiting import is_alive, wait_for


def job(folder):
    (folder / "runs").mkdir()
    return {"name": "cut", "runs_dir": str(folder / "runs")}


@contextlib.contextmanager
def begun(path, values):
    """A batch of this job, in a session of its own, which ends with the context at the latest."""
    command = [sys.executable, "-m", "plc_core.batch", str(path)]
    command += [word for name, value in values.items() for word in ("-p", name, str(value))]
    batch = subprocess.Popen(
        command,
        cwd=ROOT,
        start_new_session=True,
        # Tests that run in the background of a shell have it ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield batch
    finally:
        batch.kill()  # its processes end with it
        batch.wait()


def cut_off(path, values, whom, number):
    """The run, whose notebook stayed somewhere and was sent a signal there."""
    with begun(path, values) as batch:
        wait_for(lambda: stays(values["runs_dir"], values["name"]), batch)
        run = open_run(f"{values['runs_dir']}/{values['name']}")
        assert run.is_trained
        assert (run.status["state"], run.status["phase"]) == ("running", "report")
        children = psutil.Process(batch.pid).children(recursive=True)
        assert len(children) >= 2
        for process in children if whom == "all" else []:
            process.send_signal(number)
        if whom == "session":
            os.killpg(batch.pid, number)
        else:
            batch.send_signal(number)
        wait_for(lambda: batch.poll() is not None)
        wait_for(lambda: not any(is_alive(child) for child in children))
    return run


@pytest.mark.parametrize(
    ("whom", "number", "reason"),
    [
        ("batch", signal.SIGKILL, "the batch that ran it is gone"),
        ("batch", signal.SIGTERM, "stopped from outside (SIGTERM)"),
        ("all", signal.SIGKILL, "without a word"),
        ("session", signal.SIGINT, "interrupted by the user"),  # as Ctrl-C does
    ],
)
def test_a_run_cut_off_after_training_is_not_finished(tmp_path, whom, number, reason):
    run = cut_off(training_stand_in(tmp_path, "after"), job(tmp_path), whom, number)
    assert run.status["state"] == "killed"
    assert reason in run.status["reason"]
    assert [listed.state for listed in list_runs(run.path.parent)] == ["killed"]


def assert_goes_on(path, values, run, capsys):
    """The next call evaluates, without training again, and the one after it keeps the run."""
    steps = run.metrics()["seconds"].tolist()
    assert run_jobs(path, [values]) == []
    status = run.status
    assert (status["state"], status["phase"], status["reason"]) == ("done", None, None)
    assert (run.path / "generations" / "world.parquet").exists()
    assert any((run.path / "judgements").iterdir())
    assert run.metrics()["seconds"].tolist() == steps
    assert "kept, it is finished" not in capsys.readouterr().err
    assert run_jobs(path, [values]) == []
    assert "kept, it is finished" in capsys.readouterr().err


def test_the_next_call_evaluates_a_run_that_was_cut_off_after_training(tmp_path, capsys):
    path, values = with_cell(tmp_path, STAY), TINY | job(tmp_path)
    run = cut_off(path, values, "batch", signal.SIGKILL)
    assert run.status["state"] == "killed"
    assert_goes_on(path, values, run, capsys)


def test_a_run_whose_report_fails_after_training_is_not_finished(tmp_path, capsys):
    fail = "from pathlib import Path\nmark = Path(runs_dir, 'failed')\n"
    fail += "first = not mark.exists()\nmark.touch()\nassert not first, 'no figure'"
    path, values = with_cell(tmp_path, fail), TINY | job(tmp_path)
    [error] = run_jobs(path, [values])
    assert "no figure" in error
    run = open_run(tmp_path / "runs" / "cut")
    assert run.status["state"] == "failed"
    assert run.status["reason"] == "AssertionError: no figure"
    assert (run.path / "report.html").exists()
    # A person goes on with it: training is done, and the report is still that of the failure.
    assert train(TrainConfig(**values, resume=True)).status["state"] == "done"
    assert_goes_on(path, values, run, capsys)


def test_training_alone_ends_as_done_and_in_no_phase(tmp_path):
    run = train(TrainConfig(**TINY, **job(tmp_path)))
    status = run.status
    assert (status["state"], status["phase"], status["done"]) == ("done", None, None)
    assert status["step"] == status["total_steps"] == 3


def test_who_works_on_a_run_that_a_batch_finished_leaves_it_finished(tmp_path, monkeypatch):
    run = create_run(tmp_path, "first", {"kind": "training"})
    run.set_status(state="done", by="batch")
    for token, folder in ((None, None), ("another", tmp_path / "report")):
        if token:
            monkeypatch.setenv(BATCH_VARIABLE, token)
            monkeypatch.setenv(BATCH_RUN_VARIABLE, str(folder))
        with run.running("judging"):
            assert run.status["state"] == "running"
        assert (run.status["state"], run.status["by"]) == ("done", "batch")


def test_a_notebook_between_training_and_evaluation_is_known_by_its_process(tmp_path, monkeypatch):
    run = create_run(tmp_path, "first", {"kind": "training"})
    monkeypatch.setenv(BATCH_VARIABLE, "token")
    monkeypatch.setenv(BATCH_RUN_VARIABLE, str(run.path))
    with run.running("training"):
        pass
    run.set_status(heartbeat="2026-01-01T00:00:00+00:00")
    assert run.status["state"] == "running"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    run.set_status(pid=ended.pid)
    assert run.status["state"] == "killed"


def test_a_killed_process_that_nobody_has_waited_for_is_gone(tmp_path):
    run = create_run(tmp_path, "first", {"kind": "training"})
    with run.running("training"):
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        run.set_status(pid=process.pid)
        assert run.status["state"] == "running"
        process.kill()
        wait_for(lambda: run.status["state"] == "killed")
    process.wait()
