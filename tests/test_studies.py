"""The routing studies' tables and sentences: what they show, leave out and say.

Their numbers are recomputed in tests/test_real_studies.py.
"""

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats

from notebooks import figures
from notebooks.studies import confirmation_phases
from notebooks.studies.true_states import truth_of_runs, truth_of_scores
from plc_core.analysis import paper
from plc_core.analysis.routing import hard_pairs, human_disagreement, tie_metrics
from plc_core.analysis.routing.pooling import between, mean_of_seeds, pooled_visits, stacked_runs
from plc_core.runs import Run, open_run
from plc_core.storage.files import RunError, read_table, write_table
from tests.fake_run import change_json, write_fake_run


def with_ties(path: Path, share: float) -> Run:
    """The run with the first pairs marked as injected ties."""
    file = path / "pairs.parquet"
    table = read_table(file)
    ties_ = np.arange(len(table)) < share * len(table)
    write_table(file, table.append_column("injected_tie", pa.array(ties_)))
    return open_run(path)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return with_ties(write_fake_run(tmp_path, "one", pairs=300, epochs=2), 0.1)


def test_visits_are_pooled_over_seeds_with_their_markers(tmp_path: Path, run: Run) -> None:
    other = open_run(write_fake_run(tmp_path, "two", pairs=100, seed=1))
    visits = pooled_visits([run, other])
    assert len(visits) == 300 * 2 + 100
    assert visits.groupby("run").size().to_dict() == {"one": 600, "two": 100}
    flipped = run.pairs().set_index("pair_id")["flipped"]
    own = visits[visits["run"] == "one"]
    assert (own["flipped"].to_numpy() == flipped.loc[own["pair_id"]].to_numpy()).all()
    seen, pairs = stacked_runs([run, other])
    assert (len(seen), len(pairs)) == (700, 400)
    assert pairs["pair_id"].is_unique


def test_a_run_without_visits_is_a_sentence(tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "empty", pairs=20)
    for file in (path / "visits").iterdir():
        file.unlink()
    with pytest.raises(RunError, match=r"visits has no visits of step 0: 0{8}-\d{8}\.parquet is"):
        pooled_visits([open_run(path)])  # it is trained, so they were there
    change_json(path / "run.json", trained_steps=None)
    with pytest.raises(RunError, match="'empty' has no visits yet"):
        pooled_visits([open_run(path)])


# ---- hard pairs ---------------------------------------------------------------------------------


def test_the_papers_row_stands_below_each_rate(run: Run) -> None:
    table = hard_pairs.hard_pair_table({"PLC-DPO": {0.05: [run], 0.3: [run], 0.4: [run]}})
    shown = hard_pairs.hard_pairs_shown(table)
    assert shown.loc[("0.05", "paper, Qwen2.5-7B"), "marker AUROC"] == "0.293"
    assert ("0.4", "paper, Qwen2.5-7B") not in shown.index
    figure = figures.dose_response(table, hard_pairs.published_hard_pairs())
    assert any(trace.y is not None and 0.293 in trace.y for trace in figure.data)


def test_the_sentence_on_hard_pairs_is_computed() -> None:
    rows = []
    for rate, flip, area, marked in ((0.05, 0.2, 0.4, 0.1), (0.3, 0.3, 0.6, 0.5)):
        values = {"q_flip": flip, "marker_auroc": area}
        values |= {"marked_q_flip": marked, "unmarked_q_flip": 0.25}
        rows += [
            {"method": "x", "noise_rate": rate, "measure": m, "value": v} for m, v in values.items()
        ]
    said = hard_pairs.hard_pairs_sentence(pd.DataFrame(rows), "x")
    assert "cumulative q_flip rises from 0.200 to 0.300 (in the paper it rises from 0.265" in said
    assert "reversed pairs get more q_flip than the others (0.500 against 0.250)" in said
    one = hard_pairs.hard_pairs_sentence(pd.DataFrame(rows[:4]), "x")
    assert "no dose response" in one


