"""Benchmarks: the published ones from copies of their files, and any file of prompts."""

import gzip
import json

import pandas as pd
import pytest

from plc_core.data import DataError
from plc_core.data.world import RESPONSE_TOKENS
from plc_core.evaluation import benchmarks
from plc_core.evaluation.benchmarks import PUBLISHED, Benchmark, Prompt, load_benchmark
from plc_core.storage.paths import cache_dir
from tests.chat_server import serving
from tests.paths import shared_file


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_the_real_prompts_of_vicuna_and_mt_bench():
    path = shared_file("data/eval_prompts.jsonl.gz")
    vicuna, mt = (load_benchmark(name, files=path) for name in ("vicuna", "mt-bench"))
    assert len(vicuna) == 80
    assert vicuna.prompts[0].turns == ("How can I improve my time management skills?",)
    assert [len(prompt.turns) for prompt in mt.prompts] == [2] * 80
    assert mt.prompts[0].prompt_id == "81"
    assert mt.prompts[0].category == "writing"
    assert mt.origin["repository"] == "lm-sys/FastChat"
    assert len(mt.origin["files"]["eval_prompts.jsonl.gz"]) == 64
    hard = load_benchmark(path, part="arena_hard_v0.1")
    assert len(hard) == 500
    with pytest.raises(DataError, match=r"evol-instruct.*218 prompts.*there are 0"):
        load_benchmark("evol-instruct", files=path)


def test_alpaca_eval_counts_rows_and_has_its_fixed_subset(tmp_path):
    rows = [
        {"dataset": "helpful_base", "instruction": f"Say {n}", "output": "o", "generator": "d"}
        for n in range(805)
    ]
    rows[7] = rows[3]  # instructions may repeat: the place is the id
    path = tmp_path / "alpaca_eval.json"
    path.write_text(json.dumps(rows))
    whole = load_benchmark("alpaca-eval-2", files=path)
    first = whole.first()
    assert [p.prompt_id for p in first.prompts] == [str(n) for n in range(200)]
    assert first.name == "alpaca-eval-2-first-200"
    assert first.fingerprint != whole.fingerprint
    assert load_benchmark("alpaca-eval-2", files=path, limit=200) == first
    assert whole.prompts[0].category == "helpful_base"
    path.write_text(json.dumps(rows[:-1]))
    with pytest.raises(DataError, match=r"805 prompts, and in .* there are 804"):
        load_benchmark("alpaca-eval", files=path)


def test_hh_rlhf_takes_the_first_805_of_the_test_split_without_their_answers(tmp_path):
    for part in ("harmless-base", "helpful-base"):
        folder = tmp_path / part
        folder.mkdir()
        before = "\n\nHuman: Hi\n\nAssistant: Yes?"
        rows = [
            {
                "chosen": f"{before}\n\nHuman: {part} {n}\n\nAssistant: good",
                "rejected": f"{before}\n\nHuman: {part} {n}\n\nAssistant: bad",
            }
            for n in range(500)
        ]
        text = "\n".join(map(json.dumps, rows))
        (folder / "test.jsonl.gz").write_bytes(gzip.compress(text.encode()))
        (folder / "train.jsonl.gz").write_bytes(gzip.compress(b""))
    found = load_benchmark("hh-rlhf", files=tmp_path)
    assert len(found) == 805
    assert found.prompts[500].turns == ("helpful-base 0",)
    assert [turn["role"] for turn in found.prompts[0].history] == ["user", "assistant"]
    assert "good" not in json.dumps([vars(p) for p in found.prompts], default=dict)


def test_ultrafeedback_test_and_evol_instruct(tmp_path):
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    rows = {"prompt": ["Q"] * 2000, "prompt_id": ["x"] * 2000, "chosen": [messages] * 2000}
    (tmp_path / "data").mkdir()
    pd.DataFrame(rows).to_parquet(tmp_path / "data" / "test_prefs-00000-of-00001.parquet")
    found = load_benchmark("ultrafeedback-test", files=tmp_path)
    assert len(found) == 2000
    assert found.prompts[5].metadata == {"prompt_id": "x"}
    rows = [{"idx": n, "Skill": "Math", "Instruction": f"{n} + 1"} for n in range(1, 219)]
    evol = load_benchmark("evol-instruct", files=write(tmp_path / "w.jsonl", rows))
    assert (evol.prompts[0].prompt_id, evol.prompts[0].category) == ("1", "Math")


