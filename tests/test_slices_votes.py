"""Weak-gap slices and groups of agreement: rules spelled out, and counted again on real data."""

import collections
import gzip
import json
import math

import pytest

from plc_core.data import DataError, Pairs, load_pairs, pairs_from_rows
from plc_core.data.slices import gap_slices
from plc_core.data.votes import VOTES, group_counts, parse_vote, vote_group, vote_groups
from tests.paths import shared_file


def pairs_of(gaps, source="s"):
    """One pair a gap; None has no scores, a negative gap a chosen answer with the lower score."""
    return pairs_from_rows(rows_of(gaps, source), "test")


def rows_of(gaps, source="s"):
    return [
        {"prompt": f"{source}{i}", "chosen": "a", "rejected": "b", "source": source}
        | ({} if gap is None else {"score_chosen": 5.0 + gap, "score_rejected": 5.0})
        for i, gap in enumerate(gaps)
    ]


def slices_of(pairs, share=0.2):
    """The slice of each pair, "-" for none, and the one row of the summary."""
    table, summary = gap_slices(pairs, share)
    return table["slice"].fillna("-").to_list(), summary.iloc[0].to_dict()


# Weak-gap slices.


def test_the_slices_are_the_bottom_and_the_top_of_the_absolute_gap():
    slices, summary = slices_of(pairs_of([3, -1, 9, 2, -8, 4, 5, 6, 7, 0.5]))
    assert slices == ["-", "low", "high", "-", "high", "-", "-", "-", "-", "low"]
    assert summary == {
        "source": "s", "scored": 10, "unscored": 0, "per_slice": 2,
        "low_edge": 1, "low_edge_shared": 1, "low_edge_taken": 1,
        "high_edge": 8, "high_edge_shared": 1, "high_edge_taken": 1,
        "note": None,
    }  # fmt: skip


def test_the_table_has_a_row_a_pair_in_their_order():
    pairs = pairs_of([1, -2, None, 4])
    table = gap_slices(pairs).table
    assert list(table) == ["pair_id", "gap", "slice"]
    assert table["pair_id"].to_list() == pairs.dataset["pair_id"]
    assert table["gap"].fillna(-1).to_list() == [1, 2, -1, 4]


@pytest.mark.parametrize(
    ("n", "share", "size"), [(14, 0.2, 2), (15, 0.2, 3), (100, 0.29, 29), (4, 0.5, 2), (5, 0.5, 2)]
)
def test_a_slice_has_the_share_of_the_pairs_rounded_down(n, share, size):
    slices, _ = slices_of(pairs_of(range(n)), share)
    assert (slices.count("low"), slices.count("high")) == (size, size)


def test_at_the_edge_equal_gaps_are_taken_by_the_hash_of_the_id():
    pairs = pairs_of([0, 1, 1, 1, 1, 2, 3, 3, 3, 3])  # two a slice: 0 and one of four 1s, two 3s
    slices, summary = slices_of(pairs)
    assert slices[0] == "low"
    assert slices[1:5].count("low") == 1
    assert slices[6:].count("high") == 2
    assert (summary["low_edge"], summary["high_edge"]) == (1, 3)
    assert (summary["low_edge_shared"], summary["low_edge_taken"]) == (4, 1)
    assert (summary["high_edge_shared"], summary["high_edge_taken"]) == (4, 2)
    turned = Pairs(pairs.dataset.select(range(9, -1, -1)))
    assert slices_of(turned)[0] == slices[::-1]


def test_which_pairs_are_taken_at_the_edge_is_the_same_on_every_machine():
    slices, _ = slices_of(pairs_of([1] * 9 + [2] * 9), share=0.2)
    assert "".join(s[0] for s in slices) == "l---l--l---hh---h-"


def test_each_source_is_ranked_by_itself():
    pairs = pairs_from_rows(rows_of(range(1, 11), "x") + rows_of(range(100, 2100, 100), "y"), "t")
    table, summary = gap_slices(pairs)
    assert summary["source"].to_list() == ["x", "y"]
    assert summary["per_slice"].to_list() == [2, 4]
    assert table["gap"][table["slice"] == "low"].to_list() == [1, 2, 100, 200, 300, 400]


def test_pairs_without_scores_are_counted_and_in_no_slice():
    slices, summary = slices_of(pairs_of([None, 1, 2, 3, None, 4, 5]))
    assert slices == ["-", "low", "-", "-", "-", "-", "high"]
    assert (summary["scored"], summary["unscored"]) == (5, 2)


@pytest.mark.parametrize(
    ("gaps", "note"),
    [
        ([1, 2, 3, 4], "4 scored pairs are too few for slices of 0.2."),
        ([None], "0 scored pairs are too few for slices of 0.2."),
        ([1] * 10, "All 10 scored pairs have the gap 1: no slices."),
        ([0, 0, 0, 0, 0], "All 5 scored pairs have the gap 0: no slices."),
    ],
)
def test_a_source_without_slices_has_a_sentence(gaps, note):
    slices, summary = slices_of(pairs_of(gaps))
    assert set(slices) == {"-"}
    assert (summary["per_slice"], summary["note"]) == (0, note)
    assert math.isnan(summary["low_edge"])


def test_where_both_slices_reach_one_gap_no_pair_is_in_both():
    slices, summary = slices_of(pairs_of([0] + [1] * 18 + [2]))
    assert (slices.count("low"), slices.count("high")) == (4, 4)
    assert (slices[0], slices[-1]) == ("low", "high")
    assert summary["note"] == "Both slices reach the gap 1: at it they do not differ."
    assert (summary["low_edge_taken"], summary["high_edge_taken"]) == (3, 3)


