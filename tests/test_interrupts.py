"""Ctrl-C and SIGTERM at any moment: one sentence, the right status, 130 or 143, nothing left."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from plc_core.batch.jobs import run_jobs
from plc_core.cli import _AS_MODULE
from plc_core.interrupts import Stopped, exit_status, stopping
from tests.paths import ROOT
from tests.stand_in import training_stand_in
from tests.waiting import is_alive, wait_for

MOMENTS = (0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 2.5, 4, 6, 9)
"""Seconds after the first import of the package; before it the interpreter itself is starting."""

TINY = {"num_pairs": 2048, "batch_pairs": 16, "pairs_per_forward": 16, "eval_prompts": 4}


def started(*words: str, **variables: str) -> subprocess.Popen:
    """A command in a session of its own, as soon as it has imported the package."""
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | variables,
        start_new_session=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        # Tests that run in the background of a shell have it ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for(lambda: catches(process.pid, signal.SIGTERM), process)
    return process


def catches(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(mask >> (number - 1) & 1)


def stopped(process: subprocess.Popen, number: int) -> str:
    """What the process says that is sent a signal, Ctrl-C with its group; nothing outlives it."""
    children = psutil.Process(process.pid).children(recursive=True)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    said = process.communicate()[1].decode()
    wait_for(lambda: not any(is_alive(child) for child in children))
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said
    assert said.count("Interrupted") == 1
    return said


@pytest.mark.parametrize(
    ("number", "moment"), [*zip(itertools.cycle([signal.SIGINT, signal.SIGTERM]), MOMENTS)]
)
def test_training_stops_with_a_sentence_at_any_moment(tmp_path, number, moment):
    values = TINY | {"name": "cut", "runs_dir": str(tmp_path / "runs")}
    (tmp_path / "runs").mkdir()
    if number == signal.SIGINT:
        (tmp_path / "cut.yaml").write_text(json.dumps(values))
        words = ["-m", "plc_core.cli", "train", str(tmp_path / "cut.yaml")]
    else:
        given = [word for name, value in values.items() for word in ("-p", name, str(value))]
        words = ["-m", "plc_core.batch", "01_train", *given]
    process = started(*words)
    time.sleep(moment)
    stopped(process, number)
    status = tmp_path / "runs" / "cut" / "status.json"
    if status.exists():
        found = json.loads(status.read_text())
        assert found["state"] == "killed", found
        said = "by the user" if number == signal.SIGINT else "SIGTERM"
        assert said in found["reason"] or "stopped with the batch" in found["reason"]


def test_of_two_signals_at_once_the_first_one_counts(monkeypatch):
    handle = signal.signal
    # Tests that run in the background of a shell have it ignored.
    before = handle(signal.SIGINT, signal.default_int_handler)

    def late(number, handler):
        monkeypatch.setattr(signal, "signal", handle)
        os.kill(os.getpid(), signal.SIGTERM)  # as a parent that had the same Ctrl-C sends it
        return handle(number, handler)

    with pytest.raises(KeyboardInterrupt) as stop, stopping():
        monkeypatch.setattr(signal, "signal", late)
        signal.raise_signal(signal.SIGINT)
    handle(signal.SIGINT, before)
    assert not isinstance(stop.value, Stopped)
    assert exit_status() == 130


@pytest.mark.parametrize(
    ("stop", "number"),
    [(KeyboardInterrupt(), signal.SIGINT), (Stopped("by kill"), signal.SIGTERM)],
    ids=["ctrl-c", "sigterm"],
)
def test_a_batch_ends_its_jobs_by_the_signal_that_ended_it(tmp_path, stop, number):
    class Job:
        ended_by = None

        def poll(self):
            raise stop

        def stop(self, by):
            Job.ended_by = by

    values = {"name": "cut", "runs_dir": str(tmp_path)}
    with pytest.raises(type(stop)):
        run_jobs(training_stand_in(tmp_path), [values], start=lambda *_: Job())
    assert Job.ended_by == number


@pytest.mark.parametrize("moment", [0, 0.3])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["plc_core.demo", "plc_core.engine.world_sft"])
def test_every_command_of_the_package_says_it_while_it_imports(tmp_path, module, number, moment):
    process = started("-m", module, "--help", PYTHONPATH=slow_imports(tmp_path))
    time.sleep(moment)
    assert stopped(process, number) == "Interrupted.\n"


def slow_imports(folder: Path) -> str:
    """A PYTHONPATH on which the import of pandas and torch takes a minute."""
    for name in ("pandas", "torch"):
        (folder / f"{name}.py").write_text("import time\ntime.sleep(60)\n")
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_inspector_ends_with_the_command_that_opened_it(tmp_path, number):
    (tmp_path / "streamlit.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))\n"
        "print('here', flush=True)\n"
        "time.sleep(600)\n"
    )
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    process = started("-m", "plc_core.cli", "app", PYTHONPATH=path)
    wait_for(lambda: psutil.Process(process.pid).children(), process)
    (child,) = psutil.Process(process.pid).children()
    wait_for(lambda: catches(child.pid, signal.SIGINT), process)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    process.communicate()
    assert process.returncode == 128 + number
    wait_for(lambda: not is_alive(child))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_module_that_is_still_imported_ends_with_a_sentence(tmp_path, number):
    (tmp_path / "slow.py").write_text(
        f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(60)\n"
    )
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    process = subprocess.run(
        [sys.executable, "-c", _AS_MODULE, "slow"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (process.returncode, process.stderr) == (128 + number, "Interrupted.\n")
