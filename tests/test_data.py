"""Pairs: one schema from many spellings, stable ids, nothing lost silently, seeded corruption."""

import gzip
import json

import pytest

from plc_core.data import DataError, flip_labels, load_pairs, mark_oracle_states, pairs_from_rows
from tests.paths import shared_file

U = {"role": "user", "content": "Hi"}
A = {"role": "assistant", "content": "Hello"}
B = {"role": "assistant", "content": "Go away"}


def only(row):
    pairs = pairs_from_rows([row], "test")
    assert len(pairs) == 1, pairs.report()
    return pairs.dataset[0]


SPELLINGS = [
    {"prompt": "Hi", "chosen": "Hello", "rejected": "Go away"},
    {"prompt": [U], "chosen": "Hello", "rejected": "Go away"},
    {"prompt": "Hi", "chosen": [U, A], "rejected": [U, B]},
    {"prompt": "Hi", "chosen": [A], "rejected": "Go away"},
    {"prompt": [U], "chosen": [U, A], "rejected": [U, B]},
    {"chosen": [U, A], "rejected": [U, B]},
    {
        "prompt": [{"from": "human", "value": "Hi"}],
        "chosen": [{"from": "gpt", "value": "Hello"}],
        "rejected": "Go away",
    },
    {"prompt": [{"role": "Human", "content": "Hi"}], "chosen": "Hello", "rejected": "Go away"},
]


@pytest.mark.parametrize("row", SPELLINGS)
def test_every_spelling_of_a_pair_is_the_same_pair(row):
    pair = only(row)
    assert pair["prompt"] == [U]
    assert (pair["chosen"], pair["rejected"]) == ("Hello", "Go away")
    assert pair["pair_id"] == only(SPELLINGS[0])["pair_id"]


def test_a_prompt_given_as_text_names_the_last_turn_of_a_longer_conversation():
    system = {"role": "system", "content": "Be kind."}
    pair = only({"prompt": "Hi", "chosen": [system, U, A], "rejected": [system, U, B]})
    assert pair["prompt"] == [system, U]


def test_scores_source_and_other_columns_are_kept():
    row = SPELLINGS[0] | {"score_chosen": 7, "score_rejected": "6.5", "source": "s", "judge": "x"}
    pair = only(row)
    assert (pair["score_chosen"], pair["score_rejected"], pair["source"]) == (7.0, 6.5, "s")
    assert json.loads(pair["metadata"]) == {"judge": "x"}


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ({"prompt": "Hi", "chosen": "a", "rejected": "a"}, "identical"),
        ({"chosen": [U, A], "rejected": [U, A]}, "identical"),
        ({"prompt": "Hi", "chosen": "", "rejected": "x"}, "empty"),
        ({"prompt": "Hi", "chosen": " \n", "rejected": "x"}, "empty"),
        ({"prompt": "Hi", "chosen": "x", "rejected": None}, "missing"),
        ({"prompt": "Hi", "chosen": "x"}, "missing"),
        ({"prompt": "Hi", "chosen": [U], "rejected": [U, B]}, "no answer"),
        ({"prompt": "Hi", "chosen": [], "rejected": "x"}, "no answer"),
        ({"prompt": "", "chosen": "x", "rejected": "y"}, "no prompt"),
        ({"chosen": "x", "rejected": "y"}, "no prompt"),
        ({"prompt": [U, A], "chosen": "x", "rejected": "y"}, "no prompt"),
        ({"prompt": "Ho", "chosen": [U, A], "rejected": [U, B]}, "two prompts"),
        ({"chosen": [U, A], "rejected": [{"role": "user", "content": "?"}, B]}, "two prompts"),
        ({"prompt": "Hi", "chosen": 3, "rejected": "x"}, "wrong type"),
        ({"prompt": "Hi", "chosen": [{"role": "tool", "content": "x"}], "rejected": "x"},
         "wrong type"),
        ({"prompt": "Hi", "chosen": "x", "rejected": "y", "score_chosen": "high"}, "wrong type"),
        ({"prompt": "Hi", "chosen": "\ud800", "rejected": "y"}, "not Unicode"),
    ],
)  # fmt: skip
def test_a_row_that_is_no_pair_is_listed_with_its_rule(row, rule):
    pairs = pairs_from_rows([SPELLINGS[0], row], "test")
    assert len(pairs) == 1
    assert [(d.row, d.rule) for d in pairs.dropped] == [(2, rule)]
    assert f"{rule}: 1, the first is row 2" in pairs.report()


def test_a_duplicate_is_left_out_and_its_reversal_is_another_pair():
    row = SPELLINGS[0]
    reversal = row | {"chosen": row["rejected"], "rejected": row["chosen"]}
    pairs = pairs_from_rows([row, row, reversal], "test")
    assert len(pairs) == 2
    assert pairs.dropped[0].reason == "the same pair as row 1"


