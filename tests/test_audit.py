"""The audit's tables on small tables whose answers can be read off."""

import math

import numpy as np
import pandas as pd
import pytest

from plc_core.analysis import audit, figures
from plc_core.analysis.routing import tie_metrics


def visits_of(q_flip: list[float], **columns: object) -> pd.DataFrame:
    """One visit for each of the pairs a, b, c …"""
    flip = np.asarray(q_flip, dtype=float)
    table = {
        "pair_id": list("abcdefghij"[: len(flip)]),
        "step": 0,
        "margin": -flip,
        "q_clean": 0.9 - flip,
        "q_flip": flip,
        "q_tie": 0.1,
    }
    return pd.DataFrame(table | columns)


def pairs_of(states: list[str | None], **columns: object) -> pd.DataFrame:
    """Pairs a, b, c … with these oracle states."""
    table = {
        "pair_id": list("abcdefghij"[: len(states)]),
        "oracle_state": pd.Series(states, dtype="object"),
        "flipped": [state == "flip" for state in states],
    }
    return pd.DataFrame(table | columns)


def test_the_last_visit_counts_and_no_pair_is_lost() -> None:
    visits = pd.DataFrame({"pair_id": ["b", "a", "a"], "step": [0, 7, 3], "z": [1.0, 2.0, 3.0]})
    joined = audit.join_last_visits(visits, pairs_of(["clean", "flip", None]))
    assert joined["pair_id"].tolist() == ["a", "b", "c"]
    assert joined["z"].tolist()[:2] == [2.0, 1.0]
    assert math.isnan(joined["z"][2])


def test_visits_of_another_run_are_refused() -> None:
    with pytest.raises(ValueError, match="2 pairs that are not in pairs, the first 'b'"):
        audit.join_last_visits(visits_of([0.1, 0.2, 0.3]), pairs_of(["clean"]))


def test_repeated_pairs_and_missing_columns_are_refused() -> None:
    twice = pairs_of(["clean", "flip"]).assign(pair_id="a")
    with pytest.raises(ValueError, match="1 repeated ids, the first 'a'"):
        audit.join_last_visits(visits_of([0.1]), twice)
    with pytest.raises(ValueError, match=r"visits lacks the column\(s\) q_tie"):
        audit.routing_by_state(visits_of([0.1]).drop(columns="q_tie"), pairs_of(["clean"]))


def test_routing_by_state_has_a_row_for_every_group_and_weight() -> None:
    table = audit.routing_by_state(
        visits_of([0.1, 0.3, 0.8]), pairs_of(["clean", "clean", "flip"])
    ).set_index(["group", "state"])
    assert table.loc[("clean", "flip"), "mean"] == pytest.approx(0.2)
    assert table.loc[("flip", "flip"), "mean"] == pytest.approx(0.8)
    assert table.loc[("tie", "flip"), "n"] == 0
    assert math.isnan(table.loc[("tie", "flip"), "mean"])


def test_without_an_oracle_the_marker_groups_the_pairs() -> None:
    pairs = pairs_of([None, None]).assign(flipped=[False, True])
    table = audit.routing_by_state(visits_of([0.2, 0.6]), pairs)
    assert table["group"].unique().tolist() == ["unmarked", "marked"]
    assert audit.flip_ranking(visits_of([0.2, 0.6]), pairs)["truth"][0] == "corruption marker"


def test_flip_ranking_leaves_ties_out() -> None:
    visits = visits_of([0.1, 0.2, 0.7, 0.9])
    table = audit.flip_ranking(visits, pairs_of(["clean", "clean", "flip", "tie"]))
    assert table["score"].tolist() == ["q_flip", "-margin"]
    assert table["auroc"].tolist() == [1, 1]
    assert table[["n_flip", "n_clean"]].to_numpy().tolist() == [[1, 2], [1, 2]]


def test_lengths_alone_are_ranked_beside_the_weights() -> None:
    """Where the shorter answer was chosen in the flipped pairs alone, no policy is needed."""
    lengths = {"chosen_tokens": [9, 8, 3, 5], "rejected_tokens": [4, 8, 6, 1]}
    pairs = pairs_of(["clean", "clean", "flip", "tie"]).assign(**lengths)
    table = audit.flip_ranking(visits_of([0.1, 0.8, 0.7, 0.9]), pairs).set_index("score")
    assert table.loc["against length", "auroc"] == 1
    assert table.loc["q_flip", "auroc"] == 0.5
    shorter = pairs.assign(**dict(zip(lengths, [*lengths.values()][::-1], strict=True)))
    table = audit.flip_ranking(visits_of([0.1, 0.8, 0.7, 0.9]), shorter).set_index("score")
    assert table.loc["against length", "auroc"] == 1  # where shorter answers are preferred
    unknown = pairs.assign(chosen_tokens=None)
    assert audit.longer(unknown) is None and len(audit.flip_ranking(visits_of([0.1]), unknown)) == 2


