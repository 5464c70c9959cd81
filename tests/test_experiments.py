"""Runs planned by content, grids, and what is left when a grid is killed."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from notebooks.make_paper import paper_notebooks
from notebooks.studies.ensure_runs import ensure_runs
from notebooks.studies.plan_runs import plan_runs
from plc_core.batch.job_progress import Tally
from plc_core.batch.jobs import Process, run_jobs
from plc_core.batch.planning import expand_grid
from plc_core.parameters import ParameterError, notebook_values
from plc_core.runs import create_run, open_run
from plc_core.runs.listing import list_runs
from plc_core.storage.files import RunError, write_json
from tests.paths import ROOT
from tests.real_shapes import trained_here
from tests.stand_in import (
    TINY,
    TRAIN,
    stays,
    stays_at_its_first_checkpoint,
    training_stand_in,
)
from tests.waiting import is_alive, wait_for


def name(variant, **common):
    (run,) = plan_runs("world", {"a": variant}, [1], common)
    return run.name


def test_equal_trainings_have_one_name():
    assert name({}) == name({"beta": 0.2, "prior": [0.80, 0.08, 0.12]})
    assert name({"beta": "1e-1"}) == name({}, beta=0.1)
    assert name({"objective": "cdpo"}) == name(
        {"objective": "cdpo", "objective_options": {"epsilon": 0.1}}
    )
    assert name({"flip_rate": 0.3}).startswith("plc-beta0.2-flip0.3-s1-")


def test_other_trainings_have_other_names():
    variants = [{}, {"flip_rate": 0.3}, {"objective": "dpo"}, {"eval_prompts": 7}, {"epochs": 2.0},
                {"objective": "cdpo", "objective_options": {"epsilon": 0.2}}]  # fmt: skip
    assert len({name(v) for v in variants}) == len(variants)


def test_what_cannot_be_planned_is_a_sentence():
    with pytest.raises(ParameterError, match=r"variant 'a': .*did you mean 'beta'"):
        name({"betta": 1})
    with pytest.raises(RunError, match=r"no usable recipe 'word'.*paper/phi-2"):
        plan_runs("word", {"a": {}}, [0])
    with pytest.raises(ParameterError, match="twice"):
        plan_runs("world", {"a": {}}, [0, 0])


def test_missing_runs_are_listed_with_the_command_that_makes_them(tmp_path):
    planned = plan_runs("world", {"PLC": TINY}, [0, 1])
    with pytest.raises(RunError, match="2 runs are missing") as caught:
        ensure_runs(planned, str(tmp_path), make=False)
    assert all(plan.name in str(caught.value) for plan in planned)
    (file,) = tmp_path.glob("*.yaml")
    assert f"--jobs {file} --workers 2" in str(caught.value)
    assert [job["name"] for job in yaml.safe_load(file.read_text())] == [p.name for p in planned]


def test_a_run_that_is_not_what_its_name_says_is_refused(tmp_path):
    (plan,) = plan_runs("world", {"PLC": TINY}, [0])
    create_run(tmp_path, plan.name, {"kind": "training", "config": {**plan.parameters, "beta": 1}})
    with pytest.raises(RunError, match="other parameters than its name stands for"):
        ensure_runs([plan], str(tmp_path))


def test_runs_are_made_once_and_shared(tmp_path):
    planned = plan_runs("world", {"first": TINY, "same": TINY}, [0])
    with trained_here():
        runs = ensure_runs(planned, str(tmp_path))
    assert runs["first"][0].path == runs["same"][0].path
    before = (runs["first"][0].path / "run.json").stat().st_mtime_ns
    again = ensure_runs(planned, str(tmp_path), make=False)
    assert (again["same"][0].path / "run.json").stat().st_mtime_ns == before
    assert len(list_runs(tmp_path)) == 1


def test_a_grid_is_every_combination_under_a_name_of_its_content():
    grid = {"objective": ["dpo", "plc"], "seed": [0, 1], "prior": [0.8, 0.1, 0.1]}
    jobs = expand_grid(TRAIN, [grid])
    assert len(jobs) == len({job["name"] for job in jobs}) == 4
    (shared,) = plan_runs("world", {"a": {"num_pairs": None, "eval_prompts": 600, "save_steps": 0}},
                          [0])  # fmt: skip
    assert expand_grid(TRAIN, [{"seed": [0]}])[0]["name"] == shared.name
    swept = expand_grid(TRAIN, [{"prior": [[0.8, 0.1, 0.1], [0.6, 0.2, 0.2]], "name": "mine"}])
    assert all(job["name"].startswith("mine-") for job in swept)
    assert len(swept) == 2


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        ({"bta": [1, 2]}, "did you mean 'beta'"),
        ({"beta": [0.1, "large"]}, "'beta' is 'large'"),
        ({"beta": []}, "empty list for 'beta'"),
        ({"name": ["a", "b"]}, "should be one text"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_refused(grid, sentence):
    with pytest.raises(ParameterError, match=sentence):
        expand_grid(TRAIN, [grid])


@pytest.mark.parametrize(
    ("stem", "values", "sentence"),
    [
        ("03_label_noise", {"rates": [0.1, 1.5]}, "'rates' is 1.5: input should be less than or"),
        ("03_label_noise", {"methods": ["plcc"]}, "'methods' is 'plcc': input should be 'dpo', "),
        ("03_label_noise", {"spotlight": "ropo"}, "spotlight 'ropo' is none of the methods"),
        ("03_label_noise", {"recipe": "wurld"}, "no usable recipe 'wurld'"),
        ("03_label_noise", {"seeds": [0, 0]}, "have one of them twice"),
        ("03_label_noise", {"seeds": [-1]}, "'seed' is -1: input should be greater than or"),
        ("03_label_noise", {"common": {"bta": 1}}, "common: Unknown parameter 'bta'; did you mean"),
        ("03_label_noise", {"common": {"beta": -1}}, "common: The parameter 'beta' is -1.0: input"),
        ("03_label_noise", {"common": {"flip_rate": 0.1}}, "'flip_rate' .*would change nothing"),
        ("03_label_noise", {"common": {"seed": 3}}, "'seed' .*would change nothing"),
        ("03_label_noise", {"recipe": "small-real"}, "'smollm2-135m', which the benchmark 'world'"),
        ("04_hard_pair_routing", {"common": {"batch_pairs": 0}}, "common: .*'batch_pairs' is 0"),
        ("06_exact_ties", {"rates": [0.3]}, "add 0.0 to the rates"),
        ("06_exact_ties", {"common": {"data": "x.jsonl"}}, "'dpo 0.05': tie_rate needs a tie_pool"),
        ("08_self_confirmation", {"calibration": "own"}, "should be 'checkpoint' or 'self'"),
        ("02_main_results", {"datasets": {"a": {"flip_rate": 2}}}, "'DPO, a, world': .*is 2.0: "),
        ("02_main_results", {"paper_model": "GPT"}, "'GPT'; the paper's main table has Qwen2.5"),
        ("02_main_results", {"transfer": ["ipo"]}, "transfer has ipo, which methods has not"),
        ("09_ablations", {"benchmarks": ["mt-bench"]}, "'gold' knows the benchmark 'world' alone"),
        ("09_ablations", {"recipe": "small-real"}, "'smollm2-135m', which the benchmark 'world'"),
        ("02_main_results", {"recipe": "small-real"}, "'smollm2-135m', which the benchmark"),
        (
            "02_main_results",
            {"recipe": "small-real", "models": ["smollm2-135m"]},
            "'smollm2-135m', which the benchmark 'world'",
        ),
        ("09_ablations", {"control_betas": [0]}, "'control_betas' is 0: input should be greater"),
        ("14_judges", {"judges": ["gold", "a/x", "b/x"]}, "have one name in files, 'x'"),
        ("14_judges", {"judge": {"sed": 1}}, "judge: Unknown parameter 'sed'; did you mean 'seed'"),
    ],
)
def test_a_study_that_cannot_be_meant_is_refused_before_a_kernel_starts(stem, values, sentence):
    with pytest.raises((ParameterError, RunError), match=sentence):
        notebook_values(TRAIN.with_name(f"{stem}.ipynb"), values)


def test_numbers_of_a_study_may_be_spelled_with_an_exponent():
    values = notebook_values(TRAIN.with_name("03_label_noise.ipynb"), {"rates": ["1e-1", 0]})
    assert values["rates"] == [0.1, 0.0]


def test_several_jobs_have_a_line_each_with_what_remains(tmp_path, capsys):
    import ipykernel.kernelapp  # noqa: F401  # as other tools of a process that is no kernel do

    start = lambda notebook, values, scratch: _Failed()  # noqa: E731
    jobs = [TINY | {"name": name, "runs_dir": str(tmp_path)} for name in ("a", "b")]
    assert len(run_jobs(TRAIN, jobs, start=start)) == 2
    first, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"1/2  a +failed in 00:\d\d; 00:\d\d so far, 1 left, about 00:\d\d", first)
    assert re.fullmatch(r"2/2  b +failed in 00:\d\d; 00:\d\d so far, none is left", last)


def test_what_remains_counts_the_jobs_that_run_side_by_side(monkeypatch, capsys):
    """Three jobs, two at a time; the first two take 86 s and 90 s, and so will the third."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    tally = Tally(3, workers=2)
    now = 86.0
    tally.add("first", "done", 0.0, [0.0])  # the second is about to end, the third has not begun
    assert "2 left, about 01:26" in capsys.readouterr().err
    now = 90.0
    tally.add("second", "done", 0.0, [86.0])
    assert "1 left, about 01:24" in capsys.readouterr().err
    cluster = Tally(3)
    now = 180.0
    cluster.add("first", "done", 90.0)
    assert "2 left, about 03:00" in capsys.readouterr().err