def test_published_files_are_pinned_and_github_is_asked_once(monkeypatch):
    for one in PUBLISHED.values():
        commit = one.hub.revision if one.hub else one.github[1]
        assert len(commit) == 40
    monkeypatch.setattr(benchmarks, "GITHUB", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"could not be read.*files="):
        load_benchmark("vicuna")
    rows = [json.dumps({"question_id": n, "turns": [f"{n}?"]}) for n in range(1, 81)]
    with serving("openai", lambda path: "\n".join(rows)) as server:
        monkeypatch.setattr(benchmarks, "GITHUB", server.url)
        first, again = load_benchmark("vicuna"), load_benchmark("vicuna")
        rows.pop()
        with pytest.raises(DataError, match="there are 79"):
            load_benchmark("vicuna", revision="main")
        assert len(server.requests) == 2
        both = (cache_dir() / "benchmarks").glob("*.jsonl")
        kept = max(both, key=lambda path: path.stat().st_size)
        whole = kept.read_bytes()
        rows.append(json.dumps({"question_id": 80, "turns": ["80?"]}))
        for damaged in (whole.replace(b"7?", b"6?", 1), whole[:-10], bytes(len(whole)), None):
            kept.write_bytes(damaged) if damaged is not None else kept.unlink()
            assert load_benchmark("vicuna") == first
            assert kept.read_bytes() == whole
    assert first == again
    commit = first.origin["revision"]
    assert server.requests[0].startswith(f"/lm-sys/FastChat/{commit}/fastchat/")
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("row", "history", "turns"),
    [
        ({"prompt": "Why?"}, [], ["Why?"]),
        ("Why?", [], ["Why?"]),
        ({"turns": ["One", "Two"]}, [], ["One", "Two"]),
        ({"instruction": "Add", "input": "1 2"}, [], ["Add\n\n1 2"]),
        ({"prompt": [{"role": "user", "content": "Why?"}]}, [], ["Why?"]),
        (
            {"messages": [{"role": "system", "content": "S"}, {"from": "human", "value": "Q"}]},
            [("system", "S")],
            ["Q"],
        ),
        (
            {"prompt": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:"},
            [("user", "a"), ("assistant", "b")],
            ["c"],
        ),
        ({"prompt": "Q", "system": "S"}, [("system", "S")], ["Q"]),
    ],
)
def test_any_file_of_prompts_is_a_benchmark(tmp_path, row, history, turns):
    path = write(tmp_path / "my prompts.jsonl", [row])
    (prompt,) = load_benchmark(path).prompts
    assert [(turn["role"], turn["content"]) for turn in prompt.history] == history
    assert list(prompt.turns) == turns
    assert load_benchmark(path).name == "my-prompts"
    assert load_benchmark(path).prompts[0].prompt_id == prompt.prompt_id


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_turns_and_messages_of_every_kind_of_file(tmp_path, ending):
    """A CSV holds lists as JSON; they are turns all the same, and no text to show to a model."""
    said = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    for name, value in (("turns", ["a", "b"]), ("messages", said)):
        path = tmp_path / f"{name}.{ending}"
        if ending == "jsonl":
            write(path, [{name: value}])
        elif ending == "csv":
            pd.DataFrame({name: [json.dumps(value)]}).to_csv(path, index=False)
        else:
            pd.DataFrame({name: [value]}).to_parquet(path)
        (prompt,) = load_benchmark(path).prompts
        assert prompt.turns == (("a", "b") if name == "turns" else ("Q",))
        assert list(prompt.history) == ([] if name == "turns" else said[:1])


def test_parts_of_a_file_are_those_it_has(tmp_path):
    rows = [{"benchmark": name, "prompt": f"{name} {n}"} for name in ("a", "b") for n in (1, 2)]
    path = write(tmp_path / "both.jsonl", rows)
    assert [p.turns for p in load_benchmark(path, part="b").prompts] == [("b 1",), ("b 2",)]
    with pytest.raises(DataError, match=r"both.jsonl has no part 'c': there are a, b"):
        load_benchmark(path, part="c")
    plain = write(tmp_path / "plain.jsonl", [{"prompt": "a"}])
    with pytest.raises(DataError, match="has no part 'c': no row has the field benchmark"):
        load_benchmark(plain, part="c")
    for name in ("vicuna", "world"):
        with pytest.raises(DataError, match="is one benchmark, and has no part 'c'"):
            load_benchmark(name, part="c")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "has no prompts"),
        ([{"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"}], "1 ids more than once, as '1' 2"),
        ([{"prompt": "a"}, {"prompt": "a"}], "ids more than once"),
        ([{"prompt": "a"}, {"promt": "b"}], "row 2: no prompt to evaluate on.*promt"),
        ([{"turns": ["a", " "]}], "row 1: a turn of the prompt is empty"),
        ([{"messages": [{"role": "assistant", "content": "a"}]}], "row 1"),
        ([{"prompt": 7}], "row 1"),
        ([{"query": "a"}], "row 1.*the fields query, and a prompt is in one of turns, messages"),
        ([{"turns": "['a', 'b']"}], "row 1.*turns is .*no list in JSON"),
        (
            [{"prompt": "a"}, {"id": "7", "prompt": "b \ud83d"}],
            "row 2: the prompt '7' holds a lone",
        ),
        ([{"id": "x\udc00", "prompt": "b"}], "row 1: the prompt .* lone surrogate.*character 2"),
        ([{"prompt": ["a", 7]}], "row 1"),
    ],
)
def test_a_file_that_is_no_benchmark_is_a_sentence(tmp_path, rows, sentence):
    with pytest.raises(DataError, match=sentence):
        load_benchmark(write(tmp_path / "x.jsonl", rows))


def test_names_that_are_none(tmp_path):
    with pytest.raises(DataError, match="Is it the dataset 'mt-bench'"):
        load_benchmark("mt-bnch")
    with pytest.raises(DataError, match="the names are ultrafeedback-test"):
        load_benchmark("mt-bnch", files=tmp_path)
    with pytest.raises(DataError, match="limit"):
        load_benchmark("world", limit=0)
    with pytest.raises(DataError, match="has 1 prompts; asked for were 200"):
        Benchmark("x", (Prompt("1", ("a",)),)).first()


def test_the_world_is_its_held_out_prompts():
    world = load_benchmark("world", limit=30)
    assert (world.name, world.max_new_tokens, len(world)) == ("world", RESPONSE_TOKENS, 30)
    assert len(load_benchmark("world")) == 805
    assert load_benchmark("world").prompts[:30] == world.prompts
