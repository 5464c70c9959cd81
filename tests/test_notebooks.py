"""The notebooks: their conventions, a real execution in a batch, and what they refuse."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import nbformat
import numpy as np
import papermill
import pytest

from plc_core import train
from plc_core.batch import NotebookError, run_notebook
from plc_core.batch.__main__ import main
from plc_core.batch.jobs import JobError, run_jobs
from plc_core.batch.report import write_report
from plc_core.engine.config import TrainConfig
from plc_core.evaluation.summary import labels, summary_table, verdict
from plc_core.parameters import ParameterError, notebook_parameters, notebook_values
from plc_core.runs import open_run
from plc_core.storage.files import RunError
from plc_core.typography import minus
from tests.paths import LARGEST_REPORT, ROOT
from tests.stand_in import TINY, TRAIN, analysis_stand_in, stays
from tests.waiting import wait_for

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DEMO, PAIRS = (ROOT / "notebooks" / f"{name}.ipynb" for name in ("demo", "data"))


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
    for line in (line for line in lines if line and not line.startswith("# ")):
        name, value, comment = re.fullmatch(r"(\w+) = (.+?)  # (.+)", line).groups()
        assert name
        assert comment
        assert "=" not in value
        ast.literal_eval(value)


def test_the_training_notebooks_defaults_are_the_configs():
    assert notebook_values(TRAIN, {}) == TrainConfig(name="first-run").model_dump()
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
    assert report.count('class="plc-figure"') >= 4
    assert not re.search(r"<(script|link|img)[^>]+https?://", report)
    assert len(report.encode()) <= LARGEST_REPORT
    notebook = run.path / "notebook.ipynb"
    assert notebook.stat().st_size < 2_000_000
    assert not (executed / "01_train.ipynb").exists()


def test_the_report_of_pairs_says_what_became_of_every_row(tmp_path):
    prompt = "cook soup . cover chop , boil . skip bake ."
    rows = [
        {"prompt": prompt, "chosen": "then chop it .", "rejected": f"{'well , ' * n}then boil it ."}
        for n in range(6)
    ]
    rows += [{"prompt": prompt, "chosen": "", "rejected": "<b>so</b>"}, rows[0]]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    values = {"name": "pairs", "runs_dir": str(tmp_path), "data": str(tmp_path / "pairs.jsonl"),
              "lengths": [24, 64]}  # fmt: skip
    run_notebook(PAIRS, values)
    report = (tmp_path / "pairs" / "report.html").read_text()
    assert "8 rows read: 6 pairs kept, 2 rows left out" in report
    said = "Of 8 rows, 6 are pairs to train on; the chosen answer is the longer one in 0 % [0, 43] "
    found, picture, table = map(report.index, (said, 'class="plc-figure"', "median chosen"))
    assert found < picture < table < report.index("How to read this")
    assert report.count('class="plc-figure"') == 1
    assert len(report.encode()) <= LARGEST_REPORT
    findings = open_run(tmp_path / "pairs").findings()
    assert sorted(findings["rule"]) == ["duplicate", "empty-answer"]


REPORT = {"runs": ["dpo", "plc"], "baseline": "dpo", "control": None, "spotlight": "plc"}


def test_the_report_compares_the_runs_and_is_made_again(executed):
    values = REPORT | {"name": "report", "runs_dir": str(executed)}
    run_notebook(DEMO, values)
    report = (executed / "report" / "report.html").read_text()
    assert "KL to SFT" in report
    assert "PLC β=0.2" in report
    assert len(report.encode()) <= LARGEST_REPORT
    assert open_run(executed / "report").status["state"] == "done"
    (executed / "report" / "report.html").write_text("kept")
    assert run_jobs(DEMO, [values]) == []
    assert (executed / "report" / "report.html").read_text() == "kept"
    (executed / "plc" / "run.json").touch()
    assert run_jobs(DEMO, [values]) == []
    assert "KL to SFT" in (executed / "report" / "report.html").read_text()


def test_the_summary_is_the_files(executed):
    """Win rates, KL and mean weights of the table, recomputed with pandas alone."""
    dpo, plc = (open_run(executed / name) for name in ("dpo", "plc"))
    table = summary_table([dpo, plc], dpo)
    assert list(table.columns) == ["SFT", "DPO β=0.2", "PLC β=0.2"]
    gold = plc.table("judgements/gold-world.parquet")
    own = gold.query("policy == 'trained' and decoding == 'greedy'").set_index("prompt_id")
    other = dpo.table("judgements/gold-world.parquet")
    other = other.query("policy == 'trained' and decoding == 'greedy'").set_index("prompt_id")
    gap = own["reward"] - other["reward"].loc[own.index]
    rate = 100 * ((gap > 0).mean() + (gap == 0).mean() / 2)
    cell = table.loc["win % against DPO β=0.2, greedy", "PLC β=0.2"]
    assert cell.startswith(f"{rate:.1f} [")
    sampled = plc.table("generations/world-log-probs.parquet").query(
        "policy == 'trained' and decoding == 'sampled'"
    )
    kl = (sampled["policy_logp"] - sampled["reference_logp"]).mean()
    assert table.loc["KL to SFT, nats per response", "PLC β=0.2"].startswith(minus(f"{kl:.2f} ["))
    seen = plc.visits().merge(plc.pairs(), on="pair_id").query("oracle_state == 'flip'")
    means = "/".join(f"{seen[f'q_{state}'].mean():.3f}" for state in ("clean", "flip", "tie"))
    assert table.loc[f"q clean/flip/tie, flip pairs (n={len(seen)})", "PLC β=0.2"] == means


def test_runs_that_look_alike_are_told_apart(executed, tmp_path):
    dpo, plc = (open_run(executed / name) for name in ("dpo", "plc"))
    shutil.copytree(plc.path, tmp_path / "plc-again")
    again = open_run(tmp_path / "plc-again")
    assert labels([dpo, plc, again]) == {
        "dpo": "DPO β=0.2",
        "plc": "PLC β=0.2 (plc)",
        "plc-again": "PLC β=0.2 (plc-again)",
    }
    assert len(summary_table([dpo, plc, again], dpo).columns) == 4
    again.info["data"]["fingerprint"] = "other"
    with pytest.raises(RunError, match="do not start from the same pairs"):
        summary_table([dpo, again], dpo)


def test_the_verdict_says_what_is_left_at_like_kl(executed):
    dpo, plc = (open_run(executed / name) for name in ("dpo", "plc"))
    sentence = verdict(plc, dpo)
    assert sentence.startswith("Against DPO β=0.2, which moved ")
    assert sentence.count("(no difference shown)") + sentence.count("(it wins ") == 2


def test_finished_jobs_are_kept_and_said_and_another_of_the_name_changes_nothing(executed, capsys):
    kept = [executed / "plc" / name for name in ("run.json", "notebook.ipynb", "report.html")]
    before = [(file.read_bytes(), file.stat().st_mtime_ns) for file in kept]
    job = TINY | {"name": "plc", "runs_dir": str(executed), "flip_rate": "3e-1"}
    assert run_jobs(TRAIN, [job]) == []
    assert "plc: kept, it is finished" in capsys.readouterr().err
    (error,) = run_jobs(TRAIN, [job | {"seed": 1}])
    assert f"A run named 'plc' exists in {executed}; nothing was changed." in error
    assert "set resume to true" in error
    with pytest.raises(RunError, match="other parameters: beta changed"):
        train(TrainConfig(**job | {"beta": 0.3, "resume": True}))
    assert [(file.read_bytes(), file.stat().st_mtime_ns) for file in kept] == before


def test_one_run_asked_for_again_is_a_sentence_and_an_error(executed, capsys):
    name = ["-p", "name", "plc", "-p", "runs_dir", str(executed)]
    assert main([str(TRAIN), *name]) == 1
    assert "A run named 'plc' exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("jobs", "workers", "sentence"),
    [
        ([{"name": "good"}, {"name": "bad/name"}], 1, "'bad/name' is not usable"),
        ([{"name": "good"}, {"name": "good"}], 1, "Two jobs have one name: good"),
        ([{"name": "good"}, {"name": "x", "beta": -1}], 1, "'beta' is -1"),
        ([{"name": "good"}], 0, "must be at least 1"),
    ],
)
def test_jobs_that_cannot_be_meant_are_refused_before_any_starts(tmp_path, jobs, workers, sentence):
    jobs = [job | {"runs_dir": str(tmp_path)} for job in jobs]
    with pytest.raises((RunError, ParameterError, JobError), match=sentence):
        run_jobs(TRAIN, jobs, workers)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_report_is_not_taken_for_a_finished_one(tmp_path):
    path = analysis_stand_in(tmp_path)
    values = {"name": "report", "runs_dir": str(tmp_path)}
    command = [sys.executable, "-m", "plc_core.batch", str(path), "--quiet"]
    command += [word for pair in values.items() for word in ("-p", *pair)]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for(lambda: stays(tmp_path, "report"), process)
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: the kernel gets it too
        assert "nterrupt" in process.communicate()[1]
    finally:
        process.kill()
    run = open_run(tmp_path / "report")
    assert run.status["state"] in ("killed", "failed")
    assert "nterrupt" in run.status["reason"]
    assert run_jobs(path, [values]) == []
    assert open_run(run.path).status["state"] == "done"


def test_a_wrong_parameter_is_a_sentence_before_anything_runs(tmp_path, capsys):
    with pytest.raises(ParameterError, match="did you mean 'objective'"):
        run_notebook(TRAIN, {"name": "x", "runs_dir": str(tmp_path), "objectiv": "dpo"})
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
    report = run.path / "report.html"
    assert "identical: 1" in report.read_text()
    assert report.stat().st_size < 100_000  # without plotly, as there is no figure


def test_a_report_has_each_warning_once_and_as_its_sentence(tmp_path):
    notebook = nbformat.v4.new_notebook()
    warned = "/a/chain.py:106: GenerationWarning: of 6 answers 6 were\ncut off.\n  generate(run)\n"
    future = "/b/modeling.py:1: FutureWarning: will be removed.\n  warnings.warn(\n"
    outputs = [
        nbformat.v4.new_output("stream", name="stderr", text=text)
        for text in (future, warned + warned, "plain words\n" + warned, future, "other words\n")
    ]
    notebook.cells = [nbformat.v4.new_code_cell("x", outputs=outputs)]
    nbformat.write(notebook, tmp_path / "notebook.ipynb")
    write_report(tmp_path / "notebook.ipynb", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    for once in ("of 6 answers 6 were\ncut off.", "plain words", "other words"):
        assert text.count(once) == 1
    for never in ("FutureWarning", "will be removed", "chain.py", "generate(run)"):
        assert never not in text


def test_values_of_other_libraries_are_converted(tmp_path):
    given = {"name": "x", "runs_dir": tmp_path, "beta": np.float32(0.5), "seed": np.int64(3)}
    values = notebook_values(TRAIN, given)
    assert (values["runs_dir"], values["beta"], values["seed"]) == (str(tmp_path), 0.5, 3)


@pytest.mark.parametrize("content", ["[1", "- 1", "text", "", "1: 2"])
def test_a_broken_parameter_file_is_a_sentence(tmp_path, capsys, content):
    file = tmp_path / "p.yaml"
    file.write_text(content)
    assert main([str(TRAIN), "-f", str(file)]) == 1
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-p", "name", "a: b: c"], "is no YAML; quote it"),
        (["-p", "name", "2024-01-01"], "'name' is datetime.date"),
        (["-p", "name", "null"], "'name' is None"),
        (["-p", "runs_dir", "~nobody9/x"], "'~nobody9/x' cannot be used"),
        (["--workers", "0", "--jobs", "{jobs}"], "must be at least 1"),
        (["--jobs", "{odd}"], "should map names of parameters to values; it has 5"),
        (["--grid", "{twice}"], "the name 'beta' is there twice"),
        (["--jobs", "{jobs}", "-p", "runs_dir", "{odd}"], "odd cannot hold runs: File exists."),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_a_sentence(tmp_path, capsys, arguments, sentence):
    files = {"jobs": "- {name: x}", "odd": "- 5", "twice": "beta: 1\nseed: 0\nbeta: 2\n"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    arguments = [a.format(**{name: tmp_path / name for name in files}) for a in arguments]
    assert main([str(TRAIN), *arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_a_file_that_is_no_notebook_is_a_sentence(tmp_path, capsys):
    file = tmp_path / "x.ipynb"
    for content in ("", "[]", "{}", "text"):
        file.write_text(content)
        assert main([str(file)]) == 1
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


def test_a_kernel_that_died_before_it_began_is_started_again(tmp_path, monkeypatch):
    """As where two kernels drew the same port; one that died later is not."""
    for reason, times in (("Kernel died before replying to kernel_info", 3), ("Kernel died", 1)):
        calls = []

        def execute(*given, reason=reason, calls=calls, **options):
            calls.append(given)
            raise RuntimeError(reason)

        monkeypatch.setattr(papermill, "execute_notebook", execute)
        with pytest.raises(NotebookError, match="kernel died"):
            run_notebook(TRAIN, {"name": "never", "runs_dir": str(tmp_path)})
        assert len(calls) == times
