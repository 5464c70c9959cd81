"""The notebooks on win rates in the embedded world, on a tiny setting; they share their runs.

On the shapes of real benchmarks, number by number: tests/test_real_shapes.py.
"""

import json
import re

import pandas as pd
import pytest
from pydantic import ValidationError

from notebooks.studies import (
    ablations,
    main_results,
    second_judge,
    sensitivity,
    training_dynamics,
    win_rate_study,
)
from notebooks.studies.study import paper_name
from plc_core.analysis.paper import published
from plc_core.batch import run_notebook
from plc_core.parameters import notebook_values
from plc_core.runs import open_run
from plc_core.storage.files import RunError
from tests.paths import LARGEST_REPORT, ROOT
from tests.real_shapes import run_cells, trained_here
from tests.test_study_notebooks import COMMON

NOTEBOOKS = ["02_main_results", "09_ablations", "10_sensitivity", "12_seeds",
             "13_training_dynamics", "14_judges"]  # fmt: skip
SHARED = {"eval_prompts": 16, "control_betas": [0.1], "common": {"flip_rate": 0.3} | COMMON}
SMOKE = {
    "13_training_dynamics": {"save_steps": 1, "methods": ["dpo", "plc"], "control_betas": []},
    "14_judges": {"methods": ["plc"], "judge": {"seed": 100, "num_pairs": 48}},
}  # fmt: skip
"""What differs from the defaults in a smoke run of each notebook."""
IN_A_KERNEL = "14_judges"
"""The one that is executed as a user's is, with its runs trained before; a kernel takes long."""


@pytest.mark.parametrize("name", SMOKE)
def test_a_notebook_ends_in_its_table_and_its_sentence(study_runs, name):
    values = SHARED | SMOKE[name] | {"name": name, "runs_dir": str(study_runs)}
    with trained_here():
        if name == IN_A_KERNEL:
            config = second_judge.JudgesConfig(**values)
            win_rate_study.entries_of(config, config.compared())
            run_notebook(ROOT / "notebooks" / f"{name}.ipynb", values)
        else:
            shown = run_cells(name, **values)["shown"]
            assert re.search(r"\*\*[^*]+\d\.\d[^*]+\*\*", shown[-1].data)
    run = open_run(study_runs / name)
    assert run.info["runs"]
    tables = list((run.path / "tables").glob("*.csv"))
    assert tables
    assert all(len(pd.read_csv(path)) for path in tables)


def test_a_report_holds_its_pictures_and_its_sentence(study_runs):
    """After 14, which ran in a kernel."""
    run = open_run(study_runs / IN_A_KERNEL)
    assert run.status["state"] == "done"
    text = (run.path / "report.html").read_text()
    assert text.count('class="plc-figure"') >= 1
    assert len(text.encode()) <= LARGEST_REPORT
    notebook = json.loads((run.path / "notebook.ipynb").read_text())
    shown = json.dumps([cell.get("outputs") for cell in notebook["cells"]], ensure_ascii=False)
    assert re.search(r"\*\*[^*]+\d\.\d[^*]+\*\*", shown)  # the sentence, with its numbers
    assert "Warning" not in shown


def test_checkpoints_are_not_answered_where_nothing_is_to_be_made(study_runs):
    """After 13: what is there is read, and other prompts are not asked."""
    values = SHARED | SMOKE["13_training_dynamics"] | {"name": "x", "runs_dir": str(study_runs)}
    config = training_dynamics.DynamicsConfig(**values, make=False)
    runs = training_dynamics.dynamics_runs(config)
    assert len(training_dynamics.dynamics_table(runs, config))
    more = config.model_copy(update={"eval_prompts": 17})
    with pytest.raises(RunError, match="1 run lacks answers of its checkpoints to 'world'"):
        training_dynamics.dynamics_table(runs, more)


def test_the_defaults_of_the_notebooks_are_those_of_their_configs():
    for name in NOTEBOOKS:
        values = notebook_values(ROOT / "notebooks" / f"{name}.ipynb", {})
        assert values["name"]
        assert values["workers"] == 2


