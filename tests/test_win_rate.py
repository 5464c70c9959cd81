"""Win rates: what they are, what they refuse, and what becomes of them over cells and seeds."""

import math

import numpy as np
import pandas as pd
import pytest

from notebooks.studies.judge_agreement import agreement_of_judges
from plc_core.evaluation.results import mean_over_seeds, over_cells
from plc_core.evaluation.sides import win_rate_cells
from plc_core.evaluation.win_rate import JoinError, JoinReport, verdict_win_rate, verdicts, win_rate

IDS = ["p0", "p1", "p2", "p3"]


def rewards(*values, ids=None):
    return pd.Series(values, index=ids or [f"p{i}" for i in range(len(values))], dtype=float)


# ---- one comparison ---------------------------------------------------------------------------


def test_ties_count_one_half_and_order_does_not_matter():
    own = rewards(1.0, 2.0, 3.0, 5.0)  # two wins, one tie, one loss
    other = rewards(4.0, 0.0, 2.0, 2.0, ids=["p3", "p0", "p1", "p2"])
    result = win_rate(own, other)
    assert (result.wins, result.ties, result.losses) == (3, 1, 0)
    assert result.share.mean == 0.875
    assert result.share.n == 4
    assert 0.5 <= result.share.low <= 0.875 <= result.share.high <= 1
    assert str(result.join) == "all 4 prompts compared"
    assert result.note == ""


def test_the_paired_tests_are_scipys_over_prompts_that_are_no_tie():
    own, other = rewards(*[2.0] * 8, 0.0, 1.0), rewards(*[1.0] * 10)
    result = win_rate(own, other)  # 8 wins, 1 loss, 1 tie
    assert result.sign.n == 9
    assert result.sign.p == pytest.approx(2 * (1 + 9) / 2**9)
    assert str(result.sign) == "sign test: p = 0.039 (n=9)"
    assert result.wilcoxon.name == "Wilcoxon"
    assert 0 < result.wilcoxon.p < 0.05


def test_degenerate_comparisons_are_said():
    same = win_rate(rewards(1.0, 2.0), rewards(1.0, 2.0))
    assert same.note == "all 2 verdicts are a tie"
    assert math.isnan(same.sign.p)
    assert "p = n/a" in str(same.sign)
    assert win_rate(rewards(2.0, 2.0), rewards(1.0, 1.0)).note == "all 2 verdicts are a win"
    assert str(win_rate(rewards(), rewards())) == "n/a (n=0)"
    assert win_rate(rewards(math.inf), rewards(0.0)).wins == 1


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (rewards(1, ids=["p0"]), "1 of 2 are missing (as 'p1')"),
        (rewards(1, 1, 1), "1 are not in the baseline (as 'p2')"),
        (rewards(1, 1, 1, ids=["p0", "p1", "p0"]), "rewards has 1 prompts twice, as 'p0'"),
        (pd.Series(["x", "2"], ["p0", "p1"]), "Not all rewards and baseline are numbers: could"),
        (rewards(1, math.nan), "1 of 2 rewards are NaN on one side, or infinite on both, as 'p1'"),
        (rewards(1, 1, ids=[0, 1]), "Ids are int on one side and str on the other"),
    ],
)
def test_sides_that_do_not_meet_are_refused_with_the_counts(own, sentence):
    with pytest.raises(JoinError) as error:
        win_rate(own, rewards(0, 0))
    assert sentence in str(error.value)


def test_common_prompts_are_compared_on_request_and_the_count_stays_with_the_result():
    """Three of ten ids missing, one more without a number: the share is over six, and says so."""
    own = rewards(*range(10)).drop(["p1", "p4", "p7"])
    own["p9"] = math.nan
    result = win_rate(own, rewards(*[4.5] * 10), incomplete="common")
    assert result.join == JoinReport(matched=6, missing=3, extra=0, without_number=1)
    assert result.share.n == 6
    assert result.note.startswith("6 of 10 prompts compared: 3 missing, 0 not in the baseline, 1 ")
    with pytest.raises(JoinError, match="twice"):  # which of the two would be a guess
        win_rate(rewards(1, 2, ids=["p0", "p0"]), rewards(1), incomplete="common")


def test_verdicts_of_a_pairwise_judge():
    result = verdict_win_rate(rewards(1, 0.5, 0, 1))
    assert (result.wins, result.ties, result.losses, result.share.mean) == (2, 1, 1, 0.625)
    assert result.wilcoxon is None
    with pytest.raises(
        JoinError, match=r"1 of 4 verdicts are NaN on one side, or infinite on both, as 'p2'"
    ):
        verdict_win_rate(rewards(1, 0.5, math.nan, 1))
    with pytest.raises(JoinError, match=r"1 of 5 are missing \(as 'p4'\)"):
        verdict_win_rate(rewards(1, 0.5, 0, 1), prompts=[*IDS, "p4"])
    with pytest.raises(JoinError, match=r"among these 2 is 7\."):
        verdict_win_rate(rewards(1, 7))


# ---- cells, seeds, KL ---------------------------------------------------------------------------


def judged(**methods):
    """Rewards of each method on benchmark a (4 prompts) and b (2 prompts)."""
    rows = []
    for method, values in methods.items():
        for i, value in enumerate(values):
            rows.append(
                {
                    "benchmark": "a" if i < 4 else "b",
                    "method": method,
                    "prompt_id": i,
                    "reward": value,
                }
            )
    return pd.DataFrame(rows)


