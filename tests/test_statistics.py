"""The statistics: known values, degenerate groups, and how they read."""

import math

import numpy as np
import pytest
from scipy import stats

from plc_core.analysis.statistics import (
    auroc,
    bootstrap_mean,
    format_p,
    mann_whitney,
    mean_interval,
    wilson,
)

NAN = math.nan


def test_mann_whitney_agrees_with_hand_count() -> None:
    # a exceeds b in 5 of 6 comparisons: (3, 4, 5 against 1) and (4, 5 against 3.5).
    result = mann_whitney([3, 4, 5], [1, 3.5])
    assert (result.U, result.n_a, result.n_b) == (5, 3, 2)
    assert result.auroc == pytest.approx(5 / 6)
    assert result.rank_biserial == pytest.approx(4 / 6)


def test_mann_whitney_counts_missing_values() -> None:
    result = mann_whitney([1, NAN, 2], [NAN, NAN, 3])
    assert (result.n_a, result.nan_a, result.n_b, result.nan_b) == (2, 1, 1, 2)
    assert "3 missing" in str(result)


@pytest.mark.parametrize(("a", "b"), [([], [1, 2]), ([1], []), ([], []), ([NAN], [1])])
def test_mann_whitney_of_an_empty_group_is_not_a_number(a: list[float], b: list[float]) -> None:
    result = mann_whitney(a, b)
    assert math.isnan(result.U)
    assert math.isnan(result.p)
    assert str(result) == "n/a (n=0)"


def test_mann_whitney_of_equal_values_finds_nothing() -> None:
    result = mann_whitney([2] * 30, [2] * 20)
    assert (result.p, result.auroc, result.rank_biserial) == (1, 0.5, 0)


def test_mann_whitney_sides() -> None:
    low, high = np.arange(50.0), np.arange(50.0) + 10
    assert mann_whitney(high, low, "greater").p < 0.01 < mann_whitney(high, low, "less").p
    assert mann_whitney(low, high, "less").side == "less"


def test_mann_whitney_keeps_infinities() -> None:
    assert mann_whitney([math.inf, 2], [1, -math.inf]).auroc == 1


def test_a_p_value_that_underflows_prints_as_a_bound() -> None:
    assert mann_whitney(np.zeros(9000), np.ones(9000)).p == 0
    assert format_p(0) == "p < 2.2e-308"
    assert format_p(0.0123) == "p = 0.012"
    assert format_p(1.5e-20) == "p = 1.5e-20"
    assert format_p(NAN) == "p = n/a"


def test_auroc_and_mann_whitney_are_one_number() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=200).round(1), rng.random(200) < 0.3
    expected = mann_whitney(scores[labels], scores[~labels]).auroc
    assert auroc(scores, labels).value == pytest.approx(expected)


def test_the_delong_interval_covers_as_often_as_it_says() -> None:
    truth = stats.norm.cdf(1 / math.sqrt(2))
    rng = np.random.default_rng(1)
    labels = np.arange(200) < 60
    covered = 0
    for _ in range(400):
        area = auroc(rng.normal(labels * 1.0), labels)
        covered += area.low <= truth <= area.high
    assert 0.92 <= covered / 400 <= 0.98


def test_auroc_without_an_interval() -> None:
    perfect = auroc([1, 2, 3, 4], [False, False, True, True])
    assert perfect.value == 1
    assert math.isnan(perfect.low)
    assert str(perfect) == "1.000 [n/a, n/a] (n=2 vs 2)"
    assert str(auroc([1, 2], [True, True])) == "n/a (n=0)"
    assert str(auroc([], [])) == "n/a (n=0)"


def test_auroc_refuses_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="of one length"):
        auroc([1, 2], [True])


def test_mean_interval_is_students() -> None:
    result = mean_interval([1, 2, 3, 4, NAN])
    low, high = stats.t.interval(0.95, 3, 2.5, stats.sem([1, 2, 3, 4]))
    assert result == pytest.approx((2.5, low, high, 4))
    assert str(mean_interval([])) == "n/a (n=0)"
    assert math.isnan(mean_interval([1]).low)


def test_bootstrap_mean_is_seeded_and_near_students() -> None:
    values = np.random.default_rng(2).normal(size=400)
    first, again = bootstrap_mean(values, seed=5), bootstrap_mean(values, seed=5)
    assert first == again
    assert first != bootstrap_mean(values, seed=6)
    assert first == pytest.approx(mean_interval(values), abs=0.02)
    assert bootstrap_mean([], seed=0).n == 0


def test_wilson() -> None:
    assert wilson(0, 10) == pytest.approx((0, 0.2775), abs=1e-4)
    assert all(math.isnan(bound) for bound in wilson(0, 0))