def test_without_making_the_missing_runs_are_named(tmp_path):
    values = SHARED | {"name": "x", "runs_dir": str(tmp_path), "make": False}
    with pytest.raises(RunError, match="missing"):
        run_cells("09_ablations", **values)


# ---- what is asked for ---------------------------------------------------------------------------


def test_the_ablations_are_the_rows_of_the_papers_table():
    assert list(ablations.VARIANTS) == list(dict.fromkeys(published("ablations")["variant"]))


def test_the_sweeps_are_the_papers_grid():
    every = sensitivity.grid(sensitivity.SensitivityConfig(name="x", points="all"))
    table = published("sweeps")
    assert sorted(every) == sorted(zip(table["hyperparameter"], table["value"], strict=True))
    ends = sensitivity.grid(sensitivity.SensitivityConfig(name="x"))
    assert len(ends) == 12
    assert set(ends) <= set(every)
    assert sensitivity.default("tau_dir") == 0.55
    with pytest.raises(ValidationError):
        sensitivity.SensitivityConfig(name="x", hyperparameters=["tau"])


def test_methods_are_the_papers_and_controls_are_plain_dpo():
    methods = set(published("main_results")["method"]) - {"SFT"}
    assert {paper_name(name) for name in main_results.METHODS} == methods
    config = win_rate_study.ContestConfig(name="x", control_betas=[0.1])
    assert win_rate_study.controls(config) == {"DPO β=0.1": {"objective": "dpo", "beta": 0.1}}


def test_a_model_is_given_by_its_folder_and_named_as_it_is_called():
    """With a recipe whose model lies elsewhere; of a stage's run it is the run's name."""
    recipe = {"name": "x", "recipe": "paper/qwen2.5-7b", "benchmarks": ["vicuna"], "judges": ["rm"]}
    plain = main_results.MainConfig(**recipe, datasets={"uf": {}})
    assert plain.starts() == {"qwen2.5-7b-sft": "./models/qwen2.5-7b-sft"}
    one = main_results.MainConfig(**recipe, datasets={"uf": {}}, common={"model": "/a/sft"})
    assert one.starts() == {"sft": "/a/sft"}
    for models in (
        ["/runs/a/model", "/runs/b/model"],
        {"a": "/runs/a/model", "b": "/runs/b/model"},
    ):
        two = main_results.MainConfig(**recipe, datasets={"uf": {}}, models=models)
        assert two.starts() == {"a": "/runs/a/model", "b": "/runs/b/model"}
        trained = {own["model"] for own in two.variants().values()}
        assert trained == {"/runs/a/model", "/runs/b/model"}
    with pytest.raises(ValidationError, match="call two of them 'sft'; name each"):
        main_results.MainConfig(**recipe, datasets={"uf": {}}, models=["/a/sft", "/b/sft"])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"grid": {"flipped": {"world": None}, "new": {"world": None}}}, "'new', which datasets"),
        ({"grid": {"flipped": {"world": None}}}, "datasets has 'clean', which grid has nowhere"),
        ({"judges": ["gold", "rm"]}, "by one judge"),
        ({"control_betas": [0.1, 0.1 + 1e-9]}, "tables call alike"),
    ],
)
def test_what_no_table_could_hold_is_refused_before_anything_runs(changed, said):
    with pytest.raises(ValidationError, match=said):
        main_results.MainConfig(name="x", datasets={"flipped": {}, "clean": {}}, **changed)


def test_both_objectives_called_rdpo_have_a_row():
    config = second_judge.JudgesConfig(name="x", methods=["rdpo-length", "rdpo-robust"])
    assert list(config.compared()) == ["rDPO", "rdpo-robust"]
    for methods in (
        main_results.METHODS,
        sensitivity.BESIDE,
        second_judge.JudgesConfig(name="x").methods,
    ):
        assert "rdpo-length" in methods
        assert "rdpo-robust" not in methods
