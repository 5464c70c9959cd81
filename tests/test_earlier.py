"""A finished report of the same name, when the one that replaces it fails or is killed."""

import subprocess
import sys

import pytest

from plc_core.files import read_json
from plc_core.runs import create_run, open_run
from plc_core.runs.earlier import forget, put_back
from plc_core.runs.status import BATCH_VARIABLE

HOLDS = {"run.json", "status.json", "report.html", "notebook.ipynb", "tables"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A finished report, in a batch."""
    monkeypatch.setenv(BATCH_VARIABLE, "token")
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
    assert put_back(folder)
    assert holds(folder) == HOLDS
    run = open_run(folder)
    assert (run.info["config"], run.status["state"]) == ({"seeds": [0]}, "done")
    assert (folder / "tables" / "results.csv").read_text() == "the first tables/results.csv"
    assert not (folder / ".earlier").exists()


def test_a_report_that_did_something_stays_with_nothing_of_the_earlier_one(folder):
    begin_again(folder).update_info(runs={"DPO": ["a"]})
    assert not put_back(folder)
    assert holds(folder) == {"run.json", "status.json"}
    assert open_run(folder).info["config"] == {"seeds": [1]}


def test_tables_count_as_something(folder):
    begin_again(folder)
    (folder / "tables").mkdir()
    assert not put_back(folder)


def test_the_finished_report_outlives_several_that_did_nothing(folder):
    begin_again(folder)  # and is killed
    begin_again(folder)
    assert put_back(folder)
    assert (folder / "report.html").read_text() == "the first report.html"


def test_without_a_finished_report_nothing_is_put_back(folder):
    begin_again(folder)
    forget(folder)
    assert not put_back(folder)
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