def test_a_job_that_fails_before_its_run_leaves_its_reason(tmp_path):
    start = lambda notebook, values, scratch: _Failed()  # noqa: E731
    (error,) = run_jobs(TRAIN, [TINY | {"name": "x", "runs_dir": str(tmp_path)}], start=start)
    assert error == "x: no kernel"
    assert open_run(tmp_path / "x").status["reason"] == "no kernel"
    create_run(tmp_path, "x", {"kind": "training"})  # the name is free


def test_a_job_that_is_killed_says_so_and_not_what_it_wrote_last(tmp_path):
    process = Process(TRAIN, {"name": "x", "runs_dir": str(tmp_path)}, tmp_path, {})
    (tmp_path / "log").write_text("some warning of a library")
    process._process.kill()
    wait_for(lambda: process.poll() is not None)
    assert process.said() == "the process was killed (SIGKILL)"


class _Failed:
    def poll(self):
        return 1

    def said(self):
        return "no kernel"

    def stop(self):
        raise AssertionError("it has ended")


def killed_grid(notebook, job, number):
    """Run one job in a grid that is sent a signal where the notebook stays; what it said."""
    jobs = Path(job["runs_dir"], "jobs.yaml")
    jobs.write_text(yaml.safe_dump([job]))
    grid = subprocess.Popen(
        [sys.executable, "-m", "plc_core.batch", str(notebook), "--jobs", str(jobs)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background of a shell have it ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for(lambda: stays(job["runs_dir"], job["name"]), grid)
        children = psutil.Process(grid.pid).children(recursive=True)
        assert len(children) >= 2
        grid.send_signal(number)
        said = grid.communicate()[1]
    finally:
        grid.kill()
        grid.wait()
    wait_for(lambda: not any(is_alive(child) for child in children))
    assert grid.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)
    return said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_grid_leaves_no_process_and_the_next_call_goes_on(tmp_path, number):
    notebook = training_stand_in(tmp_path)
    job = {"name": "cut", "runs_dir": str(tmp_path)}
    said = killed_grid(notebook, job, number)
    assert ("Interrupted" in said) == (number != signal.SIGKILL)
    run = open_run(tmp_path / "cut")
    assert run.status["state"] == "killed"
    assert run_jobs(notebook, [job]) == []
    assert run.status["state"] == "done"
    assert open_run(run.path).info["went_on"]


def test_a_training_run_whose_grid_was_killed_goes_on_from_its_checkpoint(tmp_path):
    notebook = stays_at_its_first_checkpoint(tmp_path)
    job = TINY | {"name": "cut", "runs_dir": str(tmp_path), "save_steps": 1, "eval_prompts": 0}
    killed_grid(notebook, job, signal.SIGKILL)
    run = open_run(tmp_path / "cut")
    assert run.status["state"] == "killed"
    assert run.metrics()["step"].max() < 2
    assert run_jobs(notebook, [job]) == []
    assert run.metrics()["step"].tolist() == [0, 1, 2]


def test_a_cluster_that_loses_a_node_completes_the_grid(tmp_path, patient_ray):
    """Two nodes of one core each; the second is taken away while both have a job under way."""
    from ray.cluster_utils import Cluster

    from plc_core.batch.cluster import ray_starter

    notebook = training_stand_in(tmp_path)
    jobs = [{"name": f"j{n}", "runs_dir": str(tmp_path)} for n in range(2)]
    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1)
    lost = []

    def starter(start):
        def begun(notebook, values, scratch):
            task = start(notebook, values, scratch)
            poll = task.poll

            def polled():
                if not lost and all(stays(tmp_path, job["name"]) for job in jobs):
                    lost.append(second)
                    cluster.remove_node(second, allow_graceful=False)
                    (tmp_path / "go").touch()
                return poll()

            task.poll = polled
            return task

        return begun

    try:
        with ray_starter(cluster.address) as start:
            assert run_jobs(notebook, jobs, 2, starter(start)) == []
    finally:
        cluster.shutdown()
        assert not patient_ray.is_initialized()
    assert lost
    runs = [open_run(tmp_path / job["name"]) for job in jobs]
    assert [run.status["state"] for run in runs] == ["done", "done"]
    assert sorted(run.info["went_on"] for run in runs) == [False, True]


