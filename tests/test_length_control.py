"""The length-controlled win rate, against alpaca_eval's own fit and against known truths."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import optimize
from scipy.special import expit, logit

from plc_core.evaluation import length_control
from plc_core.evaluation.comparison import Evaluation
from plc_core.evaluation.length_control import (
    length_controlled,
    length_controlled_cells,
    lengths_shown,
)
from plc_core.evaluation.win_rate import JoinError


def simulated(seed, n, method, length, difficulty):
    """A judge that is drawn to length: its verdicts, own and baseline's lengths, difficulty."""
    rng = np.random.default_rng(seed)
    difference = rng.normal(150, 400, n).round()
    hardness = rng.normal(0, 1, n).round(3)
    scaled = np.tanh(difference / difference.std(ddof=1))
    chance = 1 / (1 + np.exp(-(method + length * scaled + difficulty * hardness)))
    won = (rng.random(n) < chance).astype(float)
    won[: n // 20] = 0.5
    columns = (won, 2000 + difference, np.full(n, 2000.0), hardness)
    return [pd.Series(column) for column in columns]


# Made with alpaca_eval 0.6.6 (make_dmatrix_for_model and fit_LogisticRegressionCV) on scikit-learn
# 1.9.1, on the verdicts above: "minimal" without difficulty, "noreg" with it.
PUBLISHED = [
    ((7, 805, -0.3, 0.9, 0.0), False, 1.01793074, 41.73315183712133),
    ((8, 805, 0.4, -0.5, 0.8), True, -0.3886326, 55.128131631177894),
    ((10, 200, 1.0, 1.5, 0.3), True, 1.02303919, 69.87502301950218),
]


@pytest.mark.parametrize(("case", "known", "effect", "percent"), PUBLISHED)
def test_alpaca_evals_own_fit_gives_the_same_numbers(case, known, effect, percent):
    won, own, other, hardness = simulated(*case)
    result = length_controlled(won, own, other, hardness if known else None)
    assert 100 * result.share.mean == pytest.approx(percent, abs=1e-9)
    assert result.length_effect == pytest.approx(effect, abs=1e-7)


def test_the_truth_at_equal_lengths_is_found():
    """The judge prefers the method by sigmoid(0.4) = 60 % at equal lengths, and long answers."""
    won, own, other, _ = simulated(0, 2000, 0.4, 1.0, 0.0)
    result = length_controlled(won, own, other)
    truth = 1 / (1 + math.exp(-0.4))
    assert result.share.low < truth < result.share.high
    assert result.raw > result.share.high  # as they are, the longer answers win more
    assert result.mean_difference == pytest.approx(150, abs=30)
    assert str(result).endswith("% as they are (n=2000)")


def test_equal_lengths_leave_the_win_rate_as_it_is():
    won = pd.Series([1.0] * 30 + [0.0] * 10)
    same = pd.Series(100.0, index=won.index)
    result = length_controlled(won, same, same)
    assert result.share.mean == pytest.approx(0.75, abs=0.02)
    assert result.length_effect == 0


def test_few_undecided_prompts_are_the_penaltys_answer_and_say_so():
    won, own, other, _ = simulated(9, 80, 0.2, 0.0, 0.0)
    result = length_controlled(won, own, other)
    assert result.share.mean == 0.5
    assert result.share.low < result.raw < result.share.high
    assert "the penalty left nothing of the data" in str(result)


def test_the_interval_is_the_unpenalised_fits():
    """By another minimiser: the share at equal lengths, and its variance from the curvature."""
    won, own, other, hardness = simulated(10, 200, 1.0, 1.5, 0.3)
    gap = (own - other).to_numpy()
    for known in (None, hardness):
        columns = [np.tanh(gap / gap.std(ddof=1)), np.ones(len(gap))]
        design = np.column_stack([*columns, *([] if known is None else [known])])

        def loss(w, design=design):
            logits = design @ w
            return (np.logaddexp(0, logits) - won.to_numpy() * logits).sum()

        w = optimize.minimize(loss, np.zeros(design.shape[1]), tol=1e-10).x
        chance = expit(design @ w)
        variance = np.linalg.inv(design.T @ (design * (chance * (1 - chance))[:, None]))

        def logit_at_equal_lengths(w, design=design):
            return logit(expit(design[:, 1:] @ w[1:]).mean())

        slope = optimize.approx_fprime(w, logit_at_equal_lengths, 1e-6)
        reach = 1.959964 * math.sqrt(slope @ variance @ slope)
        middle = logit_at_equal_lengths(w)
        result = length_controlled(won, own, other, known)
        assert result.share.low == pytest.approx(expit(middle - reach), abs=1e-4)
        assert result.share.high == pytest.approx(expit(middle + reach), abs=1e-4)


@pytest.mark.parametrize("strength", [1.0, 8.0])
@pytest.mark.parametrize("longer", [0.0, 2.0])
def test_the_interval_holds_the_truth_as_often_as_it_says(longer, strength, monkeypatch):
    """Also where a judge nearly goes by length alone, and nearly all answers are longer."""
    monkeypatch.setattr(
        length_control, "chosen_penalty", lambda *_: 1.0
    )  # it does not depend on it
    rng = np.random.default_rng(5)
    truth, held, known = expit(0.3), 0, 0
    for _ in range(60):
        gap = rng.normal(longer, 1, 120)
        won = rng.random(120) < expit(0.3 + strength * np.tanh(gap / gap.std(ddof=1)))
        sides = (pd.Series(side) for side in (won.astype(float), gap, 0 * gap))
        share = length_controlled(*sides).share
        known += not np.isnan(share.mean)
        held += share.low <= truth <= share.high
    assert known >= 10
    assert held >= 0.88 * known


def differences(n=200, seed=3):
    gap = np.random.default_rng(seed).normal(20, 400, n).round()
    return np.where(gap == 0, 1.0, gap)


WINS = differences() > 0
NOT_IDENTIFIED = {
    "the longer answer always wins": (differences(), WINS, "the length separates"),
    "the shorter answer always wins": (differences(), ~WINS, "the length separates"),
    "the longer one wins above 300": (differences(), differences() > 300, "the length separates"),
    "… and is undecided just there": (
        np.array([9.0, 9, 5, 5, 2, 1, 1] * 9), np.array([1, 1, 0.5, 0.5, 0, 0, 0] * 9),
        "the length separates wins from losses",
    ),
    "all win": (differences(), np.ones(200), "all 200 verdicts are a win"),
    "all lose": (differences(), np.zeros(200), "all 200 verdicts are a loss"),
    "one prompt": (np.array([7.0]), np.array([1.0]), "all 1 verdicts are a win"),
    "all longer by as much": (np.full(200, 80.0), WINS, "the differences in length do not vary"),
    "all longer by nearly as much": (
        80 + 1e-3 * np.sign(differences()), WINS[::-1], "the differences in length do not vary",
    ),
    "all tied and longer by as much": (np.full(9, 5.0), np.full(9, 0.5), "do not vary"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_IDENTIFIED)
def test_what_the_verdicts_do_not_identify_has_a_reason_and_no_number(case):
    gap, won, reason = NOT_IDENTIFIED[case]
    won = pd.Series(won, dtype=float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = length_controlled(won, pd.Series(500 + gap), pd.Series(0 * gap + 500))
    assert np.isnan([*result.share[:3], result.length_effect]).all()
    assert result.share.n == len(won)
    assert result.raw == won.mean()
    assert result.note.startswith("not identified: ")
    assert reason in result.note
    assert f"{100 * won.mean():.1f} % as they are" in str(result)


def test_length_and_difficulty_together_may_separate():
    gap, hard = differences(), pd.Series(differences(seed=4) / 400)
    won = pd.Series((np.tanh(gap / gap.std(ddof=1)) + hard > 0).astype(float))
    sides = (won, pd.Series(gap), pd.Series(0 * gap))
    assert not np.isnan(length_controlled(*sides).share.mean)
    result = length_controlled(*sides, hard)
    assert result.note == "not identified: length and difficulty separate wins from losses"


def test_answers_of_equal_length_identify_what_length_alone_decides_elsewhere():
    """The longer always wins, and of forty pairs of equal length thirty: the share is theirs."""
    gap = np.concatenate([differences(60), np.zeros(40)])
    won = np.concatenate([differences(60) > 0, np.arange(40) < 30]).astype(float)
    result = length_controlled(*(pd.Series(side) for side in (won, gap, 0 * gap)))
    assert result.share.mean == pytest.approx(0.75, abs=0.03)
    reach = 1.959964 / math.sqrt(40 * 0.75 * 0.25)
    assert result.share.low == pytest.approx(expit(logit(0.75) - reach), abs=1e-3)
    assert result.share.high == pytest.approx(expit(logit(0.75) + reach), abs=1e-3)


def test_one_verdict_against_the_length_identifies_it_widely():
    won = WINS.astype(float)
    short = int(np.argmin(differences()))
    won[short] = 1 - won[short]
    sides = (pd.Series(side) for side in (won, differences(), 0 * differences()))
    result = length_controlled(*sides)
    assert not result.note
    assert result.share.high - result.share.low > 0.15


def test_answers_that_are_all_longer_are_extrapolated_and_say_so():
    rng = np.random.default_rng(0)
    gap = rng.uniform(300, 900, 200)
    sides = (pd.Series(s) for s in ((rng.random(200) < 0.6).astype(float), gap, 0 * gap))
    result = length_controlled(*sides)
    assert result.note.endswith("every answer is longer than the baseline's: extrapolated")
    assert result.share.low < 0.02
    assert result.share.high > 0.98


def cell(method, judge, **numbers):
    where = {"dataset": "d", "model": "m", "benchmark": "b", "decoding": "greedy", "seed": 0}
    row = {"n": 9, "win_rate": 52.5, "lc": 51.0, "lc_low": 49.0, "lc_high": 53.0}
    row |= {"characters": 3.0, "note": ""}
    return where | row | {"method": method, "judge": judge} | numbers


def test_the_reason_stands_beside_the_number_in_the_table():
    gone = {"lc": np.nan, "lc_low": np.nan, "lc_high": np.nan}
    cells = pd.DataFrame(
        [
            cell("A", "one"),
            cell("B", "one", note="not identified: all 9 verdicts are a win", **gone),
            cell("C", "one", benchmark="c"),
            cell("C", "one", note="not identified: so it is", **gone),
        ]
    )
    text = lengths_shown(cells)["one, greedy"]
    assert text["WR at equal lengths"].tolist() == [
        "51.0 [49.0, 53.0]", "not identified", "not identified in 1 of 2 cells",
    ]  # fmt: skip
    assert text["note"].tolist() == ["", "all 9 verdicts are a win", "so it is"]
    assert "note" not in lengths_shown(cells.iloc[:1])["one, greedy"]


def test_benchmarks_are_not_seeds_in_the_table():
    cells = pd.DataFrame(
        [
            cell("A", "one", lc=lc, benchmark=benchmark, seed=seed)
            for seed, shift in enumerate((0.0, 2.0))
            for benchmark, lc in (("b", 50 + shift), ("c", 60 + shift), ("d", 70 + shift))
        ]
    )
    text = lengths_shown(cells)["one, greedy"]["WR at equal lengths"]
    assert text.tolist() == ["61.0 ± 1.4"]
    one = lengths_shown(cells[cells["seed"] == 0])["one, greedy"]["WR at equal lengths"]
    assert one.tolist() == ["60.0 (mean of 3)"]


def test_a_penalty_that_holds_the_share_outside_its_interval_is_told(monkeypatch):
    monkeypatch.setattr(length_control, "chosen_penalty", lambda *_: 0.03)
    won, own, other, _ = simulated(0, 400, 0.9, 1.0, 0.0)
    result = length_controlled(won, own, other)
    assert result.share.mean < result.share.low
    assert result.note.startswith("the penalty holds it outside the interval")


def test_answers_that_are_all_the_baselines_are_ties():
    same = pd.Series([100.0, 200.0, 300.0] * 5)
    result = length_controlled(same * 0 + 0.5, same, same)
    assert result.share.mean == pytest.approx(0.5)
    assert result.note == "all 15 verdicts are a tie"


def side_by_side(gap, won, base=700):
    """Verdicts of a pairwise judge on one method's answers, two turns a prompt."""
    size = len(gap)
    rows = {"prompt_id": [f"p{n // 2}" for n in range(size)], "turn": [1, 2] * (size // 2)}
    rows |= {"win": won, "characters": base + gap, "baseline_characters": base}
    where = {"dataset": "d", "model": "m", "benchmark": "b", "judge": "J", "decoding": "greedy"}
    return pd.DataFrame(rows | where | {"method": "A", "seed": 0})


def test_verdicts_of_a_pairwise_judge_at_equal_lengths():
    """Every turn is a verdict of its own."""
    won, own, other, _ = simulated(8, 240, 0.4, 0.8, 0.0)
    gap = (own - other).to_numpy()
    judged = pd.DataFrame(columns=[*"abc", "dataset", "model", "benchmark", "judge", "decoding"])
    judged = judged.assign(seed=[], method=[])
    versus = side_by_side(gap, won.to_numpy())
    evaluation = Evaluation(judged, pd.DataFrame(), versus, "DPO", {"b": 120})
    (line,) = length_controlled_cells(evaluation).to_dict("records")
    assert (line["judge"], line["method"], line["n"]) == ("J, side by side", "A", 240)
    assert line["win_rate"] == pytest.approx(100 * won.mean())
    assert line["characters"] == pytest.approx(gap.mean())
    assert line["note"] == ""
    assert line["lc"] == pytest.approx(100 * length_controlled(won, own, other).share.mean)
    assert line["lc_low"] < line["lc"] < line["lc_high"]
    with pytest.raises(JoinError, match="No method but the baseline 'SFT'"):
        length_controlled_cells(evaluation, "SFT")  # verdicts are against DPO alone


def test_a_pairwise_judge_of_length_alone_is_not_identified_and_a_missing_verdict_is_told():
    versus = side_by_side(differences(), WINS.astype(float))
    judged = pd.DataFrame(columns=["dataset", "model", "benchmark", "judge", "decoding", "seed"])
    judged = judged.assign(method=[])
    evaluation = Evaluation(judged, pd.DataFrame(), versus, "DPO", {"b": 100})
    (line,) = length_controlled_cells(evaluation).to_dict("records")
    assert np.isnan(line["lc"])
    assert line["note"] == "not identified: the length separates wins from losses"
    versus.loc[0, "win"] = np.nan
    with pytest.raises(JoinError, match=r"judge J, .*1 of 200 verdicts are NaN"):
        length_controlled_cells(evaluation)
    (line,) = length_controlled_cells(replace(evaluation, incomplete="common")).to_dict("records")
    assert line["n"] == 199
    met, why = line["note"].split("; ")
    assert met.startswith("199 of 200 prompts compared")
    assert why == "not identified: the length separates wins from losses"


def test_what_cannot_be_compared_is_refused():
    won, own, other, hardness = simulated(0, 20, 0, 0, 0)
    with pytest.raises(JoinError, match="different prompts: 1 are not in the lengths"):
        length_controlled(won, own.iloc[1:], other)
    with pytest.raises(
        JoinError, match="1 of 20 verdicts are NaN on one side, or infinite on both"
    ):
        length_controlled(won, own, other, hardness.mask(hardness.index == 3))
    with pytest.raises(JoinError, match="a share from 0 to 1; one is 2"):
        length_controlled(won * 2, own, other)
    empty = pd.Series(dtype=float)
    assert str(length_controlled(empty, empty, empty)) == "n/a (n=0)"
