"""The notebooks of the routing studies in the embedded world; runs are shared by content."""

import json
from pathlib import Path

import pandas as pd
import pytest

from plc_core.batch import NotebookError, run_notebook
from plc_core.runs import open_run
from tests.paths import LARGEST_REPORT, ROOT
from tests.real_shapes import run_cells, trained_here

COMMON = {"num_pairs": 48, "batch_pairs": 16, "pairs_per_forward": 16, "eval_prompts": 16}
TINY = {
    "05_tie_selectivity": {"held_out": 40},
    "06_exact_ties": {"rates": [0.0, 0.2], "probe_rate": 0.2, "held_out": 40},
    "07_multipref": {"num_pairs": 40},
}


@pytest.mark.parametrize("name", ["06_exact_ties", "07_multipref"])
def test_a_study_takes_the_worlds_own_ties_and_votes_and_is_told_the_truth(name, study_runs):
    """In this process; what the tables hold is recomputed in tests/test_real_studies.py."""
    values = TINY[name] | {"name": name, "runs_dir": str(study_runs), "common": COMMON}
    with trained_here():
        run_cells(name, **values, seeds=[0])
    kept = pd.read_csv(study_runs / name / "tables" / "calibration.csv")
    assert {"PLC-DPO", "DPO (shadow)"} <= set(kept["policy"])


def test_a_study_writes_its_report(study_runs: Path) -> None:
    name = "05_tie_selectivity"
    values = TINY[name] | {"name": name, "runs_dir": str(study_runs), "common": COMMON}
    run_notebook(ROOT / "notebooks" / f"{name}.ipynb", values | {"seeds": [0]})
    report = open_run(study_runs / name)
    text = (report.path / "report.html").read_text()
    assert "paper" in text
    assert text.count('class="plc-figure"') >= 2
    assert len(text.encode()) <= LARGEST_REPORT
    assert list((report.path / "tables").glob("*.csv"))
    for runs in report.info["runs"].values():
        assert all(open_run(study_runs / run).is_trained for run in runs)


def test_missing_runs_are_named_and_the_report_says_so(tmp_path: Path) -> None:
    values = {"name": "x", "runs_dir": str(tmp_path), "seeds": [0], "common": COMMON, "make": False}
    with pytest.raises(NotebookError, match=r"2 runs are missing in .*Make them with: python -m"):
        run_notebook(ROOT / "notebooks" / "05_tie_selectivity.ipynb", values)
    report = open_run(tmp_path / "x")
    assert report.status["state"] == "failed"
    assert "runs are missing" in (report.path / "report.html").read_text()


def test_a_finished_report_survives_a_call_that_does_nothing(study_runs: Path) -> None:
    """After the report of 05: another seed's runs are missing, and are not to be made."""
    path = study_runs / "05_tie_selectivity"
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name[0] != "."}
    assert path / "report.html" in before
    values = TINY[path.name] | {"name": path.name, "runs_dir": str(study_runs), "common": COMMON}
    with pytest.raises(NotebookError, match="2 runs are missing"):
        run_notebook(
            ROOT / "notebooks" / f"{path.name}.ipynb", values | {"seeds": [5], "make": False}
        )
    after = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name[0] != "."}
    said = json.loads(after.pop(path / "run.json"))
    assert "2 runs are missing" in said.pop("last_failure")["reason"]
    then = json.loads(before.pop(path / "run.json"))
    assert said.pop("checksum") != then.pop("checksum")  # of all that is said, the failure too
    assert said == then
    assert after == before
