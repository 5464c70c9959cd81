"""kill -9 of grids, of jobs on Ray and of reports: the next call ends as if nothing had happened.

PLC_KILLS=100 kills more often: 20 times a grid, 20 times a job on Ray.
"""

import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

import plc_core
from notebooks.audit_report import audited
from plc_core import TrainConfig, train
from plc_core.batch.jobs import run_jobs
from plc_core.batch.notebook import run_notebook
from plc_core.data.corruption import flip_labels
from plc_core.label_audit import hidden_states
from plc_core.label_audit.cleaning import export_pairs
from plc_core.label_audit.config import AuditConfig
from plc_core.runs import creation, open_run
from tests.paths import ROOT
from tests.stand_in import TRAIN, analysis_with_figure
from tests.test_kill import KILLS, assert_same, forked
from tests.waiting import is_alive, wait_for

BATCH_KILLS = KILLS // 20 if KILLS <= 20 else KILLS // 5
KILLS_A_BATCH = 3
RATES = (0.0, 0.15, 0.3)


def jobs(folder, rates=RATES):
    """Runs that share the pairs and the reference, and differ in which labels are flipped.

    They learn so fast that another thread count, order or reference would show in what they end as.
    """
    return [
        {"name": f"rate-{rate}", "runs_dir": str(folder), "num_pairs": 24, "batch_pairs": 8,
         "pairs_per_forward": 8, "save_steps": 1, "flip_rate": rate, "eval_prompts": 0,
         "learning_rate": 1e-3, "epochs": 2.0}
        for rate in rates
    ]  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The runs by themselves, one after the other, in another order and with another cache."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLC_CACHE", str(folder / "cache"))
        runs = [train(TrainConfig(**job)) for job in reversed(jobs(folder))]
    margins = [run.visits(["step", "margin"]).groupby("step")["margin"].std() for run in runs]
    assert all(spread.iloc[-1] > 0.1 for spread in margins)  # the policy has moved
    return runs