def test_a_rate_without_marked_pairs_is_no_error(tmp_path: Path) -> None:
    clean = open_run(write_fake_run(tmp_path, "clean", pairs=50, flip_rate=0.0))
    table = hard_pairs.hard_pair_table({"x": {0.0: [clean]}})
    assert table.set_index("measure").loc["marker_auroc", "n"] == 0
    assert hard_pairs.hard_pairs_shown(table)["marker AUROC"].tolist() == ["–"]


# ---- probes -------------------------------------------------------------------------------------


def scores(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """A probe under both calibrations: ties have small margins, flips negative ones."""
    rng = np.random.default_rng(seed)
    gap = np.abs(rng.normal(0, 2, n)).round(2)
    flipped = rng.random(n) < 0.2
    margin = np.where(flipped, -gap, gap) + rng.normal(0, 1, n)
    frames = []
    for calibration, shift in (("checkpoint", 0.3), ("self", 0.0)):
        z = (margin - margin.mean()) / margin.std() + shift
        energy = np.log([0.80, 0.08, 0.12]) + np.stack([z / 0.55, -z / 0.55, -np.abs(z) / 1.15], 1)
        q = np.exp(energy) / np.exp(energy).sum(1, keepdims=True)
        frames.append(
            pd.DataFrame(
                {
                    "calibration": calibration,
                    "pair_id": [f"p{i}" for i in range(n)],
                    "source": "world",
                    "score_chosen": np.where(flipped, 0.0, gap),
                    "score_rejected": np.where(flipped, gap, 0.0),
                    "flipped": flipped,
                    "injected_tie": gap < 0.5,
                    "oracle_state": np.where(gap < 0.25, "tie", np.where(flipped, "flip", "clean")),
                    "group": np.select(
                        [gap < 0.7, gap < 2], ["tie-majority", "divergent"], "unanimous"
                    ),
                    "margin": margin,
                    "z": z,
                    "q_clean": q[:, 0],
                    "q_flip": q[:, 1],
                    "q_tie": q[:, 2],
                    "confidence": 0.5,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def test_a_pair_that_several_seeds_were_shown_counts_once() -> None:
    """Twice in a test it would be two, and flipped under one seed alone in both of its groups."""
    first, second = scores(seed=1), scores(seed=1)
    second["q_tie"] = second["q_tie"] / 2
    table = mean_of_seeds([first, second])
    assert len(table) == len(first)
    assert table["q_tie"].to_numpy() == pytest.approx(0.75 * first["q_tie"].to_numpy())
    assert tie_metrics.injected_ties({"x": table})["n_injected"].tolist() == (
        tie_metrics.injected_ties({"x": first})["n_injected"].tolist()
    )
    found = tie_metrics.injected_ties({"x": table})
    assert ((found["low"] < found["auroc"]) & (found["auroc"] < found["high"])).all()
    pd.testing.assert_frame_equal(mean_of_seeds([first]), first)
    others = second.assign(pair_id="other " + second["pair_id"])
    assert len(mean_of_seeds([first, others])) == 2 * len(first)
    turned = mean_of_seeds([first, second.assign(flipped=~second["flipped"])])
    assert not turned.duplicated(["calibration", "pair_id"]).any()


def test_a_number_without_an_interval_says_so() -> None:
    """An AUROC of exactly 0 or 1 has none: alone it would read as a certainty."""
    assert between(0.0, math.nan, math.nan) == "0.000 (no interval)"
    assert between(0.5, 0.4, 0.6, 1) == "0.5 [0.4, 0.6]"
    assert between(math.nan, math.nan, math.nan) == "–"


def test_without_injected_ties_the_table_says_so() -> None:
    found = tie_metrics.injected_ties({"x": scores().assign(injected_tie=False)})
    assert found["p"].isna().all()
    shown = tie_metrics.injected_ties_shown(found)
    assert set(shown["AUROC"]) == {"–"}
    assert shown.loc[("x", "self", "q_tie"), "paper: AUROC"] == "0.619"
    assert "no injected tie" in tie_metrics.injected_ties_sentence(found, "x")


def test_the_direction_that_ties_keep_is_the_visits(run: Run, tmp_path: Path) -> None:
    none = open_run(write_fake_run(tmp_path, "none", pairs=50))
    table = tie_metrics.direction_kept({"PLC-DPO": {0.1: [run], 0.0: [none]}}).set_index("tie_rate")
    seen = run.visits().merge(run.pairs(), on="pair_id")
    signal = seen["q_clean"] - seen["q_flip"]
    row = table.loc[0.1]
    assert row["injected"] == pytest.approx(signal[seen["injected_tie"]].mean(), rel=1e-5)
    ratio = signal[~seen["injected_tie"]].mean() / signal[seen["injected_tie"]].mean()
    assert row["factor"] == pytest.approx(ratio, rel=1e-5)
    assert row["low"] <= row["factor"] <= row["high"]
    assert (table.loc[0.0, "n_injected"], math.isnan(table.loc[0.0, "factor"])) == (0, True)
    said = tie_metrics.direction_sentence(table.reset_index(), "PLC-DPO")
    assert said.startswith("At 10% ties, PLC-DPO leaves injected pairs")
    assert "in the paper 4.5 at 5 %" in said
    assert len(figures.direction_kept(table.reset_index()).data) == 2


def test_weak_gaps_are_read_from_a_probe() -> None:
    found = tie_metrics.weak_gaps(scores(), "checkpoint", 0.2)
    assert found.slices["n"].tolist() == [80, 80]
    shown = tie_metrics.weak_gaps_shown({"PLC-DPO": found})
    assert shown.loc[("PLC-DPO", "world", "bottom 20%"), "n"] == "80"
    first, second = tie_metrics.weak_gaps_sentences(found, "PLC-DPO")
    assert "|m| is lower in the bottom 20%" in second
    assert "after Holm's correction" in first
    with pytest.raises(RunError, match="was not scored under the calibration 'other'"):
        tie_metrics.weak_gaps(scores(), "other", 0.2)


def test_the_vote_tables_have_the_papers_rows_and_count_who_is_in_no_group() -> None:
    part = scores().query("calibration == 'self'").reset_index(drop=True)
    part.loc[:9, "group"] = None
    found = human_disagreement.agreement(part)
    assert found.ungrouped == 10
    said = human_disagreement.agreement_sentence(found, "PLC-DPO")
    assert "10 pairs have fewer than two votes" in said
    assert not re.search(r": [A-Z]", said)
    unlike = dataclasses.replace(found.last_step, p=0.9)
    said = human_disagreement.agreement_sentence(
        dataclasses.replace(found, last_step=unlike), "PLC-DPO"
    )
    assert "The last step alone: it is not shown that q_tie is higher in tie-majority" in said
    shown = human_disagreement.agreement_shown({("PLC-DPO", "self"): found})
    assert shown.loc[("paper, MultiPref", "", "tie-majority"), "against unanimous"] == "+23.1 %"
    assert human_disagreement.other_measures_shown({("PLC-DPO", "self"): found}).shape[0] == 3
    rows = found.groups[found.groups["measure"] == "q_tie"]
    figure = figures.group_means({"PLC-DPO": rows}, paper.published("multipref"))
    assert len(figure.data) == 2
    named = figures.group_means({"PLC-DPO": rows}, calibration="self")
    assert named.layout.yaxis.title.text == "mean q_tie, calibration self"


def test_a_file_without_unanimous_pairs_has_no_test() -> None:
    part = scores().query("calibration == 'self'").assign(group="divergent")
    found = human_disagreement.agreement(part)
    assert found.groups["p_holm"].isna().all()
    assert human_disagreement.agreement_sentence(found, "x").startswith(
        "x: no trend of q_tie can be tested"
    )
    assert human_disagreement.agreement_shown({("x", "self"): found}).iloc[0]["n"] == "0"


# ---- self-confirmation --------------------------------------------------------------------------


def test_flips_are_ranked_over_all_visits_without_injected_ties(run: Run) -> None:
    held_out = scores().query("calibration == 'self'")
    held_out = held_out.assign(flipped=np.arange(len(held_out)) % 3 == 0)
    both = confirmation_phases.flip_detection({"PLC-DPO": [run]}, {"PLC-DPO": held_out})
    assert both["pairs"].unique().tolist() == [
        confirmation_phases.IN_TRAINING,
        confirmation_phases.HELD_OUT,
    ]
    zero_shot = both[both["pairs"] == confirmation_phases.HELD_OUT].set_index("score")
    without = held_out[~held_out["injected_tie"]]
    assert zero_shot.loc["q_flip", "flipped"] == without[without["flipped"]]["q_flip"].mean()
    assert zero_shot.loc["q_flip", ["n_flipped", "n_others"]].tolist() == [
        without["flipped"].sum(), (~without["flipped"]).sum()
    ]  # fmt: skip
    table = both[both["pairs"] == confirmation_phases.IN_TRAINING]
    seen = run.visits().merge(run.pairs(), on="pair_id")
    assert table["n_flipped"].iloc[0] == (seen["flipped"] & ~seen["injected_tie"]).sum()
    said = confirmation_phases.detection_sentence(table)
    assert said.endswith("The paper has 0.731 in training under PLC-DPO at 20 %.")
    shown = confirmation_phases.flip_detection_shown(table)
    assert shown["flip AUROC"].iloc[-2:].tolist() == ["0.731", "0.734"]


def test_disagreement_is_counted_by_other_means() -> None:
    rng = np.random.default_rng(3)
    strength = pd.Series(rng.normal(-1, 1, 500).round(1))
    q = pd.Series(1 / (1 + np.exp(-strength + rng.normal(0, 1, 500))))
    found = confirmation_phases.Disagreement(q, pd.Series(np.zeros(500)), strength)
    decided = strength != 0
    assert found.n == decided.sum()
    assert found.level == 500 - found.n
    assert found.share == (strength > 0).sum() / found.n
    u = stats.mannwhitneyu(q[strength > 0], q[strength < 0]).statistic
    assert found.area.value == pytest.approx(u / (strength > 0).sum() / (strength < 0).sum())
    assert found.rank.rho == pytest.approx(stats.spearmanr(q, strength).statistic)
    assert found.curve["n"].sum() == found.n
    weighted = np.average(found.curve["share"], weights=found.curve["n"])
    assert weighted == pytest.approx(found.share)
    assert "disagrees with the label of" in found.sentence("PLC-DPO", "gold reward")
    shown = confirmation_phases.disagreement_shown({"PLC-DPO": found})
    assert shown.iloc[-1]["AUROC of q_flip"] == "0.779 [0.766, 0.791]"
    assert len(figures.disagreement({"PLC-DPO": found}).data) == 2


def test_rewards_that_are_all_level_or_missing_find_nothing() -> None:
    q, same = pd.Series([0.1, 0.2]), pd.Series([1.0, 1.0])
    level = confirmation_phases.Disagreement(q, same, same)
    assert (level.n, level.level) == (0, 2)
    assert "n=0" in level.sentence("x", "reward")
    nothing = confirmation_phases.Disagreement(q, pd.Series([math.nan] * 2), same)
    assert (nothing.n, nothing.missing) == (0, 2)
    assert confirmation_phases.disagreement_shown({"x": nothing}).iloc[0]["Spearman"] == "–"


def test_the_correction_by_phase_stands_above_the_papers(run: Run) -> None:
    table = confirmation_phases.correction_by_phase({"PLC-DPO": [run]})
    shown = confirmation_phases.correction_shown(table)
    mean = run.visits()["weight"].mean()
    assert shown.loc["PLC-DPO", "mean weight over training"] == f"{mean:.3f}"
    assert shown.loc["paper, PLC-DPO"].tolist()[:3] == ["1.9 %", "0.026", "0.286"]
    assert len(figures.correction_phases(table).data) == 2


def test_the_truth_of_runs_and_probes(run: Run) -> None:
    found = truth_of_runs({"PLC-DPO": [run]})
    last = run.visits().sort_values("step").drop_duplicates("pair_id", keep="last")
    assert found.calibrations["PLC-DPO"]["q_flip"].mean == pytest.approx(
        last["q_flip"].mean(), rel=1e-6
    )
    probe = truth_of_scores({"PLC-DPO": scores()}, "self")
    assert probe.calibrations["PLC-DPO"]["q_clean"].n == 400
    assert "PLC-DPO: q_flip is" in probe.sentences[0]