def many(n=2000):
    rows = [
        {"prompt": f"p{i}", "chosen": "a", "rejected": "b", "score_chosen": i % 5 / 4,
         "score_rejected": 0.25}
        for i in range(n)
    ]  # fmt: skip
    return pairs_from_rows(rows, "test")


def test_flips_are_seeded_nested_marked_and_keep_the_id():
    pairs = many()
    low, high = flip_labels(pairs, 0.1, seed=3), flip_labels(pairs, 0.3, seed=3)
    assert low.dataset["pair_id"] == pairs.dataset["pair_id"]
    flipped = [set(_flipped(x)) for x in (low, high)]
    assert flipped[0] < flipped[1]
    assert len(flipped[1]) / len(pairs) == pytest.approx(0.3, abs=0.03)
    assert flipped[1] == set(_flipped(flip_labels(pairs, 0.3, seed=3)))
    assert flipped[1] != set(_flipped(flip_labels(pairs, 0.3, seed=4)))
    before, after = pairs.dataset.to_pandas(), high.dataset.to_pandas()
    rows = after["flipped"]
    assert (after.loc[rows, "chosen"] == before.loc[rows, "rejected"]).all()
    assert (after.loc[rows, "score_chosen"] == before.loc[rows, "score_rejected"]).all()
    assert after[~rows].equals(before[~rows])


def _flipped(pairs):
    frame = pairs.dataset.to_pandas()
    return frame.loc[frame["flipped"], "pair_id"]


def test_which_pairs_flip_is_the_same_on_every_machine():
    pairs = flip_labels(many(12), 0.5, seed=0)
    assert [int(f) for f in pairs.dataset["flipped"]] == [1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0]


def test_flipping_does_not_depend_on_the_order_and_the_fingerprint_does():
    pairs = many(50)
    turned = pairs_from_rows(list(reversed(list(pairs.dataset))), "test")
    assert set(_flipped(flip_labels(pairs, 0.5, 1))) == set(_flipped(flip_labels(turned, 0.5, 1)))
    assert pairs.fingerprint == many(50).fingerprint
    assert len({p.fingerprint for p in (pairs, turned, flip_labels(pairs, 0.5, 1))}) == 3


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_flip_rate_is_a_probability(rate):
    with pytest.raises(DataError, match="probability"):
        flip_labels(many(4), rate, seed=0)


def test_oracle_states_follow_the_scores():
    # Gold gaps by row: -0.25, 0, 0.25, 0.5, 0.75; one step of 0.25 is still a tie.
    pairs = mark_oracle_states(many(5))
    assert list(pairs.dataset["oracle_state"]) == ["tie", "tie", "tie", "clean", "clean"]
    turned = mark_oracle_states(flip_labels(many(5), 1.0, seed=0))
    assert list(turned.dataset["oracle_state"]) == ["tie", "tie", "tie", "flip", "flip"]


@pytest.mark.parametrize("form", ["plain", "gzip", "gzip under another name", "bom"])
def test_files_are_read_by_their_content(tmp_path, form):
    raw = "\n".join(json.dumps(row) for row in SPELLINGS[:1] * 2).encode()
    path = tmp_path / ("pairs.jsonl.gz" if form == "gzip" else "pairs.jsonl")
    path.write_bytes(
        gzip.compress(raw) if "gzip" in form else (b"\xef\xbb\xbf" + raw if form == "bom" else raw)
    )
    pairs = load_pairs(path)
    assert len(pairs) == 1
    assert len(pairs.dropped) == 1
    assert pairs.dataset[0]["source"] == path.name


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "has no rows"),
        (b'{"prompt": "x", "chosen": "y"', "row 1, character 30: no JSON object"),
        (b'{"prompt":"x","chosen":"y","rejected":"z"}\n{"a', "row 2, character"),
        (b"[1]", "row 1: expected a JSON object, found a list"),
        (b'{"prompt": "\xff"}', "row 1, byte 12: not UTF-8"),
        (b'{"prompt": "x", "chosen": "y", "reject": "z"}', "no field 'rejected'.*is it 'reject'"),
        (b'{"instruction": "x", "chosen": "y", "rejected": "z"}', "No row of .*no prompt"),
        (b"\x1f\x8b\x08garbage", "damaged"),
    ],
)
def test_a_broken_file_is_a_sentence_with_the_place(tmp_path, content, sentence):
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"(?s){sentence}") as error:
        load_pairs(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_a_sentence(tmp_path):
    with pytest.raises(DataError, match="no file of pairs"):
        load_pairs(tmp_path / "nothing.jsonl")


def test_the_real_sample_is_read_whole():
    path = shared_file("data/scored_pairs.jsonl.gz")
    pairs = load_pairs(path)
    with gzip.open(path) as lines:
        rows = sum(1 for _ in lines)
    assert len(pairs) + len(pairs.dropped) == rows == 4032
    assert {d.rule for d in pairs.dropped} == {"duplicate"}
    assert len(set(pairs.dataset["pair_id"])) == len(pairs)
