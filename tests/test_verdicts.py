"""The five answers of the verdict page and the routing of stored margins, recomputed from files."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from inspection.digest import Digest, digest
from inspection.judged_answers import judged, judgement_files, kl_by_run, nearest_dpo
from inspection.queries import columns
from inspection.rerouting import Settings, changed_sides, recorded, reroute, stored
from inspection.results import results_of
from inspection.verdicts import (
    Answer,
    auroc_difference,
    beats_dpo,
    is_probability,
    noisy,
    ranks_better,
    separates_ties,
    tie_areas,
    weakest,
)
from scipy.stats import bootstrap

from plc_core.analysis.audit import LENGTH_COLUMNS
from plc_core.analysis.noise import NoiseEstimate
from plc_core.analysis.statistics import auroc
from plc_core.runs import Run, open_run
from plc_core.storage.files import RunError
from tests.fake_run import write_fake_answers, write_fake_run

Q = ["q_clean", "q_flip", "q_tie"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PLC-DPO run, its KL control, and a DPO run that moved less."""
    root = tmp_path_factory.mktemp("runs")
    for number, (name, kl, lead) in enumerate((("plc", 2.0, 0.5), ("near", 2.1, 0), ("far", 1, 0))):
        objective = "plc" if name == "plc" else "dpo"
        path = write_fake_run(root, name, pairs=400, epochs=2, objective=objective, ties=30)
        write_fake_answers(path, prompts=120, seed=number, kl=kl, lead=lead)
    return root


@pytest.fixture(scope="module")
def run(root: Path) -> Run:
    return open_run(root / "plc")


