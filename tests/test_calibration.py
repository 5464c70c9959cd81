"""Forecasts against events, and the routing weights against the true states, on small tables."""

import math

import numpy as np
import pandas as pd
import pytest

from notebooks import figures
from notebooks.studies import true_states
from notebooks.studies.true_states import against_truth
from plc_core.analysis.calibration import calibrate


def test_without_a_known_flip_there_is_nothing_to_compare_with():
    own = calibrate(np.array([0.2, 0.4, 0.1]), np.zeros(3, bool))
    assert str(own) == "nothing to compare it with: of 3 pairs none, or all, are known to be so"


def test_brier_nll_and_ece_by_hand() -> None:
    # Two pairs at .2, none true; two at .8, one true.
    found = calibrate([0.2, 0.2, 0.8, 0.8], [False, False, True, False])
    assert found.brier == pytest.approx((0.04 + 0.04 + 0.04 + 0.64) / 4)
    assert found.nll == pytest.approx(-(2 * math.log(0.8) + math.log(0.8) + math.log(0.2)) / 4)
    assert found.ece == pytest.approx(0.5 * 0.2 + 0.5 * 0.3)
    assert (found.base_rate, found.brier_base) == (0.25, 0.1875)
    assert found.nll_base == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
    filled = found.table[found.table["n"] > 0]
    assert filled["share"].tolist() == [0, 0.5]
    assert (filled["low"] <= filled["share"]).all()
    assert (filled["high"] >= filled["share"]).all()


def test_a_forecast_of_the_base_rate_scores_as_the_base_rate() -> None:
    found = calibrate([0.25] * 8, [True, True] + [False] * 6)
    assert (found.brier, found.nll) == pytest.approx((found.brier_base, found.nll_base))
    assert found.ece == pytest.approx(0)


def test_bins_end_at_the_highest_forecast_that_can_be() -> None:
    found = calibrate([0.01, 0.06, 0.1], [False, False, True], bins=2, top=0.1)
    assert found.table["bin"].tolist() == pytest.approx([0.025, 0.075])
    assert found.table["n"].tolist() == [1, 2]


@pytest.mark.parametrize("forecast", [[], [math.nan, math.nan]])
def test_no_forecast_is_no_number(forecast: list[float]) -> None:
    found = calibrate(forecast, [True] * len(forecast))
    assert (found.n, found.missing) == (0, len(forecast))
    assert math.isnan(found.brier)
    assert found.sentence("q", "flipped") == "q cannot be compared with what is flipped: n=0."


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match=r"these lie in \[0.5, 1.5\]"):
        calibrate([0.5, 1.5], [True, False])
    with pytest.raises(ValueError, match="2 forecasts cannot be of 1 pairs"):
        calibrate([0.5, 0.5], [True])


def test_the_sentence_says_whether_the_base_rate_is_beaten() -> None:
    rng = np.random.default_rng(0)
    chance = rng.random(4000)
    true = rng.random(4000) < chance
    assert "both scores beat a constant forecast" in calibrate(chance, true).sentence("p", "so")
    worse = calibrate(1 - chance, true).sentence("p", "so")
    assert "by its Brier score and its log loss it is worth less" in worse


STATES = ["clean", "clean", "flip", "tie"]


