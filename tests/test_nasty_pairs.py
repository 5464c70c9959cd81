"""Every nasty pair of tests/data/nasty_pairs.jsonl, and what becomes of it."""

import json

import pytest

from plc_core.data import DataError, load_pairs
from tests.paths import DATA

# The rule that leaves a row out, or the marks of the pair that is kept.
VERDICTS = {
    "chosen equal to rejected": "identical",
    "one answer a prefix of the other": ["prefix"],
    "both empty": "empty-answer",
    "chosen empty": "empty-answer",
    "rejected null": "missing-answer",
    "rejected missing": "missing-answer",
    "white space only": "blank-answer",
    "zero-width characters only": "blank-answer",
    "a pair to repeat": ["contradiction"],
    "a duplicate": "duplicate",
    "a duplicate with the label swapped": ["contradiction"],
    "a duplicate but for white space": ["near-duplicate", "contradiction"],
    "cycle: a over b": ["cycle"],
    "cycle: b over c": ["cycle"],
    "cycle: c over a": ["cycle"],
    "beside the cycle": [],
    "one prompt in train": ["split-leak"],
    "one prompt in test": ["split-leak"],
    "1 word against 8,000": [],
    "only emoji": [],
    "right-to-left text with zero-width characters": [],
    "a NUL character": [],
    "a lone surrogate": "not-unicode",
    "CRLF and LF twins": ["nearly-identical"],
    "composed and decomposed twins": ["nearly-identical"],
    "a system prompt": [],
    "a system prompt in one answer only": "two-prompts",
    "a six-turn dialogue": ["inferred-prompt"],
    "dialogues that part before the last turn": "two-prompts",
    "a dialogue that starts with the assistant": [],
    "a dialogue that ends with the user": "no-answer",
    "roles human and gpt": [],
    "the dialogue form of HH-RLHF": ["inferred-prompt"],
    "a tool-call turn": "unsupported-turn",
    "an image in the prompt": "unsupported-turn",
    "text parts": [],
    "a code fence": [],
    "dollar signs": [],
    "HTML with a script tag": [],
    "a score tie": ["equal-scores"],
    "score_chosen below score_rejected": ["inverted-scores"],
    "a score that is a word": "wrong-type",
    "a 10 that was a 1": ["ten-was-one", "ratings-disagree"],
    "a number for an answer": "wrong-type",
    "no prompt": "no-prompt",
    "an empty prompt": "no-prompt",
    "one who votes for c": "unknown-vote",
    "level votes": ["tied-votes"],
    "not an object": "wrong-type",
}


@pytest.fixture(scope="module")
def rows():
    lines = (DATA / "nasty_pairs.jsonl").read_text(encoding="utf-8").strip().split("\n")
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def pairs():
    # An unknown vote stops the reading unless it is told to go on.
    return load_pairs(DATA / "nasty_pairs.jsonl", actions={"unknown-vote": "drop"})


def case(row):
    return row["case"] if isinstance(row, dict) else row[0]


def test_every_row_has_its_verdict(rows, pairs):
    dropped = {f["row"]: f["rule"] for f in pairs.findings.to_pylist() if f["action"] == "drop"}
    kept = {
        json.loads(metadata)["case"]: marks
        for metadata, marks in zip(pairs.dataset["metadata"], pairs.dataset["marks"], strict=True)
    }
    found = {case(row): dropped.get(n) or kept[case(row)] for n, row in enumerate(rows, start=1)}
    assert found == VERDICTS


def test_no_row_is_lost(rows, pairs):
    left_out = sum(f["action"] == "drop" for f in pairs.findings.to_pylist())
    assert len(rows) == pairs.rows_read == len(pairs) + left_out == len(VERDICTS)


def test_texts_are_kept_to_the_character(rows, pairs):
    written = {case(row): row for row in rows}
    for pair in pairs.dataset:
        row = written[json.loads(pair["metadata"])["case"]]
        for side in ("chosen", "rejected"):
            if isinstance(row.get(side), str) and not row[side].startswith("\n\nHuman:"):
                assert pair[side] == row[side]


def test_an_unknown_vote_is_an_error_unless_told_otherwise():
    with pytest.raises(DataError, match=r"Row 47 of nasty_pairs.jsonl, unknown-vote: .*'c'"):
        load_pairs(DATA / "nasty_pairs.jsonl")


def test_the_long_answer_and_the_direction_marks_are_whole(pairs):
    by_case = {json.loads(p["metadata"])["case"]: p for p in pairs.dataset}
    assert len(by_case["1 word against 8,000"]["rejected"].split()) == 8000
    assert "\u202e" in by_case["right-to-left text with zero-width characters"]["rejected"]
    assert "\0" in by_case["a NUL character"]["chosen"]
