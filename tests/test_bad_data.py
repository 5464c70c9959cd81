"""Bad input of every kind that was once let through: files, rows, arguments, the cache, time."""

import gzip
import json
import subprocess
import sys
import time

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

import plc_core
from plc_core.data import DataError, Options, load_pairs, pairs_from_rows
from plc_core.data.dialogues import plain_text
from plc_core.data.pairs import scratch_file
from plc_core.storage.paths import cache_dir
from tests.test_rows import ROW, A, B, U, only, read
from tests.test_sources import ROWS, TEXT, written, zstd

# ---- rows ----------------------------------------------------------------------------------------


def test_null_is_a_row_and_a_blank_line_is_none(tmp_path):
    lines = written(tmp_path / "a.jsonl", f"null\n\n{json.dumps(ROW)}\nnull\n")
    array = written(tmp_path / "a.json", json.dumps([None, ROW, None]))
    for path, rows in ((lines, [1, 4]), (array, [1, 3])):
        pairs = load_pairs(path)
        assert (pairs.rows_read, len(pairs)) == (3, 1)
        assert pairs.report().of_rule("wrong-type")["row"].tolist() == rows


def test_names_that_a_table_fills_with_null_are_not_there(tmp_path):
    ho = {"from": "human", "value": "Ho"}
    rows = [
        {"prompt": None, "chosen": [U, A], "rejected": [U, B]},
        {"prompt": None, "chosen": [ho, {"from": "gpt", "value": "Hey"}],
         "rejected": [ho, {"from": "gpt", "value": "No"}]},
    ]  # fmt: skip
    keys = ("role", "content", "from", "value")
    full = [
        {k: [dict.fromkeys(keys) | m for m in v] if v else v for k, v in r.items()} for r in rows
    ]
    Dataset.from_list(full).to_parquet(tmp_path / "mixed.parquet")
    assert load_pairs(tmp_path / "mixed.parquet").dataset["chosen"][:] == ["Hello", "Hey"]


def test_headlines_speak_of_the_pairs_that_were_kept():
    tie = ROW | {"score_chosen": 1, "score_rejected": 1}
    dropped = pairs_from_rows([tie, ROW], "test", options=Options(actions={"equal-scores": "drop"}))
    assert "Ties" not in str(dropped.report())


def arrow(path, table):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_compressed_tables_are_read(tmp_path, compress, kind):
    if kind == "parquet":
        Dataset.from_list(ROWS).to_parquet(tmp_path / "plain")
    else:
        table = pa.Table.from_pylist(ROWS)
        arrow(tmp_path / "plain", table)
    suffix = "gz" if compress is gzip.compress else "zst"
    raw = compress((tmp_path / "plain").read_bytes())
    assert len(load_pairs(written(tmp_path / f"pairs.{kind}.{suffix}", raw))) == 5


def test_tables_with_semicolons_marks_and_json_answers_are_read(tmp_path):
    path = written(tmp_path / "a.csv", b"\xef\xbb\xbfprompt;chosen;rejected\nHi;a, b;c\n")
    assert load_pairs(path).dataset["chosen"][:] == ["a, b"]
    frame = pd.DataFrame({"prompt": ["Hi"], "chosen": ['{"value": 3}'], "rejected": ["[1]"]})
    path = written(tmp_path / "b.csv", frame.to_csv(index=False))
    assert load_pairs(path).dataset["chosen"][:] == ['{"value": 3}']
    path = written(tmp_path / "c.csv", b"\xef\xbb\xbfprompt,chosen,rejected\nHi,a,b\n")
    assert len(load_pairs(path, encoding="UTF8")) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'prompt,chosen,rejected,"note; a; b; c; d; e"\nHi,Hello,Go away,x\n'),
        ("a.csv", 'prompt,chosen,rejected,"n\t\t\t\t"\nHi,Hello,Go away,x\n'),
        ("a.csv", "prompt,chosen,rejected,n\rHi,Hello,Go away,;;;;;;;\r"),
        ("a.csv", "prompt;chosen;rejected\nHi;Hello;Go away\n"),
        ("a.tsv", 'prompt\tchosen\trejected\t"a,b,c,d,e"\nHi\tHello\tGo away\tx\n'),
    ],
)
def test_the_delimiter_is_the_one_that_gives_the_names(tmp_path, name, text):
    assert load_pairs(written(tmp_path / name, text)).dataset["pair_id"][0] == only(ROW)["pair_id"]