def frames(**columns: object) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Four pairs with one visit each: two clean, one flipped, one tied."""
    visits = pd.DataFrame(
        {
            "pair_id": list("abcd"),
            "step": [0, 0, 1, 1],
            "margin": [2.0, 0.1, -1.0, 0.0],
            "q_clean": [0.95, 0.70, 0.10, 0.60],
            "q_flip": [0.03, 0.18, 0.85, 0.25],
            "q_tie": [0.02, 0.12, 0.05, 0.15],
        }
        | columns
    )
    pairs = pd.DataFrame({"pair_id": list("abcd"), "oracle_state": STATES, "flipped": False})
    return visits, pairs


def test_each_weight_is_a_forecast_of_its_state() -> None:
    found = true_states.state_calibration(*frames())
    assert list(found) == ["q_clean", "q_flip", "q_tie"]
    assert [c.base_rate for c in found.values()] == [0.5, 0.25, 0.25]
    assert found["q_flip"].brier == pytest.approx((0.03**2 + 0.18**2 + 0.15**2 + 0.25**2) / 4)
    assert found["q_tie"].table["bin"].iloc[-1] == pytest.approx(0.15 * 0.95)


def test_the_calibrated_flip_posterior_is_measured_where_there_is_one() -> None:
    found = true_states.state_calibration(*frames(p_flip=[0.1, 0.1, 0.9, 0.5]))
    assert found["p_flip"].brier == pytest.approx((0.01 + 0.01 + 0.01 + 0.25) / 4)
    assert "p_flip" not in true_states.state_calibration(*frames(p_flip=math.nan))


def test_p_flip_is_that_of_the_first_visit() -> None:
    visits, pairs = frames(p_flip=[0.1, 0.2, 0.9, 0.5])
    again = visits.assign(step=9, p_flip=0.0, q_flip=0.5)
    table = true_states.truth_of(pd.concat([visits, again]), pairs)
    assert table["p_flip"].tolist() == [0.1, 0.2, 0.9, 0.5]
    assert table["q_flip"].tolist() == [0.5] * 4


def test_three_states_together_by_hand() -> None:
    scores = true_states.three_state_scores(*frames())
    rows = [(0.05, 0.03, 0.02), (0.3, 0.18, 0.12), (0.1, 0.15, 0.05), (0.6, 0.25, 0.85)]
    assert scores["brier"] == pytest.approx(np.mean([sum(x * x for x in r) for r in rows]))
    assert scores["nll"] == pytest.approx(-np.mean(np.log([0.95, 0.70, 0.85, 0.15])))
    assert scores["brier_base"] == pytest.approx(1 - 0.25 - 2 * 0.0625)


def test_states_are_read_relative_to_their_ceilings() -> None:
    # b is .74 of clean's ceiling and .8 of tie's, so a tie by this reading and never by argmax.
    table = true_states.relative_states(*frames()).set_index(["true", "found"])["n"]
    assert table["clean", "clean"] == 1
    assert table["clean", "tie"] == 1
    assert table["flip", "flip"] == 1
    assert table["tie", "tie"] == 1
    assert table.sum() == 4


def test_a_state_without_pairs_has_no_share() -> None:
    visits, pairs = frames()
    table = true_states.relative_states(visits, pairs.assign(oracle_state="clean"))
    assert table.query("true == 'flip'")["share"].isna().all()
    assert table.query("true == 'clean'")["share"].sum() == pytest.approx(1)
    assert figures.state_confusion({"x": table}).data[0].text[1][1] == "–"


def test_ranking_leaves_ties_out_of_flips_and_stands_beside_the_margin() -> None:
    table = true_states.state_ranking(*frames()).set_index("score")
    assert table.loc["q_flip", ["auroc", "n_positive", "n_negative"]].tolist() == [1, 1, 2]
    assert table.loc["-margin", "auroc"] == 1
    assert table.loc["q_tie", "auroc"] == 1
    assert table.loc["-|margin|", "auroc"] == 1
    visits, pairs = frames()
    flips, tied = pairs["oracle_state"] == "flip", pairs["oracle_state"] == "tie"
    pairs["rejected_tokens"] = 10
    pairs["chosen_tokens"] = pairs["rejected_tokens"] + np.where(tied, 0, np.where(flips, -3, 3))
    table = true_states.state_ranking(visits, pairs).set_index("score")
    assert table.loc[["against length", "-|length difference|"], "auroc"].tolist() == [1, 1]
    found = against_truth({"PLC-DPO": (visits, pairs)}).table
    assert found.loc[("PLC-DPO", "q_tie"), "AUROC of lengths alone"].startswith("1.000")


def test_without_the_truth_there_is_a_sentence_and_no_number() -> None:
    visits, pairs = frames()
    found = against_truth({"PLC-DPO": (visits, pairs.assign(oracle_state=None))})
    assert found.calibrations == {}
    assert "embedded world only" in found.sentences[0]
    assert "No pair" in figures.reliability(found.calibrations).layout.annotations[0].text
    with pytest.raises(ValueError, match="embedded world only"):
        true_states.truth_of(visits, pairs.drop(columns="oracle_state"))


def test_the_truths_table_is_the_calibrations() -> None:
    found = against_truth({"PLC-DPO": frames(), "DPO (shadow)": frames()})
    row = found.table.loc[("PLC-DPO", "q_flip")]
    own = found.calibrations["PLC-DPO"]["q_flip"]
    assert row["Brier (base rate's)"] == f"{own.brier:.3f} ({own.brier_base:.3f})"
    assert row["ECE"] == f"{own.ece:.3f}"
    assert len(found.table) == 8
    assert len(figures.reliability(found.calibrations).data) > 8
