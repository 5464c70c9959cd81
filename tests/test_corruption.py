"""Corruption: seeded, nested, the same on every machine, marked, and composable."""

import functools
import itertools

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from plc_core.data import DataError, Pairs, mark_oracle_states, pairs_from_rows
from plc_core.data.corruption import (
    flip_hardest,
    flip_labels,
    inject_ties,
    label_by_annotator,
    simulate_votes,
    tie_pool,
    warm_start,
)
from plc_core.data.corruption.draws import normal, uniform
from plc_core.data.world.prompts import training_prompts
from plc_core.engine.models.load import load_policy
from plc_core.engine.row_sources import WorldSource
from plc_core.progress import Progress


def row(i, gap=1.0, source="s", **more):
    return {
        "prompt": f"p{i}",
        "chosen": f"good {i}",
        "rejected": f"a bad answer {i}",
        "score_chosen": 5.0 + gap,
        "score_rejected": 5.0,
        "source": source,
    } | more


def rows(n, **more):
    """Gaps 0.5, 1, 1.5, 2 in turn; the larger score is chosen."""
    return [row(i, gap=(i % 4 + 1) / 2, **more) for i in range(n)]


@functools.cache
def many(n=200):
    return pairs_from_rows(rows(n), "test")


@functools.cache
def ties(n=100):
    """Exact ties of other prompts."""
    return pairs_from_rows([row(f"tie{i}", gap=0.0, source="pool") for i in range(n)], "test")


def table(pairs):
    return pairs.dataset.to_pandas().set_index("pair_id")


def marked(pairs, name):
    frame = table(pairs)
    return set(frame.index[frame[name]])


def content(pairs):
    """Everything about the pairs but their order."""
    return sorted(map(repr, pairs.dataset))


def turned(pairs):
    """The same pairs in the opposite order."""
    return Pairs(pairs.dataset.select(range(len(pairs) - 1, -1, -1)))


def margins_of(pairs):
    """A margin for each pair: its number in the order of reading."""
    return {pair_id: float(i) for i, pair_id in enumerate(pairs.dataset["pair_id"])}


CORRUPTIONS = {
    "random flips": lambda p: flip_labels(p, 0.3, 1),
    "lowest margins": lambda p: flip_hardest(p, 0.3, margins=margins_of(many())),
    "largest gaps": lambda p: flip_hardest(p, 0.3, "largest-gap"),
    "smallest gaps": lambda p: flip_hardest(p, 0.3, "smallest-gap"),
    "ties": lambda p: inject_ties(p, ties(), 0.3, 1),
    "warm start": lambda p: warm_start(p, 0.3, 1),
    "votes": lambda p: simulate_votes(p, seed=1),
    "one annotator": lambda p: label_by_annotator(p, seed=1),
}
every_corruption = pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS)


@every_corruption
def test_the_order_of_the_pairs_does_not_matter(corrupt):
    assert content(corrupt(turned(many()))) == content(corrupt(many()))


@every_corruption
def test_the_given_pairs_are_left_as_they_were(corrupt):
    before = content(many())
    assert content(corrupt(many())) != before
    assert content(many()) == before


@every_corruption
def test_the_order_is_kept_and_the_number_too(corrupt):
    after = corrupt(many())
    kept = ~table(after)["injected_tie"].to_numpy()
    ids = np.array(many().dataset["pair_id"])
    assert (np.array(after.dataset["pair_id"])[kept] == ids[kept]).all()
    assert len(after) == len(many())


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_no_pairs_and_one_pair_pass(name):
    assert len(CORRUPTIONS[name](Pairs(many().dataset.select([])))) == 0
    assert len(CORRUPTIONS[name](Pairs(many().dataset.select([0])))) == 1


def test_pairs_are_hit_across_batches_as_in_one():
    pairs = pairs_from_rows(rows(2500), "test")  # three batches
    for corrupt in (
        lambda p: flip_hardest(p, 0.2, "largest-gap"),
        lambda p: inject_ties(p, ties(800), 0.3, 1),
        lambda p: warm_start(p, 0.3, 1),
    ):
        assert content(corrupt(turned(pairs))) == content(corrupt(pairs))


