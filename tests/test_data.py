"""Pairs: one schema from many spellings, stable ids, seeded flips."""

import json

import pytest

from plc_core.data import DataError, flip_labels, mark_oracle_states, pairs_from_rows

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
    {"prompt": "\n\nHuman: Hi\n\nAssistant:", "chosen": "Hello", "rejected": "Go away"},
    {
        "prompt": "\n\nHuman: Hi\n\nAssistant:",
        "chosen": "\n\nHuman: Hi\n\nAssistant: Hello",
        "rejected": [U, B],
    },
    {
        "chosen": "\n\nHuman: Hi\n\nAssistant: Hello",
        "rejected": "\n\nHuman: Hi\n\nAssistant: Go away",
    },
    {"prompt": "Hi", "chosen": A, "rejected": {"from": "model", "value": "Go away"}},
    {
        "prompt": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "chosen": "Hello",
        "rejected": "Go away",
    },
    {
        "prompt": "\n\nHuman: Hi\n\nAssistant: ",
        "answers": [
            {"answer": "Go away", "model": "m", "rank": 2.0},
            {"answer": "Hello", "model": "n", "rank": 1.0},
        ],
    },
    {"prompt": "Hi", "response_a": "Go away", "response_b": "Hello", "votes": ["b", "Tie", "B"]},
    {
        "text": "Hi",
        "completion_a": "Hello",
        "completion_b": "Go away",
        "normal_worker_annotations": [{"overall_pref": "A-is-slightly-better"}],
        "expert_worker_annotations": [{"overall_pref": "A-is-clearly-better"}],
    },
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


def test_a_system_column_is_a_system_turn():
    pair = only(SPELLINGS[0] | {"system": "Be kind."})
    assert pair["prompt"] == [{"role": "system", "content": "Be kind."}, U]


def test_two_turns_of_one_speaker_in_the_dialogue_form_are_one():
    text = "\n\nHuman: Hi\n\nHuman: there\n\nAssistant:"
    pair = only({"prompt": text, "chosen": "a", "rejected": "b"})
    assert pair["prompt"] == [{"role": "user", "content": "Hi\n\nthere"}]


def test_a_prompt_that_is_no_turn_gives_way_to_the_dialogue_of_both_answers():
    pair = only({"prompt": "Ho", "chosen": [U, A], "rejected": [U, B]})
    assert pair["prompt"] == [U]
    assert pair["marks"] == ["prompt-differs"]


def test_a_text_is_never_split_inside_an_answer():
    # A common prefix of two texts is no prompt: "The sky is blu" would be a word cut in two.
    pairs = pairs_from_rows([{"chosen": "Yes sir", "rejected": "Yes madam"}], "test")
    assert pairs.report().count("no-prompt") == 1


def test_a_dialogue_quoted_in_an_answer_stays_in_it():
    answer = "He wrote:\n\nHuman: Hi\n\nAssistant: Ho"
    assert only({"prompt": "Quote him.", "chosen": answer, "rejected": "No"})["chosen"] == answer


def test_scores_source_and_other_columns_are_kept():
    row = SPELLINGS[0] | {"score_chosen": 7, "score_rejected": "6.5", "source": "s", "judge": "x"}
    pair = only(row)
    assert (pair["score_chosen"], pair["score_rejected"], pair["source"]) == (7.0, 6.5, "s")
    assert json.loads(pair["metadata"]) == {"judge": "x"}


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