def test_no_pairs_have_no_slices():
    table, summary = gap_slices(pairs_of([]))
    assert (len(table), len(summary)) == (0, 0)


@pytest.mark.parametrize("share", [0, -0.2, 0.6, float("nan")])
def test_a_slice_is_at_most_one_half(share):
    with pytest.raises(DataError, match="share must lie in"):
        gap_slices(pairs_of([1, 2]), share)


def test_slices_of_the_real_sample_against_an_independent_count():
    pairs = load_pairs(shared_file("data/scored_pairs.jsonl.gz"))
    table, summary = gap_slices(pairs)
    gaps = collections.defaultdict(list)
    for pair in pairs.dataset:
        gaps[pair["source"]].append(abs(pair["score_chosen"] - pair["score_rejected"]))
    assert summary["source"].to_list() == sorted(gaps)
    sliced = table.assign(source=pairs.dataset["source"])
    for row in summary.to_dict("records"):
        ranked = sorted(gaps[row["source"]])
        size = len(ranked) * 20 // 100
        own = sliced[sliced["source"] == row["source"]]
        assert sorted(own["gap"][own["slice"] == "low"]) == ranked[:size]
        assert sorted(own["gap"][own["slice"] == "high"]) == ranked[-size:]
        assert row["low_edge_shared"] == ranked.count(ranked[size - 1])
        assert row["high_edge_shared"] == ranked.count(ranked[-size])


# Groups of agreement.

C, R, T = VOTES
GROUPS = {  # a letter a vote; of four, as in MultiPref, every case there is
    "unanimous": "CCCC RRRR CCC CC CCCCC",
    # Ties level with a direction, as in CCTT, are no majority of ties.
    "divergent": "CCCR CCRR CRRR CCCT CCRT CRRT RRRT CCTT RRTT CRT CR CT",
    "tie-majority": "CRTT CTTT RTTT TTTT CTT TT CCRTTT",
}


@pytest.mark.parametrize("group", GROUPS)
def test_the_group_of_some_votes(group):
    for case in GROUPS[group].split():
        votes = [{"C": C, "R": R, "T": T}[letter] for letter in case]
        assert vote_group(votes) == vote_group(votes[::-1]) == group, case


@pytest.mark.parametrize("votes", [[C], [T], [], None])
def test_one_vote_or_none_cannot_agree(votes):
    assert vote_group(votes) is None


def voted(*votes):
    rows = [
        {"prompt": f"p{i}", "chosen": "a", "rejected": "b", "votes": v} for i, v in enumerate(votes)
    ]
    return pairs_from_rows(rows, "test")


def test_the_groups_of_pairs_are_a_table_and_counted():
    pairs = voted([C, C], [C, R, T, T], [C, R], [T], [R, R, R])
    groups = vote_groups(pairs)
    assert groups["pair_id"].to_list() == pairs.dataset["pair_id"]
    assert groups["votes"].to_list() == [2, 4, 2, 1, 3]
    expected = ["unanimous", "tie-majority", "divergent", "none", "unanimous"]
    assert groups["group"].fillna("none").to_list() == expected
    assert group_counts(groups) == {
        "unanimous": 2, "divergent": 1, "tie-majority": 1, "no group": 1,
    }  # fmt: skip


def test_pairs_without_votes_and_no_pairs_at_all_are_in_no_group():
    assert group_counts(vote_groups(pairs_of([1, 2])))["no group"] == 2
    assert group_counts(vote_groups(pairs_of([])))["no group"] == 0
    assert list(vote_groups(pairs_of([]))) == ["pair_id", "votes", "group"]


def test_an_unknown_vote_is_quoted_with_its_pair():
    pairs = voted([C, C]).map(
        lambda batch, _: batch.set_column(
            batch.schema.get_field_index("votes"),
            batch.schema.field("votes"),
            [[["chosen", "maybe"]]],
        )
    )
    with pytest.raises(DataError, match=rf"Pair {pairs.dataset['pair_id'][0]}: .*'maybe'"):
        vote_groups(pairs)
    for vote in ("Chosen", "a", "", None):
        with pytest.raises(DataError, match=f"The vote {vote!r} is not known"):
            vote_group([C, vote])


SPELLINGS = {
    "a": ["A-is-clearly-better", "A-is-slightly-better", "a"],
    "b": ["B-is-slightly-better", "B-is-clearly-better", "B", " b-IS-clearly-better\n"],
    "tie": ["Tie", "TIE"],
}


@pytest.mark.parametrize("side", SPELLINGS)
def test_the_spellings_of_a_vote(side):
    assert {parse_vote(text) for text in SPELLINGS[side]} == {side}


@pytest.mark.parametrize(
    "text", ["", "A-is-better", "c", "tied", "model_a", "A is better", None, 1]
)
def test_another_spelling_is_refused_and_quoted(text):
    with pytest.raises(DataError, match=f"The vote {text!r} is not known"):
        parse_vote(text)


def test_groups_of_the_real_votes_against_an_independent_count():
    path = shared_file("data/human_votes.jsonl.gz")
    pairs = load_pairs(path)
    dropped = {f["row"] for f in pairs.findings.to_pylist() if f["action"] == "drop"}
    counts = collections.Counter()
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for number, row in enumerate(map(json.loads, lines), 1):
            if number in dropped:  # identical answers, and the same pair a second time
                continue
            a, b, tie = (row["votes"].count(side) for side in ("a", "b", "tie"))
            if a + b + tie < 2:
                counts["no group"] += 1
            elif 0 in (a, b) and not tie:
                counts["unanimous"] += 1
            elif tie > a and tie > b:
                counts["tie-majority"] += 1
            else:
                counts["divergent"] += 1
    assert group_counts(vote_groups(pairs)) == dict(counts)
    assert counts.total() == len(pairs)