def test_draws_are_the_same_on_every_machine():
    assert uniform("flip", 0, "0123456789abcdef") == 0.2993589868284398  # sha256sum / 2^64
    assert normal("vote", 0, 1, "0123456789abcdef") == pytest.approx(-0.5458662633136644, rel=1e-9)
    draws = [normal("test", i) for i in range(4000)]
    assert np.mean(draws) == pytest.approx(0, abs=0.05)
    assert np.std(draws) == pytest.approx(1, abs=0.05)


def numbers(pairs, name):
    """Which prompts of `many` carry a marker, in the order of the pairs."""
    frame = pairs.dataset.to_pandas()
    prompts = [turns[-1]["content"] for turns in frame["prompt"][frame[name]]]
    return [prompt.removeprefix("p").removeprefix("tie") for prompt in prompts]


@pytest.mark.parametrize(
    ("corrupt", "marker", "expected"),
    [
        (lambda p: flip_hardest(p, 0.17, "largest-gap"), "flipped", ["3", "11"]),
        (lambda p: flip_hardest(p, 0.33, "smallest-gap"), "flipped", ["0", "4", "5", "8"]),
        (lambda p: inject_ties(p, ties(), 0.25, 0), "injected_tie", ["64", "68", "18"]),
        (lambda p: warm_start(p, 0.25, 0), "warm", ["5", "7", "8"]),
        (lambda p: label_by_annotator(p, seed=0), "flipped", ["4", "6", "8"]),
    ],
)
def test_which_pairs_are_hit_is_the_same_on_every_machine(corrupt, marker, expected):
    assert numbers(corrupt(many(12)), marker) == expected


# Nested: what a lower rate does, a higher one does too.


@pytest.mark.parametrize(
    ("corrupt", "marker"),
    [
        (lambda rate: flip_labels(many(), rate, 1), "flipped"),
        (lambda rate: flip_hardest(many(), rate, margins=margins_of(many())), "flipped"),
        (lambda rate: flip_hardest(many(), rate, "largest-gap"), "flipped"),
        (lambda rate: flip_hardest(many(), rate, "smallest-gap"), "flipped"),
        (lambda rate: inject_ties(many(), ties(200), rate, 1), "injected_tie"),
        (lambda rate: warm_start(many(), rate, 1), "warm"),
    ],
)
def test_rates_are_nested_from_none_to_all(corrupt, marker):
    hit = [marked(corrupt(rate), marker) for rate in (0, 0.05, 0.1, 0.2, 0.3, 1)]
    assert all(low < high for low, high in itertools.pairwise(hit))
    assert (len(hit[0]), len(hit[-1])) == (0, len(many()))


def test_the_same_tie_replaces_the_same_pair_at_every_rate():
    low, high = (inject_ties(many(), ties(), rate, 1).dataset.to_pandas() for rate in (0.1, 0.3))
    injected = low["injected_tie"]
    assert low[injected].equals(high[injected])


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda seed: flip_labels(many(), 0.3, seed),
        lambda seed: inject_ties(many(), ties(), 0.3, seed),
        lambda seed: warm_start(many(), 0.3, seed),
        lambda seed: simulate_votes(many(), seed=seed),
        lambda seed: label_by_annotator(many(), seed=seed),
    ],
)
def test_another_seed_is_another_draw(corrupt):
    assert content(corrupt(1)) != content(corrupt(2))
    assert content(corrupt(1)) == content(corrupt(1))


# Flips of the hardest pairs.


def test_the_lowest_margins_flip():
    for margins in (margins_of(many()), pd.Series(margins_of(many()))):
        flipped = flip_hardest(many(), 0.05, margins=margins)
        assert numbers(flipped, "flipped") == [str(i) for i in range(10)]


@pytest.mark.parametrize(("by", "gap"), [("largest-gap", 2.0), ("smallest-gap", 0.5)])
def test_the_largest_or_smallest_gaps_flip(by, gap):
    before, after = table(many()), table(flip_hardest(many(), 0.2, by))
    hit = after["flipped"]
    assert hit.sum() == 40
    gaps = after["score_chosen"] - after["score_rejected"]
    assert (gaps[hit] == -gap).all()
    assert (after.loc[hit, "chosen"] == before.loc[hit, "rejected"]).all()
    assert after[~hit].equals(before[~hit])


