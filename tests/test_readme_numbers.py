"""What the READMEs say was measured is what the CSV files of `data/results` give."""

import pandas as pd
import pytest

from notebooks.evidence.estimates import read_study
from notebooks.studies.audit_gains import BEST, DPO, SAME_KL, TURNED, gains
from plc_core.typography import minus
from tests.paths import ROOT

STUDIES = ("smollm2", "label-audit", "qwen", "world")
README = (ROOT / "README.md").read_text(encoding="utf-8")
AUDIT = (ROOT / "plc_core" / "label_audit" / "README.md").read_text(encoding="utf-8")


def trained(study: str) -> int:
    """Jobs that ended and trained something: those of the slice evidence only read."""
    jobs = pd.read_csv(ROOT / "data" / "results" / study / "jobs.csv")
    return int((jobs["state"].eq("done") & jobs["steps"].notna()).sum())


def test_runs_are_counted_as_they_lie_there():
    smollm2, audited, qwen, world = map(trained, STUDIES)
    said = f"{smollm2 + audited + qwen + world:,} training runs with known reversed labels: "
    said += f"{smollm2 + audited} on SmolLM2-135M-Instruct and {qwen} on a 1.5 B model"
    assert said in README
    assert f"{world} in the embedded world" in README


@pytest.fixture(scope="module")
def gained():
    return {name: gains(read_study(name)).set_index(["method", "rate", "against"])
            for name in ("qwen", "label-audit")}  # fmt: skip


def shown(row: pd.Series) -> str:
    value, low, high = (f"{row[name]:.1f}" for name in ("value", "low", "high"))
    sign = "" if value.startswith("-") else "+"
    return minus(f"{sign}{value} [{low}, {high}]")


@pytest.mark.parametrize(
    ("study", "method", "rate", "against", "readmes"),
    [
        ("qwen", BEST, 0.2, DPO, (README, AUDIT)),
        ("qwen", BEST, 0.2, SAME_KL, (README, AUDIT)),
        ("qwen", BEST, 0.4, DPO, (README, AUDIT)),
        ("qwen", BEST, 0.0, DPO, (AUDIT,)),
        ("qwen", BEST, 0.0, SAME_KL, (AUDIT,)),
        ("qwen", TURNED, 0.2, DPO, (README, AUDIT)),
        ("qwen", TURNED, 0.2, SAME_KL, (AUDIT,)),
        ("qwen", TURNED, 0.4, DPO, (README, AUDIT)),
        ("qwen", TURNED, 0.4, SAME_KL, (README, AUDIT)),
        ("qwen", "dpo-dropped", 0.2, DPO, (AUDIT,)),
        ("qwen", "plc-priors", 0.4, DPO, (AUDIT,)),
        ("qwen", "plc-aggressive", 0.2, DPO, (README, AUDIT)),
        ("qwen", "cdpo-rate", 0.2, DPO, (AUDIT,)),
        ("qwen", "cdpo-lengths", 0.4, DPO, (AUDIT,)),
        ("label-audit", BEST, 0.2, DPO, (README, AUDIT)),
        ("label-audit", BEST, 0.2, SAME_KL, (README,)),
        ("label-audit", BEST, 0.4, DPO, (AUDIT,)),
        ("label-audit", TURNED, 0.4, DPO, (README, AUDIT)),
    ],
)
def test_a_gain_is_said_as_it_was_measured(gained, study, method, rate, against, readmes):
    said = shown(gained[study].loc[(method, rate, against)])
    assert all(said in readme for readme in readmes), said
