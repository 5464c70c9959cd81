"""What validation finds, checked against counts made another way, and what callers can change."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from plc_core.data import RULES, DataError, Options, load_pairs, pairs_from_rows
from plc_core.data.contamination import EvaluationPrompts
from plc_core.data.cross_pair_checks import splitmix64
from plc_core.data.cycles import on_longer_cycle
from tests.paths import shared_file


def row(chosen="a", rejected="b", prompt="Question?", **more):
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected} | more


def read(rows, **options):
    return pairs_from_rows(rows, "test", options=Options(**options))


def rows_of(pairs, rule):
    return pairs.report().of_rule(rule)["row"].tolist()


def test_every_rule_has_a_meaning_and_an_action():
    for name, rule in RULES.items():
        assert rule.meaning
        assert rule.action in ("keep", "drop", "error")
        assert rule.can_keep or rule.action != "keep", name


@pytest.mark.parametrize("action", ["keep", "drop", "error"])
def test_the_caller_decides_what_a_rule_does(action):
    rows = [row(), row("a", "ab"), row("c", "d")]
    if action == "error":
        with pytest.raises(DataError, match=r"Row 2, prefix: chosen is the beginning"):
            read(rows, actions={"prefix": "error"})
        return
    pairs = read(rows, actions={"prefix": action})
    assert len(pairs) == (3 if action == "keep" else 2)
    assert rows_of(pairs, "prefix") == [2]
    assert pairs.report().table().iloc[0]["action"] == action


@pytest.mark.parametrize(
    ("actions", "sentence"),
    [
        ({"prefixes": "drop"}, "no rule 'prefixes'"),
        ({"prefix": "delete"}, "can keep, drop, error, not 'delete'"),
        ({"empty-answer": "keep"}, "can drop, error, not 'keep'"),
    ],
)
def test_a_wrong_action_is_a_sentence(actions, sentence):
    with pytest.raises(DataError, match=sentence):
        read([row()], actions=actions)


def test_a_row_is_left_out_under_one_rule_only():
    # The third is a duplicate and a prefix; it counts as a duplicate alone.
    pairs = read([row(), row("a", "ab"), row("a", "ab")])
    assert rows_of(pairs, "duplicate") == [3]
    assert rows_of(pairs, "prefix") == [2]


def test_kept_duplicates_are_marked_and_have_ids_of_their_own():
    pairs = read([row(), row(), row()], actions={"duplicate": "keep"})
    assert [list(m) for m in pairs.dataset["marks"]] == [[], ["duplicate"], ["duplicate"]]
    ids = pairs.dataset["pair_id"][:]
    assert len(set(ids)) == 3
    assert ids[0] == read([row()]).dataset["pair_id"][0]
    assert pairs.report().ids("duplicate") == ids[1:]


def votes(*given, a="a", b="b"):
    return {"prompt": "Question?", "response_a": a, "response_b": b, "votes": list(given)}


def test_other_votes_on_the_same_answers_are_not_thrown_away():
    pairs = read([votes("a"), votes("a"), votes("a", "tie"), votes("b", a="b", b="a")])
    assert rows_of(pairs, "duplicate") == [2, 4]  # the last one says the same, mirrored
    assert rows_of(pairs, "other-votes") == [3]
    assert [list(v) for v in pairs.dataset["votes"]] == [["chosen"], ["chosen", "tie"]]


def test_level_votes_prefer_nothing_whichever_way_round_they_were_put():
    ties = [votes("tie"), votes("tie", a="b", b="a"), votes("a", "b", a="c", b="a")]
    pairs = read([*ties, votes("a"), votes("a", a="b", b="c"), votes("a", a="c", b="a")])
    assert rows_of(pairs, "contradiction") == []
    assert rows_of(pairs, "cycle") == [4, 5, 6]
    assert rows_of(pairs, "duplicate") == [2]


def test_other_votes_are_seen_whichever_way_round_a_tie_was_put():
    for prompt in "abcdef":
        pairs = read([votes("a") | {"prompt": prompt}, votes("tie") | {"prompt": prompt}])
        assert rows_of(pairs, "other-votes") == [2]
    pairs = read([votes("a"), votes("tie", b="c"), votes("tie", a="c")])
    assert rows_of(pairs, "other-votes") == []  # one answer alone is the same


def test_contradictions_name_the_other_row():
    pairs = read([row(), row("b", "a"), row("b", "a", prompt="Another?"), row("b ", "a")])
    assert rows_of(pairs, "contradiction") == [1, 2, 4]
    reasons = pairs.report().of_rule("contradiction")["reason"].tolist()
    assert reasons[0] == "row 2 prefers the other answer"
    assert reasons[1] == "row 1 prefers the other answer"


def test_cycles_of_three_and_four_but_not_two():
    edges = ["ab", "bc", "ca", "cd", "xy", "yx", "pq", "qr", "rs", "sp", "pr"]
    pairs = read([row(*edge) for edge in edges])
    marked = {edges[n - 1] for n in rows_of(pairs, "cycle")}
    assert marked == {"ab", "bc", "ca", "pq", "qr", "rs", "sp", "pr"}
    reasons = dict(pairs.report().of_rule("cycle")[["row", "reason"]].to_numpy())
    assert reasons[1] == "on a cycle of preferences among 3 answers"
    assert reasons[8] == "on a cycle of preferences among 4 answers"


def test_a_contradiction_lies_on_a_cycle_only_if_a_longer_way_leads_back():
    pairs = read([row(*edge) for edge in ("ab", "ba", "bc", "ca")])
    assert rows_of(pairs, "cycle") == [1, 3, 4]


@pytest.mark.parametrize("seed", range(20))
def test_edges_on_longer_cycles_agree_with_a_search_from_each(seed):
    rng = random.Random(seed)
    edges = [tuple(rng.sample(range(9), 2)) for _ in range(rng.randrange(8, 16))]
    edges += [edge[::-1] for edge in edges if rng.random() < 0.6]
    reached = {(a, b): leads(edges, a, b) for a in range(9) for b in range(9)}
    edges = [edge for edge in edges if reached[edge[::-1]]]
    expected = [leads([e for e in edges if e != (b, a)], b, a) for a, b in edges]
    start, end = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    assert on_longer_cycle(start, end).tolist() == expected


def leads(edges, one, other):
    seen, waiting = set(), [one]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [end for start, end in edges if start == node]
    return other in seen


@pytest.mark.parametrize("shape", ["line", "star"])
def test_many_contradictions_under_one_prompt_take_time_in_proportion(shape):
    """A search from each edge would take a day: 300,000 edges that each are there both ways."""
    end = np.arange(1, 150_000)
    start = end - 1 if shape == "line" else np.zeros_like(end)
    there, back = np.concatenate([start, end]), np.concatenate([end, start])
    assert not on_longer_cycle(there, back).any()
    ring = np.append(there, end[-1]), np.append(back, 0)  # from the last answer to the first
    assert on_longer_cycle(*ring).sum() == (150_000 if shape == "line" else 0)


@pytest.mark.parametrize("seed", range(8))
def test_cross_checks_agree_with_brute_force(seed):
    rng = random.Random(seed)
    rows = [
        row(*rng.sample("abcde", 2), prompt=rng.choice("PQ"), split=rng.choice(["train", "test"]))
        for _ in range(14)
    ]
    pairs = read(rows)
    edges = [(r["prompt"], r["chosen"], r["rejected"]) for r in rows]
    placed = [(*edge, r["split"]) for edge, r in zip(edges, rows, strict=True)]
    duplicates = [n for n, edge in enumerate(placed) if edge in placed[:n]]
    alive = [n for n in range(len(rows)) if n not in duplicates]
    known = {edges[n] for n in alive}
    opposite = [n for n in alive if (edges[n][0], edges[n][2], edges[n][1]) in known]

    def on_cycle(prompt, chosen, rejected):
        others = [x for x in "abcde" if x not in (chosen, rejected)]
        return any(
            all((prompt, *step) in known for step in itertools.pairwise((rejected, *way, chosen)))
            for length in (1, 2, 3)
            for way in itertools.permutations(others, length)
        )

    cycles = [n for n in alive if on_cycle(*edges[n])]
    splits = {p: {rows[n]["split"] for n in alive if rows[n]["prompt"] == p} for p in "PQ"}
    leaks = [n for n in alive if len(splits[rows[n]["prompt"]]) > 1]
    for rule, expected in (
        ("duplicate", duplicates), ("contradiction", opposite), ("cycle", cycles),
        ("split-leak", leaks),
    ):  # fmt: skip
        assert rows_of(pairs, rule) == [n + 1 for n in expected], rule


def test_near_duplicates_are_those_the_eye_cannot_tell_apart():
    pairs = read([row("one\ntwo"), row("one\r\ntwo"), row(" one\ntwo"), row("one two")])
    assert rows_of(pairs, "near-duplicate") == [2, 3]


def test_only_the_split_that_was_asked_for_stays_and_leaks_are_seen_before():
    rows = [row(split="train"), row("c", "d", split="test"), row("e", "f", "Other?", split="test")]
    pairs = read(rows, split="train")
    assert len(pairs) == 1
    assert rows_of(pairs, "other-split") == [2, 3]
    assert list(pairs.dataset["marks"]) == [["split-leak"]]
    assert "row 2 has it in 'test'" in str(pairs.report())


def test_a_sample_is_the_same_for_everybody_and_grows_by_its_size():
    rows = [row(str(n), "b") for n in range(300)]
    small, large = (set(read(rows, sample=n).dataset["pair_id"]) for n in (50, 100))
    assert len(small) == 50
    assert small < large
    assert small == set(read(rows[::-1], sample=50).dataset["pair_id"])
    assert small != set(read(rows, sample=50, seed=1).dataset["pair_id"])
    assert read(rows, sample=50).report().count("not-sampled") == 250


def test_the_sampling_hash_is_the_same_on_every_machine():
    # The first values of splitmix64 for the state 0 are published with the algorithm.
    assert splitmix64(np.array([0], np.uint64), 0)[0] == 0xE220A8397B1DCDAF


def test_columns_that_are_swapped_wholesale_are_said_in_words():
    rows = [row(f"worse {n}", "better", score_chosen=1, score_rejected=9) for n in range(64)]
    assert "chosen and rejected look swapped" in str(read(rows).report())


# ---- contamination -------------------------------------------------------------------------------

QUESTION = "If it takes five machines five minutes to make five widgets, how long does it take?"


@pytest.mark.parametrize(
    ("prompt", "rule"),
    [
        (QUESTION, "contaminated-exact"),
        (QUESTION.upper().replace(",", " -"), "contaminated-exact"),
        ("Answer quickly! " + QUESTION + " Thanks.", "contaminated-ngram"),
        ("If it takes five machines five minutes to make a cake, who eats it?", None),
        ("Hello there", "contaminated-exact"),
        ("Hello there, my friend", None),  # too short for runs of words
    ],
)
def test_contamination_is_found_by_words(prompt, rule):
    index = EvaluationPrompts([QUESTION, "Hello there!"])
    pairs = read([row(prompt=prompt)], evaluation=index)
    assert list(pairs.dataset["marks"][0]) == ([rule] if rule else [])


def test_any_turn_of_the_user_can_be_contaminated():
    turns = [
        {"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Five minutes."},
        {"role": "user", "content": "Why?"},
    ]  # fmt: skip
    pairs = read([row(prompt=turns)], evaluation=EvaluationPrompts([QUESTION]))
    assert pairs.report().ids("contaminated-exact") == list(pairs.dataset["pair_id"])


# ---- the report ----------------------------------------------------------------------------------


def test_the_report_counts_names_and_shows():
    rows = [row(), row(), row("a", "ab"), {"prompt": "x"}, row("", "x"), row("c<b>", "c")]
    report = read(rows).report()
    assert (report.rows_read, report.rows_kept) == (6, 3)
    table = report.table().set_index("rule")
    assert table["rows"].to_dict() == {
        "missing-answer": 1, "empty-answer": 1, "prefix": 2, "duplicate": 1
    }  # fmt: skip
    assert table.loc["prefix", "share"] == pytest.approx(2 / 6)
    assert "6 rows read: 3 pairs kept, 3 rows left out" in str(report)
    assert "duplicate: 1 left out, the first is row 2: the same pair as row 1" in str(report)
    assert len(report.ids("prefix")) == 2
    assert report.ids("missing-answer") == []


def test_the_report_of_nothing_is_a_report():
    report = read([]).report()
    assert report.table().empty
    assert "0 rows read" in str(report)
    assert report._repr_html_()


def test_user_text_in_the_report_is_never_markup():
    report = read([row("x", "y", score_chosen="<script>")]).report()
    assert "<script>" not in report._repr_html_()


def test_the_counts_on_real_pairs_equal_an_independent_count():
    import gzip
    import json

    path = shared_file("data/scored_pairs.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    seen, expected = set(), Counter()
    for r in rows:
        chosen, rejected = r["chosen"], r["rejected"]
        if not chosen.strip("\u200b \n") or not rejected.strip("\u200b \n"):
            expected["blank-answer"] += 1
            continue
        key = (r["prompt"], chosen, rejected)
        if key in seen:
            expected["duplicate"] += 1
            continue
        seen.add(key)
        expected["equal-scores"] += r["score_chosen"] == r["score_rejected"]
        expected["inverted-scores"] += r["score_chosen"] < r["score_rejected"]
        expected["prefix"] += chosen.startswith(rejected) or rejected.startswith(chosen)
    report = load_pairs(path).report()
    for rule in ("blank-answer", "duplicate", "equal-scores", "inverted-scores", "prefix"):
        assert report.count(rule) == expected[rule], rule
    assert report.rows_read == len(rows) == 4032
    assert report.rows_kept == len(rows) - expected["blank-answer"] - expected["duplicate"]