@pytest.mark.parametrize("by", ["largest-gap", "smallest-gap"])
def test_sources_of_different_scales_give_the_same_share(by):
    wide = [row(f"w{i}", gap=100.0 + i, source="wide") for i in range(100)]
    pairs = pairs_from_rows(rows(300) + wide, "test")
    hit = table(flip_hardest(pairs, 0.1, by)).groupby("source")["flipped"].sum()
    assert hit.to_dict() == {"s": 30, "wide": 10}


@pytest.mark.parametrize("by", ["largest-gap", "smallest-gap"])
def test_small_sources_take_part_too(by):
    # Ten pairs of each of 20 sources: 5 % are half a pair of each.
    pairs = pairs_from_rows([row(i, gap=1.0 + i, source=f"s{i % 20}") for i in range(200)], "test")
    hit = table(flip_hardest(pairs, 0.05, by)).groupby("source")["flipped"].sum()
    assert hit.sum() == 10
    assert hit.max() == 1


@pytest.mark.parametrize(
    ("n", "rate", "count"), [(10, 0.25, 2), (10, 0.35, 4), (10, 0.04, 0), (1, 0.5, 0), (1, 0.6, 1)]
)
def test_the_count_is_rounded_with_halves_to_even(n, rate, count):
    assert len(marked(flip_hardest(many(n), rate, "largest-gap"), "flipped")) == count


def test_a_flip_swaps_answers_and_scores_and_leaves_all_other_pairs():
    before, after = (pairs.dataset.to_pandas() for pairs in (many(), flip_labels(many(), 0.3, 3)))
    flipped = after["flipped"]
    assert flipped.mean() == pytest.approx(0.3, abs=0.1)
    for one, other in (("chosen", "rejected"), ("score_rejected", "score_chosen")):
        assert (after.loc[flipped, one] == before.loc[flipped, other]).all()
    assert after[~flipped].equals(before[~flipped])


def test_the_fingerprint_names_labels_and_order():
    pairs = (many(), turned(many()), flip_labels(many(), 0.5, 1))
    assert len({each.fingerprint for each in pairs}) == 3
    assert pairs_from_rows(rows(200), "test").fingerprint == many().fingerprint


def test_oracle_states_follow_the_scores():
    # One step of 0.25 is still a tie.
    pairs = pairs_from_rows([row(i, gap=i / 4 - 0.25) for i in range(5)], "test")
    assert list(mark_oracle_states(pairs).dataset["oracle_state"]) == [*["tie"] * 3, *["clean"] * 2]
    turned = mark_oracle_states(flip_labels(pairs, 1.0, seed=0))
    assert list(turned.dataset["oracle_state"]) == [*["tie"] * 3, *["flip"] * 2]


def test_a_known_oracle_state_follows_the_flip():
    clean = mark_oracle_states(many())
    flipped = flip_labels(clean, 0.3, 1)
    assert content(flipped) == content(mark_oracle_states(flip_labels(many(), 0.3, 1)))
    states = table(flipped)
    assert (states.loc[states["flipped"], "oracle_state"] == "flip").all()
    assert (states.loc[~states["flipped"], "oracle_state"] == "clean").all()
    assert content(flip_labels(flipped, 0.3, 1)) == content(clean)  # turned back


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rate": 1.5}, "share in .0, 1.; it is 1.5"),
        ({"rate": float("nan")}, "it is nan"),
        ({"rate": "0.1"}, "it is '0.1'"),
        ({"by": "hardest"}, "lowest-margin, largest-gap, smallest-gap; it is 'hardest'"),
        ({}, "needs margins"),
        ({"by": "largest-gap", "margins": {}}, "does not use margins"),
        ({"margins": {}}, "no finite margin for 4 of 4 pairs, for example [0-9a-f]{16}"),
    ],
)
def test_flips_that_cannot_be_are_a_sentence(options, sentence):
    with pytest.raises(DataError, match=sentence):
        flip_hardest(many(4), **{"rate": 0.5} | options)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "high"])
def test_a_margin_that_is_no_number_is_counted_with_an_example(value):
    margins = margins_of(many(4))
    first = next(iter(margins))
    with pytest.raises(DataError, match=f"margin for 1 of 4 pairs, for example {first}"):
        flip_hardest(many(4), 0.5, margins=margins | {first: value})