def test_two_columns_of_one_name_are_named(tmp_path):
    """In every format: a row would have the last of them."""
    written(tmp_path / "a.csv", "prompt,chosen,rejected,chosen\nHi,a,b,c\n")
    table = pa.table([["Hi"], ["a"], ["b"], ["c"]], ["prompt", "chosen", "rejected", "chosen"])
    pq.write_table(table, tmp_path / "a.parquet")
    for name, new in (("a.arrow", pa.ipc.new_file), ("b.arrow", pa.ipc.new_stream)):
        with pa.OSFile(str(tmp_path / name), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table)
    for path in sorted(tmp_path.glob("*.*")):
        with pytest.raises(DataError, match=f"{path.name} has two columns of the name 'chosen'"):
            load_pairs(path)


def test_votes_rankings_and_ratings_in_cells_are_read(tmp_path):
    frame = pd.DataFrame(
        {"prompt": ["Hi"], "response_a": "Hello", "response_b": "Go", "votes": '["a", "tie", "a"]'}
    )
    path = written(tmp_path / "a.csv", frame.to_csv(index=False))
    assert load_pairs(path).dataset["votes"][:] == [["chosen", "tie", "chosen"]]
    frame = pd.DataFrame({"prompt": ["Hi"], "chosen": "a", "rejected": "b", "score_chosen": 10,
                          "ratings_chosen": "[1, 2]"})  # fmt: skip
    path = written(tmp_path / "b.csv", frame.to_csv(index=False))
    assert load_pairs(path).report().count("ten-was-one") == 1