@contextlib.contextmanager
def batch(folder, rates, *words):
    """A batch of the jobs in a process, with a cache that all calls on the folder share."""
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(jobs(folder, rates)))
    process = subprocess.Popen(
        [sys.executable, "-m", "plc_core.batch", str(TRAIN), "--jobs", str(file), "--quiet",
         *words],
        cwd=ROOT, env=os.environ | {"PLC_CACHE": f"{folder}-cache"}, start_new_session=True,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def kill(processes):
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_for(lambda: not any(is_alive(process) for process in processes))


def test_a_grid_that_is_killed_with_all_its_processes_ends_as_its_runs_by_themselves(
    tmp_path, alone
):
    drawn, kills, number = random.Random(0), 0, 0
    while kills < BATCH_KILLS:
        number += 1
        folder, left, said = tmp_path / f"grid-{number}", KILLS_A_BATCH, None
        while said is None:
            seconds = drawn.uniform(4, 40) if left and kills < BATCH_KILLS else None
            with batch(folder, RATES, "--workers", "3") as grid:
                try:
                    said = grid.communicate(timeout=seconds)[1]
                    assert grid.returncode == 0, said
                except subprocess.TimeoutExpired:
                    parent = psutil.Process(grid.pid)
                    family = [parent, *parent.children(recursive=True)]
                    drawn.shuffle(family)
                    kill(family)
                    left -= 1
                    kills += 1
        for run in alone:
            assert_same(open_run(folder / run.name), run)


# ---- Ray ----------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path, monkeypatch, patient_ray):
    """A node of two cores, whose processes have the cache of the first grid."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PLC_CACHE", str(tmp_path / "cache"))
    head = {"num_cpus": 2, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()


def at_work():
    """The processes of jobs on this machine's cluster: tasks, their notebooks and kernels."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = " ".join(process.cmdline())
            if re.search("ray::_execute|--attached|ipykernel", words):
                found.append(process)
    return found


def test_jobs_on_ray_that_lose_any_process_end_as_runs_by_themselves(tmp_path, alone, cluster):
    """A task is begun again; a call whose notebook, kernel or own process was killed, by hand."""
    drawn, kills, number = random.Random(0), 0, 0
    while kills < BATCH_KILLS:
        number += 1
        folder, left, code = tmp_path / f"ray-{number}", KILLS_A_BATCH, None
        while code != 0:
            with batch(folder, RATES[:2], "--ray", cluster.address) as call:
                if to_kill := left > 0 and kills < BATCH_KILLS:
                    wait_for(at_work, call)
                    time.sleep(drawn.uniform(0, 30))
                    kill([drawn.choice([psutil.Process(call.pid), *at_work()])])
                    left -= 1
                    kills += 1
                said = call.communicate()[1]
                code = call.returncode
                assert to_kill or code == 0, said
            wait_for(lambda: not at_work())  # those of a driver that is gone end too
        for run in alone[1:]:
            assert_same(open_run(folder / run.name), run)


# ---- reports ------------------------------------------------------------------------------------


class Here:
    """A starter of jobs: the notebook's batch is this very process."""

    def __init__(self, notebook, values, scratch):
        run_notebook(notebook, values)

    def poll(self):
        return 0

    def stop(self):
        pass


def attempt(notebook, values, last=None, seconds=None):
    """Make a report, and be killed, as `forked` says it."""
    folder = Path(values["runs_dir"], values["name"])

    def action():
        assert run_jobs(notebook, [values], start=Here) == []

    return forked(action, [folder], last, seconds)


def report_of(folder):
    """What a finished report shows: the page, the notebook's outputs and the tables."""
    page = (folder / "report.html").read_text()
    assert page.rstrip().endswith("</html>")
    cells = json.loads((folder / "notebook.ipynb").read_text())["cells"]
    outputs = json.dumps([cell.get("outputs") for cell in cells])
    tables = {path.name: path.read_text() for path in (folder / "tables").iterdir()}
    drawn = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|cell-id=[0-9a-f]{8}"  # a figure's, papermill's
    return re.sub(drawn, "id", page), outputs, tables


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_report_that_is_killed_while_it_is_written_is_whole_after_the_next_call(tmp_path):
    """It takes the place of a finished one: what is called done is all of the one or the other."""
    notebook, whole = analysis_with_figure(tmp_path), {}
    for value in (1, 2):
        values = {"name": "report", "runs_dir": str(tmp_path / f"whole-{value}"), "value": value}
        killed, events = attempt(notebook, values)
        assert not killed
        whole[value] = report_of(tmp_path / f"whole-{value}" / "report")
    assert whole[1] != whole[2]
    assert events > 5
    drawn, kills, number = random.Random(0), 0, 0
    while kills < KILLS // 5:
        number += 1
        folder, killed = tmp_path / f"{number}" / "report", True
        shutil.copytree(tmp_path / "whole-1" / "report", folder)
        values = {"name": "report", "runs_dir": str(folder.parent), "value": 2}
        while killed:
            by_time = drawn.random() < 0.3
            killed, _ = (
                attempt(notebook, values, seconds=drawn.uniform(0, 4))
                if by_time
                else attempt(notebook, values, last=drawn.randrange(events + 5))
            )
            kills += killed
            run = open_run(folder)
            if run.status["state"] == "done":
                assert report_of(folder) == whole[run.info["config"]["value"]]
        assert run.info["config"]["value"] == 2


# ---- audits -------------------------------------------------------------------------------------


def audit(folder):
    """An audit of 200 of the world's pairs with its hidden states, which turns labels round."""
    return AuditConfig(
        name="audit", runs_dir=str(folder), data=str(folder.parent / "pairs.jsonl"), model="world",
        policy="flip", noise_by=["source"],
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_audit_that_is_killed_and_called_again_finds_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(creation, "new_run_id", lambda: "0" * 16)  # by which files would differ
    pairs = plc_core.load_pairs("world", limit=200)
    export_pairs(flip_labels(pairs, 0.3, 0).batches(), tmp_path / "pairs.jsonl")

    def attempt(folder, **moment):
        cache = folder / "cache"

        def action():
            os.environ["PLC_CACHE"] = str(cache)
            hidden_states._PAIRS_A_PART = 50  # several parts, of which some are there
            audited(audit(folder))

        return forked(action, [folder], **moment)

    killed, events = attempt(tmp_path / "whole")
    assert not killed
    whole = open_run(tmp_path / "whole" / "audit")
    names = ("audit.parquet", "pairs.parquet", "findings.parquet", "cleaned.jsonl",
             "tables/evidence.csv", "tables/noise-by-source.csv")  # fmt: skip
    drawn, kills, number = random.Random(0), 0, 0
    while kills < KILLS // 5:
        number += 1
        killed = True
        while killed:
            by_time = drawn.random() < 0.3
            moment = (
                {"seconds": drawn.uniform(0, 5)} if by_time else {"last": drawn.randrange(events)}
            )
            killed, _ = attempt(tmp_path / f"{number}", **moment)
            kills += killed
        run = open_run(tmp_path / f"{number}" / "audit")
        assert run.status["state"] == "done"
        for name in names:
            assert (run.path / name).read_bytes() == (whole.path / name).read_bytes(), name
        assert run.info["audit"] == whole.info["audit"]