def test_a_pair_with_two_margins_is_refused():
    margins = pd.concat([pd.Series(margins_of(many(4)))] * 2)
    with pytest.raises(DataError, match="names 4 pairs twice"):
        flip_hardest(many(4), 0.5, margins=margins)


def unscored():
    return pairs_from_rows([row(0), {"prompt": "x", "chosen": "a", "rejected": "b"}], "test")


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda p: flip_hardest(p, 0.5, "largest-gap"),
        lambda p: simulate_votes(p),
        lambda p: label_by_annotator(p),
    ],
)
def test_missing_scores_are_counted_with_an_example(corrupt):
    example = unscored().dataset["pair_id"][1]
    with pytest.raises(DataError, match=f"1 of 2 pairs have no score gap.*{example}"):
        corrupt(unscored())


# Exact ties.


def test_a_tie_takes_the_place_of_a_pair_and_is_marked():
    pairs = pairs_from_rows(rows(200, split="validation"), "test")
    after = table(inject_ties(pairs, ties(), 0.3, 1))
    injected = after[after["injected_tie"]]
    assert len(injected) == 60
    assert (injected["score_chosen"] == injected["score_rejected"]).all()
    assert set(injected["oracle_state"]) == {"tie"}
    assert not injected["flipped"].any()
    assert set(injected["source"]) == {"pool"}
    assert set(injected["split"]) == {"validation"}
    untouched = after[~after["injected_tie"]]
    assert untouched.equals(table(pairs).loc[untouched.index])


def test_ties_are_turned_at_random():
    injected = table(inject_ties(many(), ties(), 0.5, 1))
    injected = injected[injected["injected_tie"]]
    as_in_pool = injected["chosen"].str.startswith("good").sum()
    assert 30 < as_in_pool < 70


def test_no_pair_is_there_twice():
    pairs = pairs_from_rows(rows(100) + [row(f"tie{i}", gap=0.0) for i in range(50)], "test")
    after = inject_ties(pairs, ties(), 0.3, 1)
    assert len(set(after.dataset["pair_id"])) == len(after) == 150
    again = inject_ties(inject_ties(many(), ties(), 0.2, 1), ties(), 0.2, 2)
    assert len(set(again.dataset["pair_id"])) == 200
    assert len(marked(again, "injected_tie")) == 80


def test_a_pool_that_is_too_small_is_a_sentence():
    with pytest.raises(DataError, match=r"60 ties are to be injected .*has\s+only 20"):
        inject_ties(many(), ties(20), 0.3, 1)
    with pytest.raises(DataError, match="only 0 that are not among the pairs already"):
        inject_ties(ties(20), ties(20), 0.5, 1)


def test_a_pool_of_unequal_scores_is_refused_with_the_ids():
    unequal = many(3).dataset["pair_id"]
    with pytest.raises(DataError, match=f"3 of 3 pairs of the pool.*{', '.join(unequal)}"):
        inject_ties(many(), many(3), 0.1, 1)
    with pytest.raises(DataError, match="1 of 1 pairs of the pool"):
        inject_ties(many(), Pairs(unscored().dataset.select([1])), 0.1, 1)


def response(text, score, prompt="p"):
    return {"prompt": prompt, "response": text, "score": score}


RESPONSES = [
    response("a", 1.0), response("b", 1.0), response("c", 1.0),  # one pair, one left over
    response("d", 2.0), response("e", 2.0), response("e", 2.0),  # e counts once
    response("f", 3.0), response("g", 3.0), response("g", 2.5),  # two scores: no pair,
    response("l", 3.0), response("l", 3.5),  # whichever of them is the smaller one
    response("a", 1.0, "q"), response("b", 1.0, "r"),  # different prompts do not meet
    response("h", 4.0), response("i", 4.0), response("j", 4.0), response("k", 4.0),  # two pairs
]  # fmt: skip


def test_responses_of_one_prompt_and_score_become_disjoint_pairs():
    pool = tie_pool(RESPONSES).dataset.to_pandas()
    texts = [frozenset(pair) for pair in zip(pool["chosen"], pool["rejected"], strict=True)]
    assert sorted(pool["score_chosen"]) == [1.0, 2.0, 4.0, 4.0]
    assert (pool["score_chosen"] == pool["score_rejected"]).all()
    assert {"d", "e"} in texts
    assert frozenset.union(*(t for t in texts if t <= set("hijk"))) == set("hijk")
    assert not any(t & set("fgl") for t in texts)
    assert content(tie_pool(RESPONSES[::-1])) == content(tie_pool(RESPONSES))
    assert content(tie_pool(Dataset.from_list(RESPONSES))) == content(tie_pool(RESPONSES))


