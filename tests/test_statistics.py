"""The statistics: known values, degenerate groups, and how they read."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from plc_core.analysis.statistics import (
    auroc,
    bootstrap_mean,
    bootstrap_seeds,
    format_p,
    holm,
    jonckheere,
    mann_whitney,
    mean_interval,
    page,
    paired_bootstrap,
    read_aloud,
    spearman,
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


# ---- p values that a float cannot hold ----------------------------------------------------------


def test_the_logarithm_of_p_goes_on_where_p_ends() -> None:
    rng = np.random.default_rng(3)
    near, far = rng.normal(size=300), rng.normal(size=300) + 0.4
    for side in ("two-sided", "greater", "less"):
        test = mann_whitney(near, far, side)
        assert test.log10_p == pytest.approx(math.log10(test.p))
    # U is 0 of 9000 x 9000 and there are two values: z by hand.
    gone = mann_whitney(np.zeros(9000), np.ones(9000))
    n = 9000
    variance = n * n / 12 * (2 * n + 1 - 2 * (n**3 - n) / (2 * n * (2 * n - 1)))
    z = (n * n / 2 - 0.5) / math.sqrt(variance)
    expected = (stats.norm.logsf(z) + math.log(2)) / math.log(10)
    assert gone.p == 0
    assert gone.log10_p == pytest.approx(expected, rel=1e-9)
    assert f"p < 2.2e-308 (10^{expected:,.0f})" in str(gone)


def test_mann_whitney_has_delongs_interval() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=60) + 0.5, rng.normal(size=90)
    area = auroc(np.concatenate([a, b]), np.arange(150) < 60)
    test = mann_whitney(a, b)
    assert (test.auroc, test.auroc_low, test.auroc_high) == pytest.approx(
        (area.value, area.low, area.high)
    )
    assert area.value == pytest.approx((a[:, None] > b).mean())
    assert math.isnan(mann_whitney([1], [0, 2, 3]).auroc_low)


# ---- trends -------------------------------------------------------------------------------------


def by_hand(groups: list[list[float]]) -> float:
    return sum(
        (later > earlier) + 0.5 * (later == earlier)
        for i, first in enumerate(groups)
        for second in groups[i + 1 :]
        for earlier in first
        for later in second
    )


def exact_p(groups: list[list[float]]) -> float:
    """The share of all arrangements of the values whose J is at least as large."""
    values = [v for group in groups for v in group]
    seen = [
        by_hand(
            [
                [order[k] for k in range(start, start + len(group))]
                for start, group in zip(np.cumsum([0, *map(len, groups[:-1])]), groups, strict=True)
            ]
        )
        for order in itertools.permutations(values)
    ]
    return float(np.mean(np.array(seen) >= by_hand(groups) - 1e-9))


@pytest.mark.parametrize(
    "groups",
    [
        [[1.0, 2.0], [2.5, 4.0], [3.0, 6.0, 7.0]],
        [[1.0, 2.0, 2.0], [2.0, 4.0], [2.0, 3.0]],  # ties between and within groups
        [[3.0, 1.0], [2.0, 2.0]],
        [[5.0], [4.0, 3.0], [1.0]],
    ],
)
def test_jonckheere_agrees_with_all_permutations(groups: list[list[float]]) -> None:
    result = jonckheere({str(i): group for i, group in enumerate(groups)})
    assert result.method == "exact permutations"
    assert by_hand(groups) == result.J
    assert result.p == pytest.approx(exact_p(groups))


def test_jonckheeres_variance_with_ties_is_that_of_random_orders() -> None:
    rng = np.random.default_rng(5)
    sizes = [30, 40, 20]
    values = rng.integers(0, 4, sum(sizes)).astype(float)
    drawn = []
    for _ in range(1500):
        parts = np.split(rng.permutation(values), np.cumsum(sizes)[:-1])
        drawn.append(jonckheere(dict(zip("abc", parts, strict=True))).J)
    parts = dict(zip("abc", np.split(np.sort(values), np.cumsum(sizes)[:-1]), strict=True))
    result = jonckheere(parts)
    assert "normal" in result.method
    # z of the largest J, by the drawn spread and by the formula.
    z = (result.J - np.mean(drawn)) / np.std(drawn)
    assert stats.norm.isf(10**result.log10_p) == pytest.approx(z, rel=0.04)


def test_jonckheere_of_two_groups_is_mann_whitney() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=80).round(1), rng.normal(size=60).round(1) + 0.3
    trend = jonckheere({"a": a, "b": b})
    test = mann_whitney(b, a, "greater")
    assert trend.J == test.U
    assert (trend.concordance, trend.low, trend.high) == pytest.approx(
        (test.auroc, test.auroc_low, test.auroc_high)
    )
    uncorrected = stats.mannwhitneyu(
        b, a, alternative="greater", method="asymptotic", use_continuity=False
    )
    assert trend.p == pytest.approx(uncorrected.pvalue)


def test_the_concordances_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    shifts = {"low": 0.0, "middle": 0.3, "high": 0.8}
    sizes = {"low": 40, "middle": 60, "high": 30}
    pairs = [("low", "middle"), ("low", "high"), ("middle", "high")]
    weights = [sizes[a] * sizes[b] for a, b in pairs]
    chances = [stats.norm.cdf((shifts[b] - shifts[a]) / math.sqrt(2)) for a, b in pairs]
    truth = float(np.average(chances, weights=weights))
    covered = 0
    for _ in range(400):
        result = jonckheere({g: rng.normal(shifts[g], 1, sizes[g]) for g in shifts})
        covered += result.low <= truth <= result.high
    assert 0.92 <= covered / 400 <= 0.98


def test_jonckheere_of_nothing_one_and_equal_values() -> None:
    assert str(jonckheere({})) == "n/a (n=0)"
    assert str(jonckheere({"a": [1, 2], "b": []})) == "n/a (a 2, b 0)"
    assert jonckheere({"a": [1, NAN], "b": [NAN], "c": [3]}).missing == 2
    equal = jonckheere({"a": [1] * 40, "b": [1] * 40})
    assert (equal.concordance, equal.p) == (0.5, 1)
    assert jonckheere({"a": [1], "b": [1]}).p == 1
    falling = {"a": np.arange(30) + 60.0, "b": np.arange(30) + 30.0, "c": np.arange(30.0)}
    assert jonckheere(falling, "less").p < 1e-10 < jonckheere(falling, "greater").p


def test_a_trend_beyond_floats_is_a_power_of_ten() -> None:
    groups = {str(i): np.full(9000, float(i)) for i in range(3)}
    result = jonckheere(groups)
    assert result.p == 0
    assert result.log10_p < -308
    assert "p < 2.2e-308 (10^-" in str(result)


def test_page_is_scipys_and_counts_what_is_missing() -> None:
    table = pd.DataFrame([[1, 2, 3], [2, 3, 5], [1, 3, 2], [NAN, 1, 2]])
    result = page(table)
    expected = stats.page_trend_test(table.dropna().to_numpy())
    assert (result.L, result.p) == (expected.statistic, expected.pvalue)
    assert (result.blocks, result.treatments, result.incomplete) == (3, 3, 1)
    assert "1 incomplete left out" in str(result)
    assert str(page(table.iloc[:1])) == "n/a (n=1)"
    assert str(page(table.iloc[:, 1:])) == "n/a (n=4)"


# ---- correlation, families, bootstrap -----------------------------------------------------------


def test_spearman_is_pearson_of_ranks_and_counts_what_is_missing() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=300).round(1)
    y = x + rng.normal(size=300)
    ranks = np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1]
    result = spearman([*x, 1.0, NAN], [*y, NAN, NAN])
    assert result.rho == pytest.approx(ranks)
    assert (result.n, result.missing) == (300, 2)
    # Bonett and Wright 2000: Fisher's z with the variance (1 + rho^2 / 2) / (n - 3).
    reach = stats.norm.ppf(0.975) * math.sqrt((1 + ranks**2 / 2) / 297)
    ends = np.tanh(np.arctanh(ranks) + np.array([-reach, reach]))
    assert (result.low, result.high) == pytest.approx(tuple(ends))
    assert "2 missing" in str(result)


def test_spearman_without_a_correlation() -> None:
    assert str(spearman([], [])) == "n/a (n=0)"
    assert str(spearman([1, 1, 1], [1, 2, 3])) == "n/a (n=3)"
    perfect = spearman([1, 2, 3, 4, 5], [2, 4, 6, 8, 9])
    assert perfect.rho == pytest.approx(1)
    assert math.isnan(perfect.low)
    with pytest.raises(ValueError, match="over the same items"):
        spearman([1, 2], [1])


def test_holm_by_hand() -> None:
    # Sorted .01, .03, .04: times 3, 2, 1, and never below the one before.
    assert holm([0.03, 0.01, 0.04]) == pytest.approx([0.06, 0.03, 0.06])
    with_missing = holm([0.03, NAN, 0.01])
    assert with_missing == pytest.approx([0.03, NAN, 0.02], nan_ok=True)
    assert list(holm([])) == []
    assert holm([0, 0.9]) == pytest.approx([0, 0.9])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        holm([1.2])


def test_the_paired_bootstrap_uses_the_pairing() -> None:
    rng = np.random.default_rng(10)
    hard = rng.normal(size=500) * 10  # prompts differ more than methods do
    own, other = hard + 1 + rng.normal(size=500), hard + rng.normal(size=500)
    paired = paired_bootstrap(own, other, seed=0)
    assert paired == pytest.approx(mean_interval(own - other), abs=0.03)
    assert paired.high - paired.low < 0.2 * (
        bootstrap_mean(own, 0).high - bootstrap_mean(own, 0).low
    )
    assert paired_bootstrap([1, NAN, 3], [0, 1, NAN], seed=0).n == 1
    assert str(paired_bootstrap([], [], seed=0)) == "n/a (n=0)"
    with pytest.raises(ValueError, match="over the same items"):
        paired_bootstrap([1, 2], [1], seed=0)


def test_the_bootstrap_over_seeds_is_wider_where_seeds_differ() -> None:
    rng = np.random.default_rng(11)
    same = [rng.normal(size=400) for _ in range(4)]
    apart = [values + shift for values, shift in zip(same, (-1, 0, 0, 1), strict=True)]
    narrow, wide = bootstrap_seeds(same, seed=0), bootstrap_seeds(apart, seed=0)
    assert wide.mean == pytest.approx(narrow.mean)
    assert wide.high - wide.low > 4 * (narrow.high - narrow.low)
    assert narrow.n == 1600
    alone = bootstrap_seeds(same[:1], seed=0)
    assert alone == pytest.approx(bootstrap_mean(same[0], seed=1), abs=0.02)
    assert str(bootstrap_seeds([[], [NAN]], seed=0)) == "n/a (n=0)"


# ---- sentences ----------------------------------------------------------------------------------


def test_a_test_reads_as_a_sentence() -> None:
    up = np.arange(40.0)
    assert read_aloud(mann_whitney(up + 30, up), "q_tie", "weak gaps", "strong gaps").startswith(
        "q_tie is higher in weak gaps than in strong gaps (AUROC 0.96"
    )
    assert "lower in a than in b" in read_aloud(mann_whitney(up, up + 30), "|m|", "a", "b")
    same = mann_whitney(up, up)
    assert read_aloud(same, "q", "a", "b").startswith("No difference in q between a and b is shown")
    other_side = mann_whitney(up, up + 30, "greater")
    assert read_aloud(other_side, "q", "a", "b").startswith(
        "It is not shown that q is higher in a than in b"
    )
    assert read_aloud(mann_whitney([], up), "q", "a", "b") == "q cannot be compared: a has n=0."


def test_the_sentence_goes_by_the_corrected_p() -> None:
    rng = np.random.default_rng(12)
    test = mann_whitney(rng.normal(size=100) + 0.35, rng.normal(size=100))
    assert test.p < 0.05
    corrected = read_aloud(test, "q", "a", "b", adjusted=0.2)
    assert corrected.startswith("No difference")
    assert "p = 0.200 after Holm's correction" in corrected


def test_trends_and_correlations_read_as_sentences() -> None:
    up = np.arange(40.0)
    groups = {"unanimous": up, "divergent": up + 20, "tie-majority": up + 40}
    assert read_aloud(jonckheere(groups), "q_tie").startswith(
        "q_tie rises over unanimous (n=40), divergent (n=40), tie-majority (n=40): the later"
    )
    assert read_aloud(jonckheere(groups, "less"), "q").startswith("q is not shown to fall")
    assert read_aloud(jonckheere({"a": up, "b": []}), "q") == (
        "No trend of q can be tested over a (n=40), b (n=0)."
    )
    assert read_aloud(spearman(up, -up), "q", second="m").startswith("q falls with m: Spearman -1")
    assert "cannot" not in read_aloud(spearman(up, up % 7), "q", second="m")
    assert "can be computed (n=0)" in read_aloud(spearman([], []), "q", second="m")
