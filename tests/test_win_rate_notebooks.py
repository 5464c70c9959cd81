"""The notebooks on win rates, executed on a tiny setting; they share their runs."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from pydantic import ValidationError

from plc_core import TrainConfig, evaluate, train
from plc_core.analysis.paper import published
from plc_core.batch import run_notebook
from plc_core.experiments import (
    ablations,
    contest,
    main_results,
    seed_stability,
    sensitivity,
    training_dynamics,
)
from plc_core.experiments.planning import plan_runs
from plc_core.files import RunError
from plc_core.parameters import notebook_values
from plc_core.runs import open_run
from tests.paths import ROOT
from tests.test_study_notebooks import COMMON

SHARED = {"eval_prompts": 16, "control_betas": [0.1], "common": {"flip_rate": 0.3} | COMMON}
SMOKE = {
    "02_main_results": {"datasets": {"flipped": {}, "clean": {"flip_rate": 0.0}},
                        "methods": ["plc"], "transfer": ["plc"]},
    "09_ablations": {},
    "10_sensitivity": {"hyperparameters": ["kappa"]},
    "12_seeds": {"seeds": [0, 1], "methods": ["plc"]},
    "13_training_dynamics": {"save_steps": 1, "methods": ["dpo", "plc"], "control_betas": []},
    "14_judges": {"methods": ["plc"], "judge": {"seed": 100, "num_pairs": 48}},
}  # fmt: skip
"""What differs from the defaults in a smoke run of each notebook."""
MANY = {
    "09_ablations": ablations.AblationConfig,
    "10_sensitivity": sensitivity.SensitivityConfig,
    "12_seeds": seed_stability.SeedConfig,
}
"""Those of many runs, which are trained in this process: a kernel for each takes three times as
long. The others have theirs trained as a user's are."""


def train_here(config):
    """Train what a study plans, as notebooks/01_train.ipynb does, where it is not there yet."""
    for plan in plan_runs(config.recipe, config.variants(), config.seeds, config.common):
        if not (Path(config.runs_dir) / plan.name).exists():
            known = plan.parameters | {"name": plan.name, "runs_dir": config.runs_dir}
            run = train(TrainConfig(**known))
            evaluate(run, run.info["config"]["eval_prompts"])


@pytest.mark.parametrize("name", SMOKE)
def test_a_notebook_ends_in_its_table_and_its_sentence(study_runs, name):
    values = SHARED | SMOKE[name] | {"name": name, "runs_dir": str(study_runs)}
    if name in MANY:
        train_here(MANY[name](**values))
    run_notebook(ROOT / "notebooks" / f"{name}.ipynb", values)
    run = open_run(study_runs / name)
    assert run.status["state"] == "done"
    assert run.info["runs"]
    assert (run.path / "report.html").read_text().count("Plotly.newPlot(") >= 1
    tables = list((run.path / "tables").glob("*.csv"))
    assert tables
    assert all(len(pd.read_csv(path)) for path in tables)
    notebook = json.loads((run.path / "notebook.ipynb").read_text())
    shown = json.dumps([cell.get("outputs") for cell in notebook["cells"]], ensure_ascii=False)
    assert re.search(r"\*\*[^*]+\d\.\d[^*]+\*\*", shown)  # the sentence, with its numbers
    assert "Warning" not in shown


def test_runs_are_shared_between_the_notebooks(study_runs):
    """The pairs of the first data set, DPO, PLC-DPO and the control are trained once."""
    named = {name: open_run(study_runs / name).info["runs"] for name in SMOKE}
    main = named["02_main_results"]["PLC-DPO, flipped, world"]
    assert main == named["09_ablations"]["PLC-DPO full, pairs, world"]
    assert main == named["10_sensitivity"]["PLC-DPO, pairs, world"]
    assert main == named["14_judges"]["PLC-DPO, pairs, world"]
    assert main[0] in named["12_seeds"]["PLC-DPO, pairs, world"]


def test_checkpoints_are_not_answered_where_nothing_is_to_be_made(study_runs):
    """After 13: what is there is read, and other prompts are not asked."""
    values = SHARED | SMOKE["13_training_dynamics"] | {"name": "x", "runs_dir": str(study_runs)}
    config = training_dynamics.DynamicsConfig(**values, make=False)
    runs = training_dynamics.dynamics_runs(config)
    assert len(training_dynamics.dynamics_table(runs, config))
    more = config.model_copy(update={"eval_prompts": 17})
    with pytest.raises(RunError, match="1 run lacks answers of its checkpoints to 'world-17'"):
        training_dynamics.dynamics_table(runs, more)


def test_the_defaults_of_the_notebooks_are_those_of_their_configs():
    for name in SMOKE:
        values = notebook_values(ROOT / "notebooks" / f"{name}.ipynb", {})
        assert values["name"]
        assert values["workers"] == 2


def test_without_making_the_missing_runs_are_named(tmp_path):
    values = SHARED | {"name": "x", "runs_dir": str(tmp_path), "make": False}
    with pytest.raises(Exception, match="missing"):
        run_notebook(ROOT / "notebooks" / "09_ablations.ipynb", values)


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
    from plc_core.experiments.study import paper_name

    assert {paper_name(name) for name in main_results.METHODS} == methods
    config = contest.ContestConfig(name="x", control_betas=[0.1])
    assert contest.controls(config) == {"DPO β=0.1": {"objective": "dpo", "beta": 0.1}}
