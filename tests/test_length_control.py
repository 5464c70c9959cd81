"""The length-controlled win rate, against alpaca_eval's own fit and against known truths."""

import math

import numpy as np
import pandas as pd
import pytest

from plc_core.evaluation.length_control import length_controlled
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
    result = length_controlled(won, own, other, hardness if known else None, resamples=10)
    assert 100 * result.share.mean == pytest.approx(percent, abs=1e-9)
    assert result.length_effect == pytest.approx(effect, abs=1e-7)


def test_the_truth_at_equal_lengths_is_found():
    """The judge prefers the method by sigmoid(0.4) = 60 % at equal lengths, and long answers."""
    won, own, other, _ = simulated(0, 2000, 0.4, 1.0, 0.0)
    result = length_controlled(won, own, other, resamples=100)
    truth = 1 / (1 + math.exp(-0.4))
    assert result.share.low < truth < result.share.high
    assert result.raw > result.share.high  # as they are, the longer answers win more
    assert result.mean_difference == pytest.approx(150, abs=30)
    assert str(result).endswith("% as they are (n=2000)")


def test_a_judge_of_length_alone_gives_one_half():
    won, own, other, _ = simulated(1, 2000, 0.0, 2.0, 0.0)
    result = length_controlled(won, own, other, resamples=100)
    assert result.raw > 0.57
    assert result.share.low < 0.5 < result.share.high


def test_equal_lengths_leave_the_win_rate_as_it_is():
    won = pd.Series([1.0] * 30 + [0.0] * 10)
    same = pd.Series(100.0, index=won.index)
    result = length_controlled(won, same, same, resamples=50)
    assert result.share.mean == pytest.approx(0.75, abs=0.02)
    assert result.length_effect == 0


def test_few_undecided_prompts_are_the_penaltys_answer_and_say_so():
    won, own, other, _ = simulated(9, 80, 0.2, 0.0, 0.0)
    result = length_controlled(won, own, other, resamples=50)
    assert result.collapsed
    assert result.share.mean == 0.5
    assert result.share.low < result.raw < result.share.high
    assert "the penalty's answer" in str(result)


@pytest.mark.parametrize("n", [1, 2, 6, 40])
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_one_verdict_throughout_has_an_answer(n, value):
    won = pd.Series([value] * n)
    result = length_controlled(won, pd.Series(range(n)), pd.Series([5] * n), resamples=5)
    assert abs(result.share.mean - 0.5) <= abs(value - 0.5) + 1e-9
    assert np.sign(round(result.share.mean - 0.5, 6)) in (0, np.sign(value - 0.5))


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
