"""Files of every format and public shape, broken ones too, and the cache of what was read."""

import codecs
import gzip
import json
import re

import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict

import plc_core
from plc_core.data import DATASETS, DataError, load_pairs
from plc_core.data.json_text import CHUNK
from plc_core.storage.paths import cache_dir
from tests.paths import shared_file

ROWS = [
    {"prompt": f"Question {n}?", "chosen": f"Yes, {n}.", "rejected": "No.", "score_chosen": n + 0.5,
     "score_rejected": 0.5}
    for n in range(5)
]  # fmt: skip
TEXT = "\n".join(json.dumps(row) for row in ROWS)


def zstd(raw):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(raw)
    return sink.getvalue().to_pybytes()


def written(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


FORMATS = {
    "pairs.jsonl": lambda: TEXT.encode(),
    "pairs.jsonl.gz": lambda: gzip.compress(TEXT.encode()),
    "pairs.jsonl.zst": lambda: zstd(TEXT.encode()),
    "gzip-by-another-name.jsonl": lambda: gzip.compress(TEXT.encode()),
    "byte-order-mark.jsonl": lambda: codecs.BOM_UTF8 + TEXT.encode(),
    "windows-lines.jsonl": lambda: TEXT.replace("\n", "\r\n").encode(),
    "blank-lines.jsonl": lambda: TEXT.replace("\n", "\n\n  \n").encode(),
    "lines.json": lambda: TEXT.encode(),
    "array.json": lambda: json.dumps(ROWS).encode(),
    "pretty.json": lambda: codecs.BOM_UTF8 + json.dumps(ROWS, indent=2).encode(),
    "array.json.gz": lambda: gzip.compress(json.dumps(ROWS).encode()),
    "pairs.csv": lambda: pd.DataFrame(ROWS).to_csv(index=False).encode(),
    "pairs.tsv": lambda: pd.DataFrame(ROWS).to_csv(index=False, sep="\t").encode(),
    "pairs.csv.zst": lambda: zstd(pd.DataFrame(ROWS).to_csv(index=False).encode()),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_pairs(tmp_path, name):
    pairs = load_pairs(written(tmp_path / name, FORMATS[name]()))
    assert pairs.rows_read == len(pairs) == 5
    for row, pair in zip(ROWS, pairs.dataset, strict=True):
        assert {k: row[k] for k in row if k != "prompt"} == {
            k: pair[k] for k in row if k != "prompt"
        }
        assert pair["prompt"] == [{"role": "user", "content": row["prompt"]}]
        assert pair["source"] == name


def test_parquet_arrow_and_saved_datasets_give_the_same_pairs(tmp_path):
    Dataset.from_list(ROWS).to_parquet(tmp_path / "pairs.parquet")
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink:
        table = pa.Table.from_pylist(ROWS)
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    ids = [
        load_pairs(tmp_path / name).dataset["pair_id"][:]
        for name in ("pairs.parquet", "saved", "file.arrow")
    ]
    assert ids[0] == ids[1] == ids[2]
    assert len(ids[0]) == 5


def test_the_splits_of_a_saved_dataset_are_kept_apart(tmp_path):
    parts = {"train": Dataset.from_list(ROWS[:3]), "test": Dataset.from_list(ROWS[3:])}
    DatasetDict(parts).save_to_disk(tmp_path / "both")
    assert load_pairs(tmp_path / "both").dataset["split"][:] == ["train"] * 3 + ["test"] * 2
    assert len(load_pairs(tmp_path / "both", split="test")) == 2


def test_a_folder_is_read_whole_with_splits_by_name_and_rows_by_file(tmp_path):
    (tmp_path / "helpful").mkdir()
    written(tmp_path / "helpful" / "train.jsonl", TEXT)
    written(tmp_path / "helpful" / "test.jsonl.gz", gzip.compress(TEXT.encode()))
    written(tmp_path / "README.md", "no pairs")
    written(tmp_path / ".hidden.jsonl", "no pairs")
    written(tmp_path / "more.jsonl", TEXT)
    pairs = load_pairs(tmp_path)
    assert pairs.rows_read == 15
    assert pairs.dataset["split"][:] == ["test"] * 5 + ["train"] * 5
    report = pairs.report()
    # A pair twice in one split is a duplicate; in two splits it is a leak, and both are kept.
    assert "row 1 of more.jsonl: the same pair as row 1 of helpful/train.jsonl" in str(report)
    assert report.count("duplicate") == 5
    assert report.count("split-leak") == 10
    assert len(set(pairs.dataset["pair_id"])) == 10
    for split in ("train", "test"):
        assert len(load_pairs(tmp_path, split=split)) == 5


SPOKEN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "He\nsaid 'yo'"}]
CELLS = {
    "JSON": json.dumps(SPOKEN),
    "indented JSON": json.dumps(SPOKEN, indent=2),
    "as Python prints it": str(SPOKEN),
    "as NumPy prints it": "[" + "\n ".join(map(str, SPOKEN)) + "]",
    "with tools beside": json.dumps({"messages": SPOKEN, "tools": []}),
    "ShareGPT": json.dumps([{"from": "human", "value": "Hi"},
                            {"from": "gpt", "value": "He\nsaid 'yo'"}]),
    "the answer alone": json.dumps(SPOKEN[1]),
    "JSON in JSON": json.dumps(json.dumps(SPOKEN)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet", "arrow"])
def test_messages_in_cells_of_text_are_read_in_every_format(tmp_path, kind):
    rows = [{"prompt": "Hi", "chosen": cell, "rejected": f"Go {n}", "note": cell}
            for n, cell in enumerate(CELLS.values())]  # fmt: skip
    path = tmp_path / f"pairs.{kind}"
    if kind == "csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    elif kind in ("jsonl", "json"):
        written(path, "\n".join(map(json.dumps, rows)) if kind == "jsonl" else json.dumps(rows))
    else:
        table = pa.Table.from_pylist(rows)
        if kind == "parquet":
            Dataset(table).to_parquet(path)
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
    pairs = load_pairs(path)
    assert pairs.dataset["chosen"][:] == ["He\nsaid 'yo'"] * len(CELLS)
    assert pairs.dataset["prompt"][:] == [SPOKEN[:1]] * len(CELLS)
    # What is no field of a pair stays as it was written.
    assert json.loads(pairs.dataset["metadata"][0]) == {"note": CELLS["JSON"]}


def test_an_answer_with_commas_quotes_and_lines_survives_a_table(tmp_path):
    rows = [ROWS[0] | {"chosen": 'He said "yes,\nand no",\r\n\tor so.'}]
    path = written(tmp_path / "pairs.csv", pd.DataFrame(rows).to_csv(index=False))
    assert load_pairs(path).dataset[0]["chosen"] == rows[0]["chosen"]


def test_types_that_change_from_row_to_row_are_judged_row_by_row(tmp_path):
    u = {"role": "user", "content": "Question 9?"}
    rows = [*ROWS, {"prompt": None, "chosen": [u, {"role": "assistant", "content": "Yes"}],
                    "rejected": [u, {"role": "assistant", "content": "No"}]}]  # fmt: skip
    path = written(tmp_path / "pairs.jsonl", "\n".join(map(json.dumps, rows)))
    assert len(load_pairs(path)) == 6


def test_an_array_longer_than_the_reader_s_pieces(tmp_path):
    rows = [ROWS[n % 5] | {"prompt": f"{n} " + "x" * 30_000} for n in range(100)]
    rows[50]["chosen"] = "y" * (3 * CHUNK)
    pairs = load_pairs(written(tmp_path / "pairs.json", json.dumps(rows)))
    assert pairs.rows_read == len(pairs) == 100
    assert len(pairs.dataset[50]["chosen"]) == 3 * CHUNK


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b"", "has no rows"),
        ("a.jsonl", b"\n \n", "has no rows"),
        ("a.json", b"[]", "has no rows"),
        ("a.csv", b"prompt,chosen,rejected\n", "has no rows"),
        ("a.jsonl", b'{"prompt": "x", "chosen": "y"', "row 1, character 30: no JSON object"),
        ("a.jsonl", TEXT.encode() + b'\n{"a', "row 6, character 2: no JSON object"),
        ("a.jsonl", b"[1]\n[2]", "row 1: expected an object, found a list"),
        ("a.jsonl", b'{\n"prompt": 1}', "looks like one value over several lines"),
        ("a.jsonl", b'{"p": 1}\n{"prompt": "\xff"}',
         "line 2, byte 12 of it and 21 of the file: not utf-8"),
        ("a.jsonl", "é".encode("latin-1"), 'encoding="latin-1"'),
        ("a.json", b'[{"a": 1}, {"b": 2]', "element 2, character 19 of the file: no JSON"),
        ("a.json", b'[{"a": 1} {"b": 2}]', "element 2, character 11 .* expected a comma"),
        ("a.json", b'[{"a": 1},]', "a comma before the end"),
        ("a.json", b'[{"a": 1}', "found the end of the file"),
        ("a.json", b'[{"a": 1}] x', "behind the end of the array"),
        ("a.json", b'[{"a": "\xff"}]', "line 1, byte 8 of it and 8 of the file: not utf-8"),
        ("a.csv", b'prompt,chosen,rejected\nx,"y,z\n', "after row 0: no CSV"),
        ("a.csv", b"prompt,chosen,rejected\nx,\xff,z\n", "line 2, byte 2 of it"),
        ("a.csv", b"prompt,chosen\nx,y,z\n", "more cells than there are columns"),
        ("a.jsonl", gzip.compress(TEXT.encode() * 50)[:-9], "damaged"),
        ("a.jsonl", b"\x1f\x8b\x08garbage", "damaged"),
        ("a.jsonl", zstd(TEXT.encode() * 50)[:-9], "damaged"),
        ("a.parquet", b"PAR1 and then nothing", "damaged"),
        ("a.arrow", b"\xff\xff\xff\xff and then nothing", "damaged"),
        ("a.jsonl", b'{"a": ' + b"[" * 100_000, "not to be read as JSON"),
        ("a.jsonl", b'{"a": ' + b"9" * 5000 + b"}", "not to be read as JSON"),
        ("a.xlsx", b"PK\x03\x04....", "a zip file"),
        ("a.jsonl.bz2", b"BZh91AY", "compressed by bzip2"),
        ("a.jsonl.gz", gzip.compress(gzip.compress(b"{}")), "compressed twice"),
        ("a.parquet", b"", "damaged"),
        ("a.json", b"[" * 100_000, "not to be read as JSON|no JSON"),
        ("a.jsonl", TEXT.encode() + '\n"é'.encode()[:-1], "line 6, byte 0 of it"),
        ("a.csv", b"prompt,chosen,rejected\nx,\"[{'role': 'user', 'content': <x>}]\",z",
         "as Python prints them"),
        ("a.json", b'[5, {"prompt": 1}]', "expected an object, found a int"),
    ],
)  # fmt: skip
def test_a_broken_file_is_a_sentence_with_the_place(tmp_path, name, content, sentence):
    path = written(tmp_path / name, content)
    with pytest.raises(DataError, match=f"(?s){sentence}") as error:
        load_pairs(path)
    assert str(path) in str(error.value)