def test_the_papers_notebooks_are_found_by_number(tmp_path):
    for stem in ("01_train", "02_a", "11_overhead", "13_b", "demo"):
        write_json(tmp_path / f"{stem}.ipynb", {})
    assert [path.stem for path in paper_notebooks(tmp_path)] == ["02_a", "13_b"]


def test_the_order_of_names_in_a_parameter_reaches_the_job(tmp_path):
    """The first of 02's datasets has all methods."""
    values = {"name": "x", "datasets": {"z": {}, "a": {"flip_rate": 0.1}}}
    process = Process(TRAIN, values, tmp_path, {"PATH": ""})
    process.stop()
    assert list(yaml.safe_load((tmp_path / "parameters.yaml").read_text())["datasets"]) == [
        "z",
        "a",
    ]


def test_a_relative_file_of_prompts_is_below_the_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {"benchmarks": ["README.md#part", "mt-bench", "no-such"], "judges": ["judge"]}
    read = notebook_values(TRAIN.with_name("09_ablations.ipynb"), values)
    assert read["benchmarks"] == [f"{ROOT / 'README.md'}#part", "mt-bench", "no-such"]
    # A folder of them too, and one that is not there, instead of one where the caller stands.
    (tmp_path / "some").mkdir()
    values["benchmarks"] = ["data/paper", "some/prompts", "some.jsonl"]
    read = notebook_values(TRAIN.with_name("09_ablations.ipynb"), values)
    assert read["benchmarks"] == [str(ROOT / name) for name in values["benchmarks"]]