def test_a_pool_may_be_empty():
    assert len(tie_pool([])) == 0
    assert len(tie_pool([response("a", 1), response("b", 2)])) == 0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"response": "a", "score": 1}, "Row 2 of the responses has no prompt"),
        (response(None, 1), "Row 2 of the responses has no response"),
        (response("a", None), "has no score"),
        (response("a", float("nan")), "score is a finite number, not nan"),
        (response("a", "1"), "score is a finite number, not '1'"),
        (response(["a"], 1), "response is a text, not list"),
    ],
)
def test_a_response_that_cannot_be_matched_is_a_sentence(wrong, sentence):
    with pytest.raises(DataError, match=sentence):
        tie_pool([response("b", 1.0), wrong])


def test_ties_of_the_world_are_of_other_prompts_and_kept_on_disk():
    model, tokenizer = load_policy("world")
    pool = WorldSource((model, tokenizer)).ties(40, 0, Progress(), prompts=12)
    ties_of_the_world = table(pool)
    assert len(pool) > 5
    assert (ties_of_the_world["score_chosen"] == ties_of_the_world["score_rejected"]).all()
    prompts = {turns[-1]["content"] for turns in ties_of_the_world["prompt"]}
    first, then = (training_prompts(count, 0) for count in (40, 52))
    assert prompts <= {prompt.text for prompt in then} - {prompt.text for prompt in first}
    again = WorldSource((model, None)).ties(40, 0, Progress(), prompts=12)  # nothing is sampled
    assert content(again) == content(pool)


# Warm starts.


def test_warm_pairs_are_left_alone():
    warm = warm_start(many(), 0.3, 1)
    ids = marked(warm, "warm")
    assert len(ids) == 60
    before = table(warm)[table(warm)["warm"]]
    for corrupt in (
        lambda p: flip_labels(p, 1.0, 1),
        lambda p: flip_hardest(p, 0.7, "largest-gap"),
        lambda p: flip_hardest(p, 0.7, margins={i: m for i, m in margins_of(p).items()
                                                if i not in ids}),
        lambda p: inject_ties(p, ties(140), 0.7, 1),
        lambda p: label_by_annotator(p, seed=1, noise=9),
    ):  # fmt: skip
        after = table(corrupt(warm))
        assert after[after["warm"]].equals(before)
        assert len(after[~after["warm"]]) == 140


def test_corrupted_pairs_do_not_become_warm():
    corrupted = inject_ties(flip_labels(many(), 0.3, 1), ties(), 0.2, 1)
    hit = marked(corrupted, "flipped") | marked(corrupted, "injected_tie")
    left = 1 - len(hit) / len(many())
    assert marked(warm_start(corrupted, left, 1), "warm") == set(table(corrupted).index) - hit
    with pytest.raises(DataError, match=f"are 200 warm pairs, but only {200 - len(hit)} pairs"):
        warm_start(corrupted, 1.0, 1)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), None, True])
@pytest.mark.parametrize(
    "corrupt",
    [
        lambda share: warm_start(many(4), share, 0),
        lambda share: flip_labels(many(4), share, 0),
        lambda share: inject_ties(many(4), ties(), share, 0),
    ],
)
def test_a_share_is_a_number_from_0_to_1(corrupt, share):
    with pytest.raises(DataError, match=r"in \[0, 1\]; it is"):
        corrupt(share)


# Composition.


def test_a_warm_start_random_flips_and_ties_compose():
    warm = warm_start(many(), 0.2, 1)
    flips_first = inject_ties(flip_labels(warm, 0.3, 2), ties(), 0.3, 3)
    ties_first = flip_labels(inject_ties(warm, ties(), 0.3, 3), 0.3, 2)
    assert content(flips_first) == content(ties_first)
    after = table(flips_first)
    assert after[["warm", "injected_tie"]].sum().to_list() == [40, 60]
    assert (after[["warm", "flipped", "injected_tie"]].sum(axis=1) <= 1).all()
    # The flips are those of `flip_labels` alone, where they still stand.
    alone = marked(flip_labels(many(), 0.3, 2), "flipped")
    assert marked(flips_first, "flipped") == alone & set(after.index[~after["warm"]])


