"""15_label_audit: the rivals, jobs without training, and numbers found again in the CSV files."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from notebooks.evidence.estimates import read_study
from notebooks.replication import rivals
from notebooks.replication.__main__ import main
from notebooks.replication.plan import AuditStep, ReplicationConfig, jobs_of
from notebooks.replication.results import Results
from notebooks.studies.audit_gains import BALANCED, DPO, SAME_KL, conclusion, finding, gains
from notebooks.studies.label_audit import OURS, calibration_table, rankings
from plc_core.batch import run_notebook
from plc_core.parameters import ParameterError, checked
from tests.paths import LARGEST_REPORT, ROOT

RECIPE = ROOT / "notebooks" / "recipes" / "study" / "label-audit.yaml"
RESULTS = ROOT / "data" / "results" / "label-audit"


def planted(pairs=1200, features=24, seed=0):
    """Differences of preferred minus other answers, a fifth of them the wrong way round."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(pairs, features)).astype(np.float32)
    truth = np.sign(rows[:, :4].sum(1) + rng.logistic(size=pairs)).astype(np.float32)
    flipped = rng.random(pairs) < 0.2
    return rows * (truth * np.where(flipped, -1, 1))[:, None], flipped, rows * truth[:, None]


def area(suspicion, flipped):
    one, other = suspicion[flipped], suspicion[~flipped]
    return float((one[:, None] > other).mean())


def test_rivals_rank_planted_errors_and_turn_with_the_pair():
    rows, flipped, _ = planted()
    _, _, clean = planted(seed=1)
    folds = np.arange(len(rows)) % 5
    confident = rivals.confident_learning(rows, folds)
    assert area(confident, flipped) > 0.7
    assert confident.min() > 0 and confident.max() < 1
    reward = rivals.reward_model(clean, rows)
    assert area(reward, flipped) > area(confident, flipped) - 0.02
    np.testing.assert_allclose(rivals.reward_model(clean, -rows), -reward, atol=1e-6)


def test_an_audit_of_a_study_is_a_policy_or_says_more():
    study = ReplicationConfig(**yaml.safe_load(RECIPE.read_text()))
    steps = {job.method: job.audit for job in jobs_of(study, "main")}
    assert steps["dpo"] is None
    assert steps["cdpo-weights"] == AuditStep(policy="weight")
    assert steps["cdpo-rate"].alike and not steps["cdpo-weights"].alike
    assert steps["cdpo-lengths"].evidence == ("lengths",)
    assert {(job.method, job.flip_rate) for job in jobs_of(study, "evidence")} == {
        (kind, rate) for kind in ("random", "hard") for rate in (0.1, 0.2, 0.3, 0.4)
    }
    wrong = yaml.safe_load(RECIPE.read_text())
    wrong["methods"]["cdpo-weights"]["audit"] = "mend"
    with pytest.raises(ParameterError, match="mend"):
        checked(wrong, ReplicationConfig)


def test_jobs_without_training_and_controls_leave_their_numbers(tmp_path):
    study = yaml.safe_load((RECIPE.parent / "tiny.yaml").read_text())
    study |= {"flip_rates": [0.4], "seeds": [0]}
    study["train"] |= {"num_pairs": 160}
    study["variants"] = {
        "alike": {"objective": "cdpo", "audit": {"policy": "weight", "alike": True}}
    }
    study |= {"variant_rates": [0.4], "evidence": {"random": {}}, "evidence_rates": [0.3]}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(study))
    options = [str(tmp_path / "tiny.yaml"), "--results", str(tmp_path / "results")]
    assert main(["run", *options, "--slice", "evidence", "--slice", "variants"]) == 0
    results = Results(tmp_path / "results")
    assert results.jobs.set_index("slice")["state"].to_dict() == {
        "evidence": "done",
        "variants": "done",
    }
    found = results.measures[results.measures["job"].str.startswith("evidence")]
    ranked = set(found.loc[found["measure"] == "flip_auroc", "group"])
    assert {"audit p_flip", rivals.PERPLEXITY, rivals.CONFIDENT} <= ranked
    assert "accuracy" not in set(found["measure"])  # nothing was trained
    # One probability for every pair ranks none before another.
    alike = results.measures[results.measures["job"].str.startswith("variants")]
    own = alike[(alike["measure"] == "flip_auroc") & (alike["group"] == "audit p_flip")]
    assert own["value"].tolist() == [0.5]


def values(jobs, measures, measure, group, method, part="main"):
    own = jobs[(jobs["method"] == method) & (jobs["slice"] == part)]
    rows = measures[(measures["measure"] == measure) & (measures["group"] == group)]
    return own.merge(rows, on="job").set_index(["flip_rate", "seed"])["value"]