def test_flip_calibration_by_hand() -> None:
    visits = visits_of([0.05, 0.05, 0.95, 1.0])
    result = audit.flip_calibration(visits, pairs_of(["clean", "flip", "flip", "tie"]))
    assert result.table["n"].tolist() == [2] + [0] * 8 + [2]
    assert result.table["share"].tolist()[::9] == [0.5, 0.5]
    assert result.base_rate == 0.5
    assert result.brier == pytest.approx((0.05**2 + 0.95**2 + 0.05**2 + 1) / 4)
    assert result.brier_base == 0.25
    assert result.nll_base == pytest.approx(math.log(2))
    assert result.ece == pytest.approx(0.5 * 0.45 + 0.5 * 0.475)


def test_nothing_is_calibrated_where_no_label_is_known_to_be_reversed() -> None:
    """One's own data: an unmarked pair may be reversed too, so there is nothing to compare with."""
    visits = visits_of([0.2, 0.9]).assign(p_flip=[0.1, 0.8])
    pairs = pairs_of(["clean", "flip"]).drop(columns="oracle_state").assign(flipped=[False, False])
    assert not audit.knows_flips(pairs)
    for found in (audit.flip_calibration, audit.posterior_calibration):
        assert found(visits, pairs).n == 0
        assert found(visits, pairs.assign(flipped=[False, True])).n == 2
    figure = figures.flip_reliability(audit.flip_calibration(visits, pairs))
    assert not figure.data
    assert "Not drawn" in figure.layout.annotations[0].text


def scored(gaps: list[float], **columns: object) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pairs with these score gaps, q_tie falling with their place."""
    n = len(gaps)
    visits = visits_of([0.1] * n, q_tie=np.linspace(0.1, 0.01, n), margin=np.arange(n, dtype=float))
    pairs = pairs_of(["clean"] * n, score_chosen=gaps, score_rejected=0.0, **columns)
    return visits, pairs


def test_tie_selectivity_compares_the_ends_of_the_gap() -> None:
    result = audit.tie_selectivity(*scored([0.0, 0.5, 1, 2, 3, 4, 5, 6, 7, -9]))
    bottom, top = (row for _, row in result.slices.iterrows())
    assert (bottom["n"], bottom["gap_high"], top["gap_low"]) == (2, 0.5, 7)
    assert bottom["q_tie_mean"] > top["q_tie_mean"]
    assert bottom["abs_margin_median"] == 0.5
    assert result.tests.set_index("measure").loc["q_tie", "auroc"] == 1
    assert result.lengths.empty


def test_tie_selectivity_has_the_lengths_as_its_control() -> None:
    gaps = [0.0, 0.5, 1, 2, 3, 4, 5, 6, 7, -9]
    visits, pairs = scored(gaps, chosen_tokens=[5, 6, *[4] * 6, 2, 30], rejected_tokens=5)
    result = audit.tie_selectivity(visits, pairs)
    assert result.tests["measure"].tolist() == ["q_tie", "abs_margin"]  # Holm is over these
    (control,) = result.lengths.to_dict("records")
    assert (control["measure"], control["auroc"]) == ("length_difference", 0)
    (said,) = tie_metrics.lengths_sentences(result)
    assert said.startswith("Control without a policy (all): ")
    assert "the gap in length" in said
    shown = tie_metrics.weak_gaps_shown({"DPO": result})
    assert shown["AUROC of bottom, the gap in length"].iloc[0].startswith("0.000")
    unknown = audit.tie_selectivity(visits, pairs.assign(rejected_tokens=None))
    assert tie_metrics.lengths_sentences(unknown)[0].endswith("does not have the lengths.")


def test_equal_gaps_at_the_edge_are_split_by_a_hash_of_the_id_and_counted() -> None:
    visits, pairs = scored([1.0] * 5 + [2.0] * 5)
    result = audit.tie_selectivity(visits, pairs)
    assert result.slices["cut_ties"].tolist() == [3, 3]
    shuffled = audit.tie_selectivity(visits[::-1], pairs.sample(frac=1, random_state=1))
    pd.testing.assert_frame_equal(result.slices, shuffled.slices)


def test_tie_selectivity_without_scores_or_with_few_pairs() -> None:
    visits, pairs = scored([1.0, 2.0])
    few = audit.tie_selectivity(visits, pairs)
    assert few.slices["n"].tolist() == [0, 0]
    assert few.tests["text"].tolist() == ["n/a (n=0)"] * 2
    none = audit.tie_selectivity(visits, pairs.drop(columns=["score_chosen", "score_rejected"]))
    assert (none.scored, none.unscored) == (0, 2)
    with pytest.raises(ValueError, match="share must lie in"):
        audit.tie_selectivity(visits, pairs, share=0.6)


def test_tie_ceiling_is_the_largest_tie_weight() -> None:
    assert audit.tie_ceiling(visits_of([0.1, 0.2], q_tie=[0.03, 0.13])) == 0.13
    assert math.isnan(audit.tie_ceiling(visits_of([])))