def test_flips_of_two_seeds_are_those_that_only_one_of_them_makes():
    both = flip_labels(flip_labels(many(), 0.3, 1), 0.3, 2)
    one, other = (marked(flip_labels(many(), 0.3, seed), "flipped") for seed in (1, 2))
    assert marked(both, "flipped") == one ^ other


@pytest.mark.parametrize("name", ["random flips", "lowest margins", "largest gaps"])
def test_the_same_flips_twice_are_none(name):
    flip = CORRUPTIONS[name]
    assert content(flip(flip(many()))) == content(many())


def test_which_pairs_are_hardest_does_not_depend_on_the_labels_now():
    def flip(pairs):
        return flip_hardest(pairs, 0.2, "smallest-gap")

    assert content(flip(flip_labels(many(), 0.3, 1))) == content(flip_labels(flip(many()), 0.3, 1))


# Annotators.


def test_votes_are_relative_to_the_observed_label():
    first = simulate_votes(flip_labels(many(), 0.5, 1), seed=2)
    after = flip_labels(simulate_votes(many(), seed=2), 0.5, 1)
    assert content(first) == content(after)


def test_more_annotators_extend_the_votes_of_fewer():
    two, four = (table(simulate_votes(many(), n, seed=1))["votes"] for n in (2, 4))
    assert all(list(a) == list(b)[:2] for a, b in zip(two, four, strict=True))
    assert set(map(len, four)) == {4}


def test_without_noise_and_bias_an_annotator_votes_for_the_larger_score():
    votes = table(
        simulate_votes(many(8), seed=1, noise=0, threshold=0, length_bias=0)
    )["votes"]  # fmt: skip
    assert {vote for v in votes for vote in v} == {"chosen"}


def test_a_gap_below_the_threshold_is_a_tie():
    # The thresholds lie between 0.6 and 1.5 of the parameter.
    votes = table(simulate_votes(many(8), seed=1, noise=0, threshold=4, length_bias=0))["votes"]
    assert {vote for v in votes for vote in v} == {"tie"}


def test_annotators_differ_in_what_a_word_is_worth():
    long = [row(i, gap=0.0, chosen=f"{i} " + "word " * 400) for i in range(4)]
    votes = table(simulate_votes(pairs_from_rows(long, "test"), 8, seed=0, noise=0))["votes"]
    assert {tuple(v) for v in votes} == {tuple(votes.iloc[0])}  # one opinion on all of them
    assert {"chosen", "rejected"} <= set(votes.iloc[0])


def test_errors_of_one_annotator_are_frequent_where_the_gap_is_small():
    pairs = pairs_from_rows([row(i, gap=0.25) for i in range(1500)], "test")
    wide = pairs_from_rows([row(i, gap=3.0) for i in range(1500)], "test")
    small, large = (table(label_by_annotator(p, seed=1))["flipped"].mean() for p in (pairs, wide))
    assert small > 0.35
    assert large < 0.1


def test_the_annotators_label_does_not_depend_on_the_one_before():
    def observed(pairs):
        return table(label_by_annotator(pairs, seed=3))

    assert observed(flip_labels(many(), 0.5, 1)).equals(observed(many()))


def test_the_annotator_labels_as_it_votes_and_ties_at_random():
    votes = table(simulate_votes(many(), 2, seed=3))["votes"]
    for annotator in (0, 1):
        flipped = table(label_by_annotator(many(), seed=3, annotator=annotator))["flipped"]
        own = votes.str[annotator]
        assert flipped[own == "rejected"].all()
        assert not flipped[own == "chosen"].any()
        assert 0 < flipped[own == "tie"].mean() < 1


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: simulate_votes(many(4), 0), "at least one annotator"),
        (lambda: simulate_votes(many(4), noise=-1), "noise is a size.*it is -1"),
        (lambda: simulate_votes(many(4), threshold=float("nan")), "threshold is a size"),
        (lambda: label_by_annotator(many(4), annotator=-1), "numbered from 0"),
    ],
)
def test_annotators_that_cannot_be_are_a_sentence(ask, sentence):
    with pytest.raises(DataError, match=sentence):
        ask()