def test_rows_before_the_fault_are_not_taken_for_the_whole(tmp_path):
    path = written(tmp_path / "pairs.jsonl", TEXT + "\n{")
    with pytest.raises(DataError, match="row 6"):
        load_pairs(path)
    with pytest.raises(DataError, match="row 6"):  # nor kept in the cache
        load_pairs(path)
    assert len(load_pairs(path, 5)) == 5


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_other_encodings_are_read_where_they_are_said(tmp_path, encoding):
    rows = [ROWS[0] | {"chosen": "Café"}]
    text = json.dumps(rows[0], ensure_ascii=False)
    path = written(tmp_path / "pairs.jsonl", text.encode(encoding))
    assert load_pairs(path, encoding=encoding).dataset[0]["chosen"] == "Café"
    with pytest.raises(DataError, match="no encoding 'latin-0'"):
        load_pairs(path, encoding="latin-0")


@pytest.mark.parametrize("ending", ["jsonl", "csv", "jsonl.gz"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_byte_order_mark_names_the_encoding_that_reads_the_file(tmp_path, encoding, ending):
    text = "prompt,chosen,rejected\nx,y,z\n" if ending == "csv" else json.dumps(ROWS[0])
    content = text.encode(encoding)
    content = gzip.compress(content) if ending.endswith("gz") else content
    path = written(tmp_path / f"pairs.{ending}", content)
    with pytest.raises(DataError) as error:
        load_pairs(path)
    assert f'Say encoding="{encoding}" to load_pairs' in str(error.value)
    assert f"iconv -f {encoding} -t utf-8" in str(error.value)
    assert len(load_pairs(path, encoding=encoding)) == 1


@pytest.mark.parametrize(
    ("row", "sentences"),
    [
        ({"prompt": "x", "chosen": "y", "reject": "z"}, ["no field 'rejected'", "is it 'reject'"]),
        ({"instruction": "x", "chosen": "y", "rejected": "z"},
         ["no field 'prompt'", "only instruction, chosen, rejected",
          "columns={\"prompt\": \"instruction\"}", 'The first row: {"instruction": "x"']),
    ],
)  # fmt: skip
def test_a_missing_field_is_named_with_the_nearest(tmp_path, row, sentences):
    path = written(tmp_path / "pairs.jsonl", json.dumps(row))
    with pytest.raises(DataError) as error:
        load_pairs(path)
    for sentence in sentences:
        assert sentence in str(error.value)


def test_fields_of_other_names_are_mapped_and_checked_first(tmp_path):
    rows = [{"system": "Be kind.", "input": "Hi", "chosen": "Hello", "rejected": "Go"}]
    path = written(tmp_path / "pairs.jsonl", json.dumps(rows[0]))
    pairs = load_pairs(path, columns={"prompt": "input"})
    assert [turn["role"] for turn in pairs.dataset[0]["prompt"]] == ["system", "user"]
    assert pairs.origin["settings"]["columns"] == {"prompt": "input"}
    with pytest.raises(DataError, match=r"no field 'inputs', only .*; is it 'input'"):
        load_pairs(path, columns={"prompt": "inputs"})
    with pytest.raises(DataError, match="columns names 'prompts'"):
        load_pairs(path, columns={"prompts": "input"})


def test_a_missing_file_is_a_sentence(tmp_path):
    with pytest.raises(DataError, match="no file or folder of pairs"):
        load_pairs(tmp_path / "nothing.jsonl")
    with pytest.raises(DataError, match="Is it the dataset 'ultrafeedback'"):
        load_pairs("ultrafeedbck")
    with pytest.raises(DataError, match="has no file of pairs"):
        load_pairs(tmp_path)


# ---- public datasets, in their shapes ------------------------------------------------------------


def messages(*texts):
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


ULTRAFEEDBACK = {
    "prompt": "What is rust?", "prompt_id": "ab12",
    "chosen": messages("What is rust?", "Iron oxide."),
    "rejected": messages("What is rust?", "A game."),
    "messages": messages("What is rust?", "Iron oxide."),
    "score_chosen": 8.5, "score_rejected": 6.0,
}  # fmt: skip
ULTRAFEEDBACKS_ANSWERS = {
    "source": "flan", "instruction": "What is rust?", "models": ["a", "b", "c", "d"],
    "completions": [
        {"model": model, "response": response, "overall_score": score}
        for model, response, score in zip(
            "abcd", ("Iron oxide.", "Oxide.", "A game.", "Tea."), (7.5, 7.5, 6.0, 2.0), strict=True
        )
    ],
}  # fmt: skip
HH = {
    "chosen": "\n\nHuman: What is rust?\n\nAssistant: Iron oxide.",
    "rejected": "\n\nHuman: What is rust?\n\nAssistant: A game.",
}
NECTAR = {
    "prompt": "\n\nHuman: What is rust?\n\nAssistant: ",
    "answers": [
        {"answer": text, "model": f"m{rank}", "rank": float(rank)}
        for rank, text in enumerate(["Iron oxide.", "A game.", "Red.", "?", "A", "B", "C"], start=1)
    ],
    "turns": 1, "num_responses": 7, "source": ["sharegpt", "flan"], "good_natured": True,
}  # fmt: skip
ORPO = {
    "source": "Airoboros", "question": "What is rust?", "prompt": "What is rust?",
    "chosen": messages("What is rust?", "Iron oxide.", "Sure?", "Quite."),
    "rejected": messages("What is rust?", "Iron oxide.", "Sure?", "No."),
}  # fmt: skip
MULTIPREF = {
    "comparison_id": "1", "prompt_id": "p", "text": "What is rust?",
    "completion_a": "A game.", "completion_b": "Iron oxide.", "model_a": "a", "model_b": "b",
    "source": "shp", "category": "science", "subject_study": None, "highest_level_degree": None,
    "normal_worker_annotations": [
        {"evaluator": "w1", "overall_pref": "B-is-clearly-better", "time_spent": 3},
        {"evaluator": "w2", "overall_pref": "Tie", "time_spent": 5},
    ],
    "expert_worker_annotations": [
        {"evaluator": "e1", "overall_pref": "B-is-slightly-better", "time_spent": 3},
        {"evaluator": "e2", "overall_pref": "A-is-slightly-better", "time_spent": 5},
    ],
}  # fmt: skip


def dataset_folder(folder, name):
    """A copy of a public dataset in miniature: its files' names, formats and shapes."""
    lines = lambda rows: "\n".join(map(json.dumps, rows)).encode()  # noqa: E731
    layouts = {
        "ultrafeedback": {
            "data/train_prefs-00000-of-00001.parquet": [ULTRAFEEDBACK],
            "data/test_prefs-00000-of-00001.parquet": [ULTRAFEEDBACK],
            "data/train_sft-00000-of-00001.parquet": [ULTRAFEEDBACK],
        },
        "ultrafeedback-ties": {
            "flan.jsonl": [ULTRAFEEDBACKS_ANSWERS],
            "truthful_qa.jsonl": [ULTRAFEEDBACKS_ANSWERS],
        },
        "hh-rlhf": {
            "harmless-base/train.jsonl.gz": [HH],
            "helpful-base/train.jsonl.gz": [HH | {"rejected": HH["rejected"] + " Or not."}],
            "helpful-base/test.jsonl.gz": [HH],
            "red-team-attempts/red_team_attempts.jsonl.gz": [{"transcript": "x"}],
        },
        "hh-golden": {"hh_golden/train.jsonl": [HH], "hh_golden/test.jsonl": [HH]},
        "nectar": {"data/rlaif.parquet": [NECTAR]},
        "nectar-60k": {"data/rlaif.parquet": [NECTAR]},
        "orpo-mix-40k": {"data/train-00000-of-00001.parquet": [ORPO]},
        "multipref": {
            "data/train-00000-of-00001.parquet": [MULTIPREF],
            "MultiPref-Train.jsonl": [{"other": 1}],
        },
    }
    for file, rows in layouts[name].items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.endswith("parquet"):
            Dataset.from_list(rows).to_parquet(path)
        else:
            written(path, gzip.compress(lines(rows)) if file.endswith("gz") else lines(rows))
    return folder


@pytest.mark.parametrize("name", DATASETS)
def test_every_public_dataset_is_read_from_a_local_copy(tmp_path, name):
    pairs = load_pairs(name, files=dataset_folder(tmp_path, name))
    assert len(pairs) == (2 if name == "hh-rlhf" else 1)
    pair = pairs.dataset[0]
    if name == "orpo-mix-40k":
        assert [turn["content"] for turn in pair["prompt"]] == [
            "What is rust?", "Iron oxide.", "Sure?"
        ]  # fmt: skip
        assert (pair["chosen"], pair["rejected"]) == ("Quite.", "No.")
    else:
        assert pair["prompt"] == [{"role": "user", "content": "What is rust?"}]
        best = ["Iron oxide."]
        if name == "ultrafeedback-ties":
            best.append("Oxide.")  # as good
        assert pair["chosen"] in best
    assert set(pairs.dataset["split"]) == {"train"}
    assert pairs.origin["repository"] == DATASETS[name].repository
    assert all(len(file["sha256"]) == 64 for file in pairs.origin["files"])


def test_ultrafeedback_keeps_scores_and_its_other_columns_once(tmp_path):
    pair = load_pairs("ultrafeedback", files=dataset_folder(tmp_path, "ultrafeedback")).dataset[0]
    assert (pair["score_chosen"], pair["score_rejected"]) == (8.5, 6.0)
    assert json.loads(pair["metadata"]) == {"prompt_id": "ab12"}
    assert pair["source"] == "ultrafeedback"


def test_nectar_takes_the_best_against_a_lower_one_and_ranks_become_scores(tmp_path):
    pair = load_pairs("nectar", files=dataset_folder(tmp_path, "nectar")).dataset[0]
    ranked = {answer["answer"]: answer["rank"] for answer in NECTAR["answers"]}
    assert pair["score_chosen"] == -1
    assert pair["score_rejected"] == -ranked[pair["rejected"]] < -1
    assert pair["source"] == "sharegpt, flan"
    assert json.loads(pair["metadata"])["model_chosen"] == "m1"


def test_multipref_votes_follow_the_observed_orientation(tmp_path):
    pair = load_pairs("multipref", files=dataset_folder(tmp_path, "multipref")).dataset[0]
    assert pair["votes"] == ["chosen", "tie", "chosen", "rejected"]
    metadata = json.loads(pair["metadata"])
    assert (metadata["model_chosen"], metadata["model_rejected"]) == ("b", "a")
    assert metadata["expert_worker_annotations"][0]["evaluator"] == "e1"


def test_one_file_of_a_public_dataset_is_enough(tmp_path):
    folder = dataset_folder(tmp_path, "hh-rlhf")
    assert len(load_pairs("hh-rlhf", files=folder / "helpful-base" / "test.jsonl.gz")) == 1
    assert len(load_pairs("hh-rlhf", split="test", files=folder)) == 1
    with pytest.raises(DataError, match="has the splits train, test, not 'dev'"):
        load_pairs("hh-rlhf", split="dev", files=folder)
    with pytest.raises(DataError, match=r"has none of data/\*\.parquet"):
        load_pairs("nectar", files=folder)


def test_the_hub_is_read_at_the_pinned_revision_and_the_revision_is_recorded(tmp_path, monkeypatch):
    asked = {}

    def download(repository, *, repo_type, revision, allow_patterns):
        asked.update(repository=repository, type=repo_type, revision=revision, of=allow_patterns)
        return str(dataset_folder(tmp_path / revision, "ultrafeedback"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    pairs = load_pairs("ultrafeedback")
    pinned = DATASETS["ultrafeedback"].revision
    assert asked == {"repository": "HuggingFaceH4/ultrafeedback_binarized", "type": "dataset",
                     "revision": pinned, "of": ["data/train_prefs-*.parquet"]}  # fmt: skip
    assert pairs.origin["revision"] == pinned
    assert load_pairs("ultrafeedback", revision="a" * 40).origin["revision"] == "a" * 40


def test_an_unreachable_hub_says_how_to_go_on():
    with pytest.raises(DataError, match=r"could not be read from the hub.*files="):
        load_pairs("hh-golden")


def test_the_pinned_revisions_are_commits():
    for name, public in DATASETS.items():
        if name != "hh-golden":  # no commit of it was found; the first read records it
            assert re.fullmatch("[0-9a-f]{40}", public.revision), name


def test_the_world_is_a_source():
    pairs = plc_core.load_pairs("world", 20)
    assert len(pairs) == 20
    assert pairs.report().rows_read == 20
    with pytest.raises(DataError, match=r"plc_core\.load_pairs gives"):
        load_pairs("world", 20)  # the data room knows no model


# ---- the cache -----------------------------------------------------------------------------------


def test_a_second_reading_comes_from_the_cache_by_content_and_settings(tmp_path, monkeypatch):
    path = written(tmp_path / "pairs.jsonl", TEXT)
    first = load_pairs(path)
    calls = []
    from plc_core.data import sources

    real = sources.validated
    monkeypatch.setattr(sources, "validated", lambda *a, **k: calls.append(1) or real(*a, **k))
    again = load_pairs(path)
    assert not calls
    assert (again.fingerprint, again.rows_read) == (first.fingerprint, first.rows_read)
    load_pairs(path, actions={"prefix": "drop"})
    load_pairs(path, 3)
    written(path, TEXT.replace("Yes", "Oh"))
    load_pairs(path)
    assert len(calls) == 3


@pytest.mark.parametrize("damage", ["short", "missing", "record"])
def test_a_damaged_cache_is_read_again(tmp_path, damage):
    path = written(tmp_path / "pairs.jsonl", TEXT + " " * len(damage))
    pairs = load_pairs(path)
    folder = pairs.path.parent
    assert folder.parent == cache_dir() / "pairs"
    if damage == "short":
        (folder / "pairs.arrow").write_bytes((folder / "pairs.arrow").read_bytes()[:-100])
    elif damage == "missing":
        (folder / "findings.arrow").unlink()
    else:
        (folder / "pairs.json").write_text("{")
    assert load_pairs(path).fingerprint == pairs.fingerprint


def test_real_votes_and_dialogues_are_read_whole():
    votes = load_pairs(shared_file("data/human_votes.jsonl.gz"))
    assert votes.rows_read == 2755
    assert all(votes.dataset["votes"])
    helpful = load_pairs(shared_file("data/hh_helpful_pairs.jsonl.gz"))
    assert len(helpful) == 5062
    turns = [len(prompt) for prompt in helpful.dataset["prompt"]]
    assert max(turns) > 1
    assert all(n % 2 == 1 for n in turns)
