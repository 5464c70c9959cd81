"""Runs whose notebook is cut off between training and its evaluation: not done, and gone on with.

The notebook is that of training with a cell more, which stays where training has ended.
"""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from plc_core import TrainConfig, train
from plc_core.batch.jobs import run_jobs
from plc_core.progress import BATCH_RUN_VARIABLE, BATCH_VARIABLE
from plc_core.runs import create_run, open_run
from plc_core.runs.listing import list_runs
from tests.paths import ROOT

TRAIN = ROOT / "notebooks" / "01_train.ipynb"
TINY = {"num_pairs": 48, "batch_pairs": 16, "pairs_per_forward": 16, "eval_prompts": 8}


def notebook_with(cell, folder):
    notebook = json.loads(TRAIN.read_text())
    place = next(n for n, c in enumerate(notebook["cells"]) if "train(config)" in str(c["source"]))
    empty = {"cell_type": "code", "id": "more", "metadata": {}, "outputs": []}
    notebook["cells"].insert(place + 1, empty | {"execution_count": None, "source": cell})
    path = folder / "more.ipynb"
    path.write_text(json.dumps(notebook))
    return path


def job(folder):
    (folder / "runs").mkdir()
    return TINY | {"name": "cut", "runs_dir": str(folder / "runs")}


def begun(path, values):
    """A batch of this job, in a session of its own."""
    command = [sys.executable, "-m", "plc_core.batch", str(path)]
    command += [word for name, value in values.items() for word in ("-p", name, str(value))]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        start_new_session=True,
        # Tests that run in the background of a shell have it ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


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


@pytest.mark.parametrize(
    ("whom", "number", "reason"),
    [
        ("batch", signal.SIGKILL, "the batch that ran it is gone"),
        ("batch", signal.SIGTERM, "stopped from outside (SIGTERM)"),
        ("all", signal.SIGKILL, "without a word"),
        ("session", signal.SIGINT, "interrupted by the user"),  # as Ctrl-C does
    ],
)
def test_a_run_cut_off_after_training_is_not_finished(tmp_path, capsys, whom, number, reason):
    sleep = "import time\nfrom pathlib import Path\nmark = Path(runs_dir, 'asleep')\n"
    sleep += "first = not mark.exists()\nmark.touch()\ntime.sleep(120 if first else 0)"
    path, values = notebook_with(sleep, tmp_path), job(tmp_path)
    batch = begun(path, values)
    wait_for((tmp_path / "runs" / "asleep").exists)
    run = open_run(tmp_path / "runs" / "cut")
    assert run.is_trained
    assert (run.status["state"], run.status["phase"]) == ("running", "report")
    children = psutil.Process(batch.pid).children(recursive=True)
    for process in children if whom == "all" else []:
        process.send_signal(number)
    if whom == "session":
        os.killpg(batch.pid, number)
    else:
        batch.send_signal(number)
    batch.wait(60)
    wait_for(lambda: not any(is_alive(child) for child in children))
    assert run.status["state"] == "killed"
    assert reason in run.status["reason"]
    assert [listed.state for listed in list_runs(run.path.parent)] == ["killed"]
    assert_goes_on(path, values, run, capsys)


def test_a_run_whose_report_fails_after_training_is_not_finished(tmp_path, capsys):
    fail = "from pathlib import Path\nmark = Path(runs_dir, 'failed')\n"
    fail += "first = not mark.exists()\nmark.touch()\nassert not first, 'no figure'"
    path, values = notebook_with(fail, tmp_path), job(tmp_path)
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
    run = train(TrainConfig(**job(tmp_path)))
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
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        run.set_status(pid=process.pid)
        assert run.status["state"] == "running"
        process.kill()
        wait_for(lambda: run.status["state"] == "killed")
    process.wait()