def test_gains_are_those_of_the_csv_files():
    jobs, measures = (pd.read_csv(RESULTS / f"{name}.csv") for name in ("jobs", "measures"))
    table = gains(read_study("label-audit")).set_index(["method", "rate", "against"])

    def accuracy(group, method, part="main"):
        return values(jobs, measures, "accuracy", group, method, part)

    gap = 100 * (accuracy("test", "cdpo-weights") - accuracy("test", "dpo")).loc[0.2]
    assert len(gap) == 5
    cell = table.loc[("cdpo-weights", 0.2, DPO)]
    assert cell["value"] == pytest.approx(gap.mean())
    assert cell["high"] - cell["value"] == pytest.approx(2.776445 * gap.std() / 5**0.5)
    sides = [
        accuracy(f"test, chosen {which}", "cdpo-weights") - accuracy(f"test, chosen {which}", "dpo")
        for which in ("longer", "not longer")
    ]
    level = 50 * (sides[0] + sides[1]).loc[0.4]
    assert table.loc[("cdpo-weights", 0.4, BALANCED)]["value"] == pytest.approx(level.mean())
    # DPO between its two learning rates, at the KL of the method.
    kl = [
        values(jobs, measures, "kl", "responses", method, part).loc[0.2]
        for method, part in (("cdpo-weights", "main"), ("dpo", "main"), ("dpo", "frontier"))
    ]
    share = (kl[0] - kl[1]) / (kl[2] - kl[1])
    plain, far = (accuracy("test", "dpo", part).loc[0.2] for part in ("main", "frontier"))
    expected = 100 * (accuracy("test", "cdpo-weights").loc[0.2] - plain - share * (far - plain))
    inside = expected[(share >= 0) & (share <= 1)]
    cell = table.loc[("cdpo-weights", 0.2, SAME_KL)]
    assert (cell["value"], cell["n"]) == (pytest.approx(inside.mean()), len(inside))


def test_the_verdict_follows_the_intervals():
    study = read_study("label-audit")
    table = gains(study)
    own = table[(table["method"] == "cdpo-weights") & (table["against"] == DPO)]
    (said,) = conclusion({"real": table})
    assert ("gains accuracy over DPO:" in said) == bool((own[own["rate"] > 0]["low"] > 0).all())
    (said,) = conclusion({"real": table}, "plc-priors")
    assert "does not gain accuracy over DPO clearly at every rate" in said
    few = own.assign(low=np.nan, high=np.nan, n=2)
    (said,) = conclusion({"real": few})
    assert "has too few seeds for a verdict" in said
    some = own.assign(low=own["low"].where(own["rate"] == 0.2, np.nan) + 1)
    (said,) = conclusion({"real": some})
    assert "gains accuracy over DPO where there are three seeds:" in said
    (said,) = conclusion({"real": own[own["rate"] == 0]})
    assert said == "real: whether correcting labels pays has not been measured."


def test_the_finding_is_one_sentence_that_begins_with_what_is_shown():
    table = pd.DataFrame(
        [
            ("cdpo-weights", 0.0, DPO, 0.3, -0.5, 1.1, 5),
            ("cdpo-weights", 0.2, DPO, 1.9, 1.3, 2.5, 5),
            ("cdpo-weights", 0.4, DPO, 2.4, -0.3, 5.1, 5),
        ],
        columns=["method", "rate", "against", "value", "low", "high", "n"],
    )
    assert finding({"A model": table}) == (
        "On A model, weighing each label by its audit gains accuracy over DPO at 20 % reversed "
        "labels (+1.9 [+1.3, +2.5] points) and shows neither gain nor loss on clean labels "
        "(+0.3 [−0.5, +1.1] points) and at 40 % reversed labels (+2.4 [−0.3, +5.1] points)."
    )
    assert finding({"A model": table[:0]}).endswith("has not been measured.")


def test_the_notebook_checks_an_audit_and_shows_the_studies(tmp_path):
    values = {"name": "x", "runs_dir": str(tmp_path), "num_pairs": 240}
    run_notebook(ROOT / "notebooks" / "15_label_audit.ipynb", values)
    text = (tmp_path / "x" / "report.html").read_text()
    assert text.count('class="plc-figure"') == 9
    assert len(text.encode()) <= LARGEST_REPORT
    assert "of the labels reversed here" in text
    kept = {path.name for path in (tmp_path / "x" / "tables").iterdir()}
    assert {"reliability.csv", "gains-label-audit.csv", "auroc-world.csv"} <= kept
    info = json.loads((tmp_path / "x" / "run.json").read_text())
    assert info["config"]["flip_rate"] == 0.2


def test_rankings_and_calibration_are_of_the_evidence_jobs():
    study = read_study("label-audit")
    jobs, measures = (pd.read_csv(RESULTS / f"{name}.csv") for name in ("jobs", "measures"))
    own = values(jobs, measures, "flip_auroc", "audit p_flip", "random", "evidence")
    table = rankings(study).set_index(["kind", "rate", "ranking"])
    assert table.loc[("at random", 0.2, OURS)]["value"] == pytest.approx(own.loc[0.2].mean())
    shown = calibration_table(study).set_index(["errors", "reversed"])
    assert shown.loc[("at random", "20 %"), "true rate in the interval"].endswith("of 5")
