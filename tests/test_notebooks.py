"""The notebooks: their conventions, a real execution in a batch, and what they refuse."""

import ast
import json
import re

import numpy as np
import papermill
import pytest

from plc_core.batch import NotebookError, main, run_notebook
from plc_core.engine.config import TrainConfig
from plc_core.files import RunError
from plc_core.jobs import run_jobs
from plc_core.parameters import ParameterError, notebook_parameters
from plc_core.runs import open_run
from tests.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TRAIN = ROOT / "notebooks" / "01_train.ipynb"
TINY = {"num_pairs": 48, "batch_pairs": 16, "pairs_per_forward": 16, "eval_prompts": 8}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_keeps_the_conventions(path):
    notebook = json.loads(path.read_text())
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    tagged = [c for c in code if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1
    assert len(notebook["cells"]) <= 15
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert not any(c["outputs"] or c["execution_count"] for c in code)
    sources = ["".join(c["source"]) for c in code]
    assert not any(re.search(r"^\s*(def|class) ", s, re.M) for s in sources)
    lines = "".join(tagged[0]["source"]).splitlines()
    for line in lines:
        name, value, comment = re.fullmatch(r"(\w+) = (.+?)  # (.+)", line).groups()
        assert name
        assert comment
        assert "=" not in value
        ast.literal_eval(value)


def test_the_training_notebooks_defaults_are_the_configs():
    known = {
        name: ast.literal_eval(p["default"])
        for name, p in papermill.inspect_notebook(str(TRAIN)).items()
    }
    assert known == TrainConfig(name="first-run").model_dump()
    assert all(p["help"] for p in papermill.inspect_notebook(str(TRAIN)).values())


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        jobs = [
            TINY | {"name": "plc", "runs_dir": str(folder), "flip_rate": 0.3},
            TINY | {"name": "dpo", "runs_dir": str(folder), "flip_rate": 0.3, "objective": "dpo"},
        ]
        assert run_jobs(TRAIN, jobs, workers=2) == []
    return folder


def test_a_batch_leaves_run_notebook_and_report(executed):
    run = open_run(executed / "plc")
    assert run.status["state"] == "done"
    assert len(run.visits()) == 48
    assert len(run.table("judgements/gold-world.parquet")) == 4 * 8
    report = (run.path / "report.html").read_text()
    assert report.count("Plotly.newPlot(") >= 4
    assert not re.search(r"<(script|link|img)[^>]+https?://", report)
    notebook = run.path / "notebook.ipynb"
    assert notebook.stat().st_size < 2_000_000
    assert not (executed / "01_train.ipynb").exists()


def test_the_report_compares_the_runs(executed):
    run_notebook(
        ROOT / "notebooks" / "demo.ipynb",
        {"name": "report", "runs_dir": str(executed), "runs": ["dpo", "plc"], "baseline": "dpo",
         "spotlight": "plc"},
    )  # fmt: skip
    report = (executed / "report" / "report.html").read_text()
    assert "KL to SFT" in report
    assert "PLC β=0.2" in report


def test_finished_jobs_are_not_run_again(executed):
    before = (executed / "plc" / "run.json").stat().st_mtime_ns
    job = TINY | {"name": "plc", "runs_dir": str(executed), "flip_rate": "3e-1"}
    assert run_jobs(TRAIN, [job]) == []
    assert (executed / "plc" / "run.json").stat().st_mtime_ns == before
    errors = run_jobs(TRAIN, [job | {"seed": 1}])
    assert errors == [
        f"plc: A run named 'plc' exists in {executed}; nothing was changed. Choose another name, "
        "or delete that folder yourself."
    ]


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"gama_max": 0.8}, "Unknown parameter 'gama_max'"),
        ({"objectiv": "dpo"}, "did you mean 'objective'"),
    ],
)
def test_an_unknown_parameter_is_refused_before_anything_runs(tmp_path, parameters, sentence):
    with pytest.raises(ParameterError, match=sentence):
        run_notebook(TRAIN, {"name": "x", "runs_dir": str(tmp_path)} | parameters)
    assert not list(tmp_path.iterdir())


def test_a_wrong_value_is_a_sentence_and_makes_no_run(tmp_path, capsys):
    arguments = [str(TRAIN), "-p", "runs_dir", str(tmp_path), "-p", "beta", "large", "--quiet"]
    assert main(arguments) == 1
    assert "The parameter 'beta' is 'large'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_failed_run_keeps_its_notebook_and_report(tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "x", "chosen": "y", "rejected": "y"}\n')
    parameters = {"name": "bad", "runs_dir": str(tmp_path), "data": str(tmp_path / "pairs.jsonl")}
    with pytest.raises(NotebookError, match=r"(?s)No row of .*identical: 1"):
        run_notebook(TRAIN, parameters)
    run = open_run(tmp_path / "bad")
    assert run.status["state"] == "failed"
    assert "identical: 1" in run.status["reason"]
    assert (run.path / "notebook.ipynb").exists()
    assert "identical: 1" in (run.path / "report.html").read_text()


def test_values_of_other_libraries_are_converted(tmp_path):
    with pytest.raises(NotebookError, match="no model folder"):
        run_notebook(
            TRAIN,
            {"name": "x", "runs_dir": tmp_path, "beta": np.float32(0.5), "model": tmp_path / "no"},
        )


@pytest.mark.parametrize("content", ["[1", "- 1", "text"])
def test_a_broken_parameter_file_is_a_sentence(tmp_path, capsys, content):
    file = tmp_path / "p.yaml"
    file.write_text(content)
    assert main([str(TRAIN), "-f", str(file)]) == 1
    assert str(file) in capsys.readouterr().err


def test_a_notebook_without_parameters_is_refused(tmp_path):
    path = tmp_path / "plain.ipynb"
    notebook = json.loads(TRAIN.read_text())
    for cell in notebook["cells"]:
        cell["metadata"].pop("tags", None)
    path.write_text(json.dumps(notebook))
    with pytest.raises(RunError, match="no cell tagged 'parameters'"):
        run_notebook(path, {})
    with pytest.raises(RunError, match="no notebook at"):
        run_notebook(tmp_path / "nothing.ipynb", {})


def test_parameters_are_what_the_cells_set_to_plain_values():
    cells = ["", "name = 'x'\nbeta = 0.3  # scale", "import os\nseed = 7", "%magic", "beta = 1e-5"]
    namespace = {"In": cells, "name": "x", "beta": 1e-5, "seed": 7, "other": 3}
    config = notebook_parameters(namespace, TrainConfig)
    assert (config.name, config.beta, config.seed) == ("x", 1e-5, 0)
    with pytest.raises(ParameterError, match="did you mean 'recipe'"):
        notebook_parameters({"In": ["name = 'x'\nrecip = 'bold'"], "name": "x", "recip": "bold"},
                            TrainConfig)  # fmt: skip