@pytest.fixture(scope="module")
def found(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Digest:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLC_CACHE", str(tmp_path_factory.mktemp("cache")))
        return digest(run)


@pytest.mark.parametrize(
    ("low", "high", "above", "said"),
    [
        (0.51, 0.6, True, "yes"),
        (0.4, 0.5, True, "no"),
        (0.5, 0.5, True, "no"),
        (0.4, 0.6, True, "undecided"),
        (math.nan, 0.6, True, "unknown"),
        (0.1, 0.4, False, "yes"),
        (0.6, 0.7, False, "no"),
        (0.4, 0.6, False, "undecided"),
        (math.nan, math.nan, False, "unknown"),
    ],
)
def test_an_answer_is_known_where_its_interval_clears_the_bound(low, high, above, said) -> None:
    assert Answer("", 0.5, low, high, 0.5, above).said == said


def test_one_part_that_fails_fails_the_whole() -> None:
    yes, undecided, no = (
        Answer(str(low), low, low, high) for low, high in ((1, 2), (-1, 1), (-2, -1))
    )
    assert weakest([yes, undecided]) is undecided
    assert weakest([yes, no, undecided]) is no
    assert weakest([yes, undecided, unknown := Answer("nothing to measure by")]) is unknown


def last(visits: pd.DataFrame) -> pd.DataFrame:
    return visits.sort_values("step", kind="stable").drop_duplicates("pair_id", keep="last")


def last_visits(run: Run) -> pd.DataFrame:
    return run.pairs().merge(last(run.visits()), on="pair_id")


def test_a_run_is_held_against_the_dpo_run_that_moved_as_far(root: Path) -> None:
    runs = {name: open_run(root / name) for name in ("plc", "near", "far")}
    kls = kl_by_run(runs, "gold-world")
    objectives = {"plc": "plc", "near": "dpo", "far": "dpo"}
    assert nearest_dpo(kls, objectives, "plc") == "near"
    answer = beats_dpo(judged(runs, "gold-world"), "plc", "near")
    tables = {
        name: pd.read_parquet(root / name / "judgements" / "gold-world.parquet")
        .query("policy == 'trained'")
        .set_index(["prompt_id", "decoding"])["reward"]
        for name in ("plc", "near")
    }
    gap = (tables["plc"] - tables["near"]).to_numpy().reshape(2, -1)
    wins = ((np.sign(gap) + 1) / 2).mean(axis=0)
    assert answer.value == pytest.approx(wins.mean())
    expected = bootstrap((wins,), np.mean, method="percentile", rng=0).confidence_interval
    assert (answer.low, answer.high) == pytest.approx(expected, abs=0.01)
    assert answer.said == "yes"


def test_q_flip_is_held_against_margin_and_length(run: Run) -> None:
    noise = np.random.default_rng(1).normal(0, 1, len(run.visits()))  # or z is the margin's order
    visits = run.visits().assign(margin=lambda own: own["margin"] + noise)
    table = run.pairs().merge(last(visits), on="pair_id").query("oracle_state != 'tie'")
    flip = (table["oracle_state"] == "flip").to_numpy()
    scores = table["q_flip"].to_numpy(), -table["margin"].to_numpy()
    answer = ranks_better(visits, run.pairs())
    assert answer.value == pytest.approx(
        auroc(scores[0], flip).value - auroc(scores[1], flip).value
    )

    def difference(places: np.ndarray) -> float:
        return auroc_difference(scores[0][places], scores[1][places], flip[places]).mean

    rng = np.random.default_rng(0)
    drawn = [difference(rng.integers(0, len(flip), len(flip))) for _ in range(400)]
    assert (answer.high - answer.low) / 3.92 == pytest.approx(np.std(drawn), rel=0.15)
    assert math.isnan(auroc_difference([1, 2], [1, 2], [True, False]).low)


def test_calibration_is_judged_by_its_interval(run: Run) -> None:
    table = last_visits(run)
    flip, q = table["oracle_state"] == "flip", table["q_flip"]

    def ece(q: pd.Series, flip: pd.Series) -> float:
        bins = np.minimum((10 * q).astype(int), 9)
        return float((q - flip).groupby(bins).sum().abs().sum() / len(q))

    answer = is_probability(run.visits(), run.pairs())
    assert answer.value == pytest.approx(ece(q, flip), abs=1e-6)
    rng = np.random.default_rng(0)
    places = [rng.integers(0, len(q), len(q)) for _ in range(800)]
    drawn = [
        ece(q.iloc[p].reset_index(drop=True), flip.iloc[p].reset_index(drop=True)) for p in places
    ]
    low, high = 2 * answer.value - np.quantile(drawn, [0.975, 0.025])
    assert (answer.low, answer.high) == pytest.approx((max(low, 0), high), abs=0.006)

    true = run.pairs().assign(oracle_state=None, flipped=rng.random(len(q)) < q.to_numpy())
    assert is_probability(table[["pair_id", "step", *Q]], true).low < 0.02


def test_ties_are_told_from_clean_and_from_reversed_pairs(run: Run) -> None:
    table, pairs = last_visits(run), run.pairs()
    areas = tie_areas(run.visits(), pairs)
    for row in areas.query("score == 'q_tie'").to_dict("records"):
        both = table[table["oracle_state"].isin(["tie", row["others"]])]
        expected = auroc(both["q_tie"], both["oracle_state"] == "tie")
        assert (row["auroc"], row["low"]) == pytest.approx((expected.value, expected.low))
    assert (
        separates_ties(run.visits(), pairs).value == areas.query("score == 'q_tie'")["auroc"].min()
    )

    unknown = pairs.assign(oracle_state=None)
    injected = tie_areas(run.visits(), unknown)
    assert set(injected["ties"]) == {"injected ties"}
    assert set(injected["n_tie"]) == {30}
    by_gap = tie_areas(run.visits(), unknown.drop(columns="injected_tie"))
    assert set(by_gap["others"]) == {"unmarked, large gaps", "marked, large gaps"}
    assert by_gap["n_other"].sum() == 2 * by_gap["n_tie"].iloc[0]


def test_without_truth_or_estimate_nothing_is_known(run: Run) -> None:
    own = run.pairs()[["pair_id"]]
    for measure in (ranks_better, is_probability, separates_ties):
        assert measure(run.visits(), own).said == "unknown"
    assert noisy(None).said == "unknown"
    assert noisy(NoiseEstimate(0.3, 0.2, 0.4, 90)).said == "yes"


def test_the_runs_own_settings_give_its_record_back(run: Run, found: Digest) -> None:
    config, table = run.info["config"], columns(found, ["z", *Q, "weight", "last_step"])
    pairs = stored(table["z"].to_numpy(), table["last_step"].to_numpy(), 80)
    own = reroute(pairs, config, recorded(config))
    np.testing.assert_allclose(own.q, table[Q], atol=2e-6)
    # A fake run has no warm-up: its γ is 0.85 of the completed share.
    share = np.maximum(table["last_step"] / 80 - 0.07, 0) / 0.93
    certainty = np.clip(1.5 * (table[Q].max(axis=1) - 1 / 3), 0, 1) ** 0.8
    np.testing.assert_allclose(own.weight, 0.85 * share * certainty, atol=2e-5)
    mass = own.mass()
    assert mass["q_flip"] == pytest.approx(table["q_flip"].mean(), abs=1e-5)
    assert mass["w · q_flip"] == pytest.approx(np.mean(own.weight * table["q_flip"]), abs=1e-6)


def test_other_settings_move_the_pairs_between_two_values_of_z(run: Run, found: Digest) -> None:
    config, table = run.info["config"], columns(found, ["z", "last_step"])
    pairs = stored(table["z"].to_numpy(), table["last_step"].to_numpy(), 80)
    before = reroute(pairs, config, recorded(config))
    settings = Settings(0.3, 0.12, 0.4, 1.0, 2.0, 0.5)
    after = reroute(pairs, config, settings)
    z = table["z"].to_numpy(np.float64)
    energy = np.log([0.58, 0.3, 0.12]) + np.stack([z / 0.4, -z / 0.4, -abs(z)], 1)
    q = np.exp(energy) / np.exp(energy).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(after.q, q, atol=2e-6)
    changed = changed_sides(pairs.z, before, after)
    assert changed["pairs"].sum() == (before.side != q.argmax(axis=1)).sum() > 0
    for row in changed.itertuples():
        inside = (pairs.z >= row.low) & (pairs.z <= row.high)
        assert inside.sum() == row.pairs
    assert reroute(pairs, config, Settings(0.3, 0.12, 0.4, 1.0, 2.0, 0.0)).weight.max() == 0
    with pytest.raises(ValueError, match="weights in"):
        reroute(pairs, config, Settings(0.9, 0.3, 0.4, 1.0, 2.0, 0.5))


def test_the_results_of_a_run_are_those_of_its_files(run: Run, root: Path) -> None:
    found = results_of(run)
    metrics = run.metrics().sort_values("step")["accuracy"]
    assert found["accuracy"] == pytest.approx(metrics.tail(math.ceil(len(metrics) / 10)).mean())
    rewards = pd.read_parquet(run.path / "judgements" / "gold-world.parquet")
    for decoding in ("sampled", "greedy"):
        own = rewards.query(f"policy == 'trained' and decoding == '{decoding}'")["reward"]
        assert found[f"reward, {decoding}"] == pytest.approx(own.mean())
    assert found["KL"] == pytest.approx(2.0)
    bare = open_run(write_fake_run(root / "more", "bare", pairs=20))
    assert all(math.isnan(value) for name, value in results_of(bare).items() if "reward" in name)


def test_a_table_of_another_s_making_is_left_out(run: Run, tmp_path: Path) -> None:
    again = open_run(shutil.copytree(run.path, tmp_path / "plc"))
    rewards = pd.read_parquet(run.path / "judgements" / "gold-world.parquet")
    rewards.to_parquet(again.path / "judgements" / "first.parquet")
    rewards.to_parquet(again.path / "generations" / "world-log-probs.parquet")
    assert judgement_files(again) == judgement_files(run) == {"gold-world": "scores"}
    assert results_of(again) == results_of(run)
    (again.path / "judgements" / "first.json").write_text("{}")  # as beside each of the run's own
    with pytest.raises(RunError, match=r"first\.parquet is damaged: it has no checksum"):
        judgement_files(again)


def test_a_rival_that_does_not_decide_is_named_beside_the_one_that_does() -> None:
    """q_flip is the margin again, and better than lengths that say nothing."""
    rng = np.random.default_rng(0)
    flipped = np.arange(200) % 2 == 0
    margin = rng.normal(size=200) - flipped
    pairs = pd.DataFrame(
        {"pair_id": range(200), "flipped": flipped, "oracle_state": None, "source": "x",
         **{name: rng.integers(1, 9, 200) for name in LENGTH_COLUMNS}}
    )  # fmt: skip
    visits = pd.DataFrame(
        {"pair_id": range(200), "step": 0, "margin": margin, "q_flip": 1 / (1 + np.exp(margin)),
         "q_clean": 0.5, "q_tie": 0.0, "z": margin, "weight": 1.0}
    )  # fmt: skip
    answer = ranks_better(visits, pairs)
    assert answer.said == "no"
    assert answer.of == "AUROC gain over the margin"
    assert answer.beside.startswith("Against length alone: +")
