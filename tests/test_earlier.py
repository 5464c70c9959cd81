"""A finished report of the same name, when the one that replaces it fails or is killed."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plc_core.progress import BATCH_RUN_VARIABLE, BATCH_VARIABLE
from plc_core.runs import create_run, open_run
from plc_core.runs.earlier import forget, put_back, set_aside
from plc_core.storage.files import RunError, read_json

HOLDS = {"run.json", "status.json", "report.html", "notebook.ipynb", "tables"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A finished report, in a batch."""
    monkeypatch.setenv(BATCH_VARIABLE, "token")
    monkeypatch.setenv(BATCH_RUN_VARIABLE, str(tmp_path / "report"))
    run = create_run(tmp_path, "report", {"kind": "analysis", "config": {"seeds": [0]}})
    (run.path / "tables").mkdir()
    for name in ("report.html", "notebook.ipynb", "tables/results.csv"):
        (run.path / name).write_text(f"the first {name}")
    run.set_status(state="done")
    return run.path


def begin_again(folder):
    return create_run(folder.parent, folder.name, {"kind": "analysis", "config": {"seeds": [1]}})


def holds(folder):
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_a_report_that_did_nothing_gives_way_to_the_finished_one(folder):
    begin_again(folder)
    assert holds(folder) == {"run.json", "status.json"}
    assert put_back(folder, "DPO is missing")
    assert holds(folder) == HOLDS
    run = open_run(folder)
    assert (run.info["config"], run.status["state"]) == ({"seeds": [0]}, "done")
    assert (folder / "tables" / "results.csv").read_text() == "the first tables/results.csv"
    assert not (folder / ".earlier").exists()
    assert run.info["last_failure"]["reason"] == "DPO is missing"


def test_a_report_that_failed_with_something_to_show_is_put_back_too(folder):
    open_run(folder).set_status(state="failed", reason="a cell failed")
    begin_again(folder)
    assert holds(folder) == {"run.json", "status.json"}
    begin_again(folder)  # which has nothing that would take the place of what is kept
    assert put_back(folder, "DPO is missing")
    assert holds(folder) == HOLDS
    assert open_run(folder).status["state"] == "failed"


def test_a_failed_report_does_not_take_the_place_of_a_finished_one_that_is_kept(folder):
    begin_again(folder)
    (folder / "report.html").write_text("half")
    begin_again(folder)
    assert put_back(folder, "DPO is missing")
    assert (folder / "report.html").read_text() == "the first report.html"


class Killed(BaseException):
    """What no handler takes for an error."""


@pytest.mark.parametrize("step", range(1, 9))
def test_a_kill_while_it_is_put_back_loses_nothing_and_shows_nothing_half(
    folder, monkeypatch, step
):
    begin_again(folder)
    left = step

    def until_killed(function):
        def step_of(*args, **kwargs):
            nonlocal left
            left -= 1
            if not left:
                raise Killed
            return function(*args, **kwargs)

        return step_of

    with monkeypatch.context() as patched:
        for name in ("copy2", "copytree", "rmtree"):
            patched.setattr(shutil, name, until_killed(getattr(shutil, name)))
        patched.setattr(Path, "replace", until_killed(Path.replace))
        with contextlib.suppress(Killed):
            put_back(folder, "DPO is missing")
    if open_run(folder).status["state"] == "done":
        assert holds(folder) == HOLDS
        assert open_run(folder).info["config"] == {"seeds": [0]}
    begin_again(folder)
    assert put_back(folder, "DPO is missing")
    assert holds(folder) == HOLDS
    assert (open_run(folder).info["config"], open_run(folder).status["state"]) == (
        {"seeds": [0]},
        "done",
    )


def test_a_kill_while_it_is_cleared_leaves_nothing_that_counts_as_finished(folder, monkeypatch):
    removed, unlink = [], Path.unlink

    def until_killed(path, missing_ok=False):
        if removed:
            raise Killed
        removed.append(path.name)
        unlink(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", until_killed)
        with pytest.raises(Killed):
            set_aside(folder)
    begin_again(folder)
    assert put_back(folder, "DPO is missing")
    assert holds(folder) == HOLDS


def test_a_report_that_cannot_be_kept_aside_is_not_replaced(folder, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(RunError, match="cannot be copied: No space left on device"):
        begin_again(folder)
    assert holds(folder) == HOLDS
    assert open_run(folder).info["config"] == {"seeds": [0]}


def test_a_report_that_did_something_stays_with_nothing_of_the_earlier_one(folder):
    begin_again(folder).update_info(runs={"DPO": ["a"]})
    assert not put_back(folder, "DPO is missing")
    assert holds(folder) == {"run.json", "status.json"}
    assert open_run(folder).info["config"] == {"seeds": [1]}


def test_tables_count_as_something(folder):
    begin_again(folder)
    (folder / "tables").mkdir()
    assert not put_back(folder, "DPO is missing")


def test_the_finished_report_outlives_several_that_did_nothing(folder):
    begin_again(folder)  # and is killed
    begin_again(folder)
    assert put_back(folder, "DPO is missing")
    assert (folder / "report.html").read_text() == "the first report.html"


def test_without_a_finished_report_nothing_is_put_back(folder):
    begin_again(folder)
    forget(folder)
    assert not put_back(folder, "DPO is missing")
    assert open_run(folder).info["config"] == {"seeds": [1]}


def test_a_person_executing_cells_keeps_the_report_that_is_there(folder, monkeypatch):
    monkeypatch.delenv(BATCH_VARIABLE)
    begin_again(folder)
    assert holds(folder) == HOLDS - {"tables"}


def test_a_report_whose_process_is_gone_is_killed(folder):
    """A report has no heartbeat: it is known by the process that a batch began it in."""
    run = begin_again(folder)
    assert run.status["state"] == "queued"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    run.set_status(pid=ended.pid)
    assert run.status["state"] == "killed"
    assert read_json(folder / "status.json")["state"] == "queued"  # only read so
