"""Whatever is fed to the readers: the package's own errors, and no row lost silently."""

import gzip
import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plc_core.data import DataError, flip_labels, load_pairs, pairs_from_rows
from tests.paths import ROOT

FUZZ = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["", " ", "\0", "\ud800", "\u200b", "\n\nHuman:",
                       "\n\nHuman: a\n\nAssistant: b", "Human: a\n\nAssistant:", "\n\nAssistant: b",
                       "1e999", "a", "b", "tie"])
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["role", "content", "from", "value", "text", "type", "tool_calls", "rank",
                         "answer", "overall_pref"]) | st.text(max_size=3), inner, max_size=4
    ),
    max_leaves=8,
)  # fmt: skip
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "Human", "gpt"]),
     "content": st.text(max_size=8)}
)  # fmt: skip
messages = st.lists(turns, max_size=4)
fields = st.sampled_from(
    ["prompt", "chosen", "rejected", "system", "score_chosen", "score_rejected", "votes", "source",
     "split", "answers", "completion_a", "completion_b", "response_a", "response_b", "text",
     "ratings_chosen", "normal_worker_annotations", "other"]
)  # fmt: skip
wild_rows = st.dictionaries(fields, values | messages, max_size=7)
likely_rows = st.fixed_dictionaries(
    {"chosen": st.text(max_size=4) | messages, "rejected": st.text(max_size=4) | messages},
    optional={"prompt": st.text(max_size=4) | messages, "score_chosen": st.floats() | st.integers(),
              "score_rejected": st.floats(), "votes": st.lists(st.sampled_from(["tie", "chosen"]))},
)  # fmt: skip
rows = wild_rows | likely_rows


def check_nothing_is_lost(pairs, count):
    findings = pairs.findings.to_pylist()
    dropped = [f for f in findings if f["action"] == "drop"]
    assert pairs.rows_read == len(pairs) + len(dropped) == count
    assert len({(f["file"], f["row"]) for f in dropped}) == len(dropped)
    assert sum(len(marks) for marks in pairs.dataset["marks"]) == len(findings) - len(dropped)
    str(pairs.report())
    pairs.report()._repr_html_()


@FUZZ
@given(st.lists(rows | values, max_size=6))
def test_rows_in_are_rows_kept_and_rows_listed(items):
    try:
        pairs = pairs_from_rows(items, "fuzz")
    except DataError as error:
        assert "unknown-vote" in str(error)
        return
    check_nothing_is_lost(pairs, len(items))
    flipped = flip_labels(pairs, 0.5, seed=0)
    assert len(flipped) == len(pairs)


@FUZZ
@given(st.lists(rows | values, max_size=5), st.sampled_from(["jsonl", "json", "json.gz"]))
def test_written_rows_are_read_back_or_refused_in_words(tmp_path, items, kind):
    if kind == "jsonl":
        raw = "\n".join(map(json.dumps, items)).encode()
    else:
        raw = json.dumps(items).encode()
    path = tmp_path / f"pairs.{kind}"
    path.write_bytes(gzip.compress(raw) if kind.endswith("gz") else raw)
    try:
        pairs = load_pairs(path)
    except DataError as error:
        assert str(error)
        return
    check_nothing_is_lost(pairs, len(items))


GOOD = json.dumps([{"prompt": "Hi", "chosen": f"a{n}", "rejected": "b"} for n in range(4)])
LINES = "\n".join(map(json.dumps, json.loads(GOOD)))
TABLE = 'prompt,chosen,rejected\nHi,"a\n1",b\nHi,a2,b\n'


@FUZZ
@given(
    st.sampled_from(["jsonl", "json", "csv", "jsonl.gz", "parquet", "arrow"]),
    st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=3)), max_size=4),
    st.integers(0, 400),
)
def test_a_file_with_damage_anywhere_is_read_or_refused_in_words(tmp_path, kind, changes, cut):
    raw = {"json": GOOD, "csv": TABLE}.get(kind, LINES).encode()
    raw = gzip.compress(raw) if kind == "jsonl.gz" else raw
    for place, new in changes:
        raw = raw[:place] + new + raw[place + len(new) :]
    path = tmp_path / f"pairs.{kind}"
    path.write_bytes(raw[:cut] if cut < 350 else raw)
    try:
        pairs = load_pairs(path)
    except DataError as error:
        assert path.name in str(error)
        return
    check_nothing_is_lost(pairs, pairs.rows_read)


@FUZZ
@given(st.binary(max_size=200), st.sampled_from(["jsonl", "json", "csv", "parquet", "arrow", "x"]))
def test_any_bytes_are_refused_in_words(tmp_path, raw, kind):
    path = tmp_path / f"pairs.{kind}"
    path.write_bytes(raw)
    with pytest.raises(DataError):
        load_pairs(path)


@FUZZ
@given(st.data())
def test_a_real_parquet_file_with_damage_is_read_or_refused(tmp_path, data):
    from datasets import Dataset

    path = tmp_path / "pairs.parquet"
    Dataset.from_list(json.loads(GOOD)).to_parquet(path)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(4, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw))
    try:
        pairs = load_pairs(path)
    except DataError:
        return
    check_nothing_is_lost(pairs, pairs.rows_read)


ZEROED = """
import json, sys
from pathlib import Path
from plc_core.data import DataError, load_pairs
path, raw = Path(sys.argv[1]), Path(sys.argv[1]).read_bytes()
length = int.from_bytes(raw[-8:-4], "little")
for place in range(len(raw) - 8 - length, len(raw)):
    path.write_bytes(raw[:place] + bytes(1) + raw[place + 1 :])
    try:
        load_pairs(path)
    except DataError:
        pass
print("all")
"""
"""In a process of its own: pyarrow aborts one where it hands out contradictory metadata."""


def test_no_byte_of_a_parquet_files_footer_ends_the_process(tmp_path):
    from datasets import Dataset

    path = tmp_path / "pairs.parquet"
    Dataset.from_list(json.loads(GOOD)).to_parquet(path)
    words = [sys.executable, "-c", ZEROED, str(path)]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stdout == "all\n", found.stderr[-2000:]