BASE = [1, 1, 1, 1, 1, 1]


def test_cells_then_mean_and_worst():
    table = win_rate_cells(judged(dpo=BASE, plc=[2, 2, 2, 0, 2, 1], sft=[0] * 6), "dpo")
    columns = ["benchmark", "method", "n", "wins", "ties", "losses", "win_rate"]
    assert table[columns].to_numpy().tolist() == [
        ["a", "plc", 4, 3, 0, 1, 75.0],
        ["b", "plc", 2, 1, 1, 0, 75.0],
        ["a", "sft", 4, 0, 0, 4, 0.0],
        ["b", "sft", 2, 0, 0, 2, 0.0],
    ]  # fmt: skip
    assert table["note"].tolist()[2] == "all 4 verdicts are a loss"
    means = over_cells(table.replace({"win_rate": {0.0: 10.0}}), keys=["benchmark"])
    assert means.to_numpy().tolist() == [["plc", 2, 75.0, 75.0, "a"], ["sft", 2, 10.0, 10.0, "a"]]


def test_a_mean_over_other_cells_is_refused():
    table = win_rate_cells(judged(dpo=BASE, plc=[2] * 6, sft=[0] * 6), "dpo")
    with pytest.raises(JoinError, match=r"sft lacks 1 of 2 cells, as \('b',\)"):
        over_cells(table.iloc[:3], keys=["benchmark"])
    with pytest.raises(JoinError, match="plc has 3 rows for 2 cells"):
        over_cells(pd.concat([table, table.iloc[:1]]), keys=["benchmark"])


def test_a_cell_that_cannot_be_compared_says_which():
    rows = judged(dpo=BASE, plc=[2] * 6)
    with pytest.raises(JoinError, match=r"^benchmark a, method plc: The two sides answer diff"):
        win_rate_cells(rows.drop(index=7), "dpo")
    note = win_rate_cells(rows.drop(index=7), "dpo", incomplete="common")["note"].iloc[0]
    assert "3 of 4 prompts compared" in note
    with pytest.raises(JoinError, match="no rewards of the baseline 'DPO'"):
        win_rate_cells(rows, "DPO")
    with pytest.raises(JoinError, match="lack the columns model; they have benchmark"):
        win_rate_cells(rows, "dpo", keys=("model",))
    with pytest.raises(JoinError, match="no judged responses"):
        win_rate_cells(rows.iloc[:0], "dpo")
    with pytest.raises(JoinError, match="No method but the baseline"):
        win_rate_cells(judged(dpo=BASE), "dpo")


def test_seeds_as_mean_and_standard_deviation():
    parts = [
        judged(dpo=BASE, plc=values).assign(seed=seed)
        for seed, values in ((42, [2] * 6), (43, [2, 2, 0, 0, 2, 0]))
    ]
    table = win_rate_cells(pd.concat(parts), "dpo")
    seeds = mean_over_seeds(table, keys=["benchmark"]).set_index("benchmark")
    assert seeds.loc["a", ["seeds", "n", "win_rate"]].tolist() == [2, 4, 75.0]
    assert seeds.loc["a", "sd"] == pytest.approx(np.std([100, 50], ddof=1))
    assert math.isnan(mean_over_seeds(table[table["seed"] == 42], keys=["benchmark"])["sd"].iloc[0])
    moved = mean_over_seeds(
        table.drop(columns="n").assign(kl=[1.0, 1.0, 2.0, 2.0]), keys=["benchmark"]
    )
    assert moved["kl"].tolist() == [1.5, 1.5]
    assert "n" not in moved
    with pytest.raises(JoinError, match="a, plc: a seed is there twice"):
        mean_over_seeds(pd.concat([table, table]), keys=["benchmark"])


def test_verdicts_of_infinite_rewards_keep_their_prompts():
    own = pd.Series([math.inf, 1.0, -math.inf, 2.0], index=list("abcd"))
    base = pd.Series([math.inf, 0.0, -math.inf, 3.0], index=list("abcd"))
    found = verdicts(own, base, "common")
    assert found.to_dict() == {"b": 1.0, "d": 0.0}
    with pytest.raises(JoinError, match="infinite on both"):
        verdicts(own, base)


# ---- two judges ---------------------------------------------------------------------------------


def test_agreement_by_hand():
    """Observed 3/4; by chance (2·2 + 1·2) / 16 = 3/8; kappa = (3/4 - 3/8) / (5/8) = 0.6."""
    both = agreement_of_judges(rewards(1, 1, 0, 0.5), rewards(1, 1, 0, 0))
    assert both.raw.mean == 0.75
    assert both.kappa.mean == pytest.approx((0.75 - 0.375) / 0.625)
    assert both.decided.mean == 1.0
    assert both.table.loc["tie", "loss"] == 1
    assert str(both).startswith("agreement 0.750 [")


def test_agreement_where_it_means_nothing():
    same = agreement_of_judges(rewards(1, 1, 1), rewards(1, 1, 1))
    assert same.raw.mean == 1.0
    assert math.isnan(same.kappa.mean)
    assert "kappa n/a" in str(same)
    with pytest.raises(JoinError, match="different prompts"):
        agreement_of_judges(rewards(1, 1), rewards(1))
    with pytest.raises(JoinError, match=r"one is 2\."):
        agreement_of_judges(rewards(1, 2), rewards(1, 1))
    assert str(agreement_of_judges(rewards(), rewards())) == "n/a (n=0)"