def test_a_field_that_the_first_row_lacks_can_be_mapped(tmp_path):
    rows = [ROW, ROW | {"sys": "Be kind."}]
    path = written(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    pairs = load_pairs(path, columns={"system": "sys"})
    assert [len(prompt) for prompt in pairs.dataset["prompt"]] == [1, 2]


def test_a_limit_follows_a_mapped_split(tmp_path):
    rows = [row | {"fold": "train" if n > 1 else "test"} for n, row in enumerate(ROWS)]
    path = written(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert len(load_pairs(path, 2, split="train", columns={"split": "fold"})) == 2
    assert len(load_pairs(path, split="all")) == 5


def test_an_array_in_another_encoding_is_an_array(tmp_path):
    path = written(tmp_path / "a.json", json.dumps(ROWS).encode("utf-16"))
    assert len(load_pairs(path, encoding="utf-16")) == 5


@pytest.mark.parametrize("encoding", ["hex", "rot13", "undefined", "utf-8\0", None, 5])
def test_only_encodings_of_text_are_encodings(tmp_path, encoding):
    with pytest.raises(DataError, match="no encoding"):
        load_pairs(written(tmp_path / "a.jsonl", TEXT), encoding=encoding)


def test_a_table_with_values_that_python_cannot_hold_names_the_rows(tmp_path):
    table = pa.table({"prompt": ["x"], "chosen": ["y"], "rejected": ["z"],
                      "when": pa.array([2**62], pa.timestamp("s"))})  # fmt: skip
    arrow(tmp_path / "a.arrow", table)
    with pytest.raises(DataError, match="rows 1 to 1: a value cannot be read"):
        load_pairs(tmp_path / "a.arrow")


def test_folders_that_are_not_whole_are_named(tmp_path):
    parts = {"train_prefs": Dataset.from_list(ROWS), "test_prefs": Dataset.from_list(ROWS)}
    DatasetDict(parts).save_to_disk(tmp_path / "saved")
    assert len(load_pairs(tmp_path / "saved", split="train")) == 5
    with pytest.raises(DataError, match="its split is 'test', its split is 'train'"):
        load_pairs(tmp_path / "saved", split="validation")
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train_prefs", "gone"]}')
    with pytest.raises(DataError, match="not whole: no gone"):
        load_pairs(tmp_path / "saved")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.jsonl").symlink_to(tmp_path / "nothing.jsonl")
    with pytest.raises(DataError, match="a link to a file that is not there"):
        load_pairs(tmp_path / "links")


def test_a_missing_split_names_those_that_there_are(tmp_path):
    rows = [row | {"split": f"{'train' if n else 'test'}_prefs"} for n, row in enumerate(ROWS)]
    path = written(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match="'test_prefs', its split is 'train_prefs'"):
        load_pairs(path, split="train")


@pytest.mark.parametrize("path", ["~nobody-of-this-name/x", "x" * 5000, "a\0b", ""])
def test_paths_that_are_none_are_sentences(path):
    for call in (lambda: load_pairs(path), lambda: load_pairs("hh-rlhf", files=path)):
        with pytest.raises(DataError):
            call()


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": 0}, {"limit": -1}, {"limit": 2.5}, {"limit": True}, {"sample": 0},
        {"sample": "3"}, {"seed": -1}, {"seed": 1.5}, {"seed": None}, {"columns": ["prompt"]},
        {"columns": {"prompt": 5}}, {"actions": "drop"}, {"evaluation_prompts": [5]},
        {"revision": "main"}, {"files": "x"},
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_meant_are_sentences(tmp_path, arguments):
    with pytest.raises(DataError):
        load_pairs(written(tmp_path / "a.jsonl", TEXT), **arguments)


def test_the_world_takes_a_limit_and_a_seed_only():
    with pytest.raises(DataError, match="a limit and a seed only"):
        plc_core.load_pairs("world", 8, actions={"prefix": "drop"})


def test_a_limit_counts_the_rows_of_the_split(tmp_path):
    written(tmp_path / "test.jsonl", TEXT)
    written(tmp_path / "train.jsonl", TEXT)
    pairs = load_pairs(tmp_path, 3, split="train")
    assert len(pairs) == 3
    assert pairs.rows_read == 8  # the test rows before them were read, and are listed


def test_fields_of_votes_and_those_that_give_way_can_be_mapped(tmp_path):
    rows = [{"question": "Hi", "prompt": "old", "left": "x", "right": "y", "votes": ["b"]}]
    path = written(tmp_path / "a.jsonl", json.dumps(rows[0]))
    columns = {"prompt": "question", "response_a": "left", "response_b": "right"}
    pair = load_pairs(path, columns=columns).dataset[0]
    assert (pair["prompt"][0]["content"], pair["chosen"]) == ("Hi", "y")
    assert json.loads(pair["metadata"]) == {"prompt_unmapped": "old"}


# ---- the cache -----------------------------------------------------------------------------------


def test_a_bit_that_flipped_in_the_cache_is_found(tmp_path):
    path = written(tmp_path / "a.jsonl", TEXT + "  ")
    pairs = load_pairs(path)
    raw = bytearray(pairs.path.read_bytes())
    raw[raw.index(b"Yes")] ^= 1
    pairs.path.write_bytes(bytes(raw))
    assert load_pairs(path).dataset["chosen"][0] == "Yes, 0."


def test_a_file_in_the_place_of_the_cache_gives_way(tmp_path):
    path = written(tmp_path / "a.jsonl", TEXT + "   ")
    folder = load_pairs(path).path.parent
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.write_text("in the way")
    assert len(load_pairs(path)) == 5


def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path, monkeypatch):
    from plc_core.data import sources

    path = written(tmp_path / "a.jsonl", TEXT)
    real = sources.rows_of_file

    def changing(*arguments):
        path.write_text(TEXT[: TEXT.index("\n")])
        yield from real(*arguments)

    monkeypatch.setattr(sources, "rows_of_file", changing)
    with pytest.raises(DataError, match="changed while it was read"):
        load_pairs(path)
    monkeypatch.undo()
    path.write_text(TEXT)
    assert len(load_pairs(path)) == 5


def test_what_a_killed_process_left_behind_is_swept_a_day_later():
    import os

    folder = cache_dir() / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    old, new = (written(folder / f"{name}.arrow", "x") for name in ("old", "new"))
    os.utime(old, (0, 0))
    with scratch_file():
        pass
    assert not old.exists()
    assert new.exists()
    new.unlink()


def test_a_fingerprint_does_not_depend_on_how_pairs_lie_in_batches():
    pairs = read(*(ROW | {"prompt": f"q{n}"} for n in range(2500)))
    assert pairs.map(lambda batch, _: batch).fingerprint == pairs.fingerprint


# ---- time ----------------------------------------------------------------------------------------


def seconds(function):
    start = time.process_time()
    function()
    return time.process_time() - start


def test_a_ring_of_thousands_under_one_prompt_takes_no_time():
    rows = [
        {"prompt": "q", "chosen": f"a{n}", "rejected": f"a{(n + 1) % 4000}"} for n in range(4000)
    ]
    pairs = read(*rows)
    assert pairs.report().count("cycle") == 4000
    assert seconds(lambda: read(*rows)) < 4


def test_piled_up_marks_take_no_time():
    assert seconds(lambda: plain_text("a" + "\u0300\u0316" * 100_000)) < 1
    assert plain_text("cafe\u0301") == "caf\u00e9"


def test_a_split_for_every_row_takes_no_time():
    rows = [ROW | {"prompt": f"q{n}", "split": f"s{n}"} for n in range(10_000)]
    assert seconds(lambda: read(*rows)) < 6


def test_the_data_room_loads_no_torch_and_no_room_above_it():
    code = (
        "import sys, plc_core.data as _; above = ('torch', 'transformers', 'plc_core.engine', "
        "'plc_core.runs', 'plc_core.analysis'); "
        "print([name for name in above if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
