"""Answers to a benchmark: once for everybody, turn by turn, exact, and resumable."""

import json
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

from plc_core.data import DataError
from plc_core.data.world import RESPONSE_TOKENS, VOCABULARY
from plc_core.engine.models.adapters import add_lora
from plc_core.engine.models.load import load_policy
from plc_core.engine.sampling import generate_responses as sample
from plc_core.engine.tokens.tokenized import prompt_ids
from plc_core.evaluation.benchmarks import Benchmark, Prompt, world_benchmark
from plc_core.evaluation.chat_api import ChatServer
from plc_core.evaluation.generate import GENERATIONS, GenerationWarning, generate
from plc_core.evaluation.policies import Decoding, LocalPolicy, OwnNumbers, ServerPolicy
from plc_core.runs import create_run
from plc_core.storage.files import RunError
from tests.chat_server import serving
from tests.paths import ROOT
from tests.waiting import wait_for

WORD = VOCABULARY[20]  # the world knows no others
GREEDY = Decoding(RESPONSE_TOKENS)
SAMPLED = Decoding(RESPONSE_TOKENS, temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def world():
    return load_policy("world")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("PLC_CACHE", str(tmp_path / "cache"))
    return create_run(tmp_path / "runs", "one", {"kind": "analysis", "config": {}})


def answers(run, benchmark, policy, decoding=GREEDY, **options):
    return generate(run, benchmark, policy, decoding, **options).generations


# ---- a model on this machine ---------------------------------------------------------------------


def test_greedy_answers_are_those_of_the_sampler_in_the_stable_schema(run, world):
    model, tokenizer = world
    benchmark = world_benchmark(40)
    found = answers(run, benchmark, LocalPolicy(*world))
    prompts = [
        prompt_ids(tokenizer, [{"role": "user", "content": p.turns[0]}]) for p in benchmark.prompts
    ]
    expected = sample(model, tokenizer, prompts, "greedy", RESPONSE_TOKENS, 0)
    assert found["response"].tolist() == [r.text for r in expected]
    assert found["response_tokens"].tolist() == [len(r.ids) for r in expected]
    assert found["prompt_id"].tolist() == [p.prompt_id for p in benchmark.prompts]
    assert set(found["decoding"]) == {"greedy"}
    stored = run.table("generations/world.parquet")
    assert list(stored.columns) == GENERATIONS.names
    pd.testing.assert_frame_equal(stored, found)
    record = json.loads((run.path / "generations" / "world.json").read_text())
    said = record["trained, greedy"]
    assert said["benchmark"]["fingerprint"] == benchmark.fingerprint
    assert said["decoding"] == {"max_new_tokens": RESPONSE_TOKENS, "temperature": 0.0}
    assert (said["answers"], said["cut_off"], said["empty"]) == (40, 0, 0)


def test_continuous_batching_gives_the_same_tokens(run, world):
    benchmark = world_benchmark(6)
    static = answers(run, benchmark, LocalPolicy(*world), name="static")
    policy = LocalPolicy(*world, continuous=True)
    found = {}
    turns = [[{"role": "user", "content": p.turns[0]}] for p in benchmark.prompts]
    policy.answer(turns, GREEDY, lambda ns, got: found.update(zip(ns, got, strict=True)))
    assert [found[n].text for n in range(6)] == static["response"].tolist()
    assert [found[n].tokens for n in range(6)] == static["response_tokens"].tolist()
    with pytest.raises(RunError, match="greedy"):
        policy.answer(turns, SAMPLED, lambda *_: None)


def test_a_sampled_answer_depends_on_its_prompt_and_the_seed_alone(run, world):
    whole = answers(run, world_benchmark(30), LocalPolicy(*world), SAMPLED)
    part = world_benchmark(7)
    alone = {}
    turns = [[{"role": "user", "content": p.turns[0]}] for p in part.prompts]
    LocalPolicy(*world, batch_size=2).answer(
        turns, SAMPLED, lambda ns, got: alone.update(zip(ns, got, strict=True))
    )
    assert [alone[n].text for n in range(7)] == whole["response"].tolist()[:7]
    other = answers(run, part, LocalPolicy(*world), Decoding(64, temperature=1.0, seed=4))
    assert other["response"].tolist() != whole["response"].tolist()[:7]
    assert set(other["decoding"]) == {"sampled T=1 seed=4"}
    config = GenerationConfig(max_new_tokens=4)
    one, two = OwnNumbers([[1, 2], [1, 3]], config, SAMPLED).uniforms.tolist()
    assert one != two
    little = Decoding(64, temperature=1.0, top_p=1e-6)
    greedy = answers(run, part, LocalPolicy(*world))
    assert answers(run, part, LocalPolicy(*world), little)["response"].equals(greedy["response"])


def test_sampling_by_inversion_has_the_distribution_of_the_model(world):
    """The first token over many seeds against the softmax: a chi-squared test."""
    model, tokenizer = world
    turns = [{"role": "user", "content": world_benchmark(1).prompts[0].turns[0]}]
    ids = prompt_ids(tokenizer, turns)
    with torch.inference_mode():
        shares = (model(torch.tensor([ids])).logits[0, -1] / 1.5).softmax(-1).numpy()
    counts = np.zeros(len(shares))
    config = GenerationConfig(max_new_tokens=1)
    scores = torch.log(torch.from_numpy(shares))[None] * 1.5
    for seed in range(2000):
        numbers = OwnNumbers([ids], config, Decoding(1, temperature=1.5, seed=seed))
        counts[int(numbers(torch.tensor([ids]), scores).argmax())] += 1
    large = shares * 2000 >= 5
    expected = np.append(shares[large], shares[~large].sum()) * 2000
    found = np.append(counts[large], counts[~large].sum())
    statistic = ((found - expected) ** 2 / expected)[expected > 0].sum()
    assert statistic < len(expected) + 4 * np.sqrt(2 * len(expected))


def test_adapters_answer_without_being_merged(run, world):
    torch.manual_seed(0)
    adapted = add_lora(load_policy("world")[0], rank=4, alpha=8)
    benchmark = world_benchmark(20)
    plain = answers(run, benchmark, LocalPolicy(*world))
    fresh = LocalPolicy(adapted, world[1])
    assert answers(run, benchmark, fresh)["response"].equals(plain["response"])
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2)
    changed = LocalPolicy(adapted, world[1])
    assert changed.identity != fresh.identity
    moved = answers(run, benchmark, changed)
    assert not moved["response"].equals(plain["response"])
    merged = LocalPolicy(adapted.merge_and_unload(), world[1])
    assert answers(run, benchmark, merged)["response"].equals(moved["response"])


# ---- never twice, and never lost -----------------------------------------------------------------


class Counting(LocalPolicy):
    asked = 0

    def answer(self, conversations, decoding, done):
        Counting.asked += len(conversations)
        return super().answer(conversations, decoding, done)


def test_nothing_is_generated_twice_by_any_run(run, world, tmp_path):
    Counting.asked = 0
    first = answers(run, world_benchmark(10), Counting(*world))
    assert Counting.asked == 10
    other = create_run(tmp_path / "runs", "two", {"kind": "analysis", "config": {}})
    again = generate(other, world_benchmark(14), Counting(*world), GREEDY, name="reference")
    assert (Counting.asked, again.generated) == (14, 4)
    assert again.generations["response"].tolist()[:10] == first["response"].tolist()
    answers(run, world_benchmark(10), Counting(*world), Decoding(RESPONSE_TOKENS - 1))
    assert Counting.asked == 24
    # Equal prompts under different ids are one question.
    twice = Benchmark("twice", (Prompt("a", (WORD,)), Prompt("b", (WORD,))))
    assert len(set(answers(run, twice, Counting(*world))["response"])) == 1
    assert Counting.asked == 25


def test_rows_of_other_policies_stay_and_ones_own_are_replaced(run, world):
    answers(run, world_benchmark(5), LocalPolicy(*world), name="reference")
    for _ in range(2):
        answers(run, world_benchmark(5), LocalPolicy(*world), name="trained")
    found = run.table("generations/world.parquet")
    assert found.groupby("policy").size().to_dict() == {"reference": 5, "trained": 5}


KILLED = """
import sys, time
from plc_core.engine.models.load import load_policy
from plc_core.evaluation.benchmarks import world_benchmark
from plc_core.evaluation.generate import generate
from plc_core.evaluation.policies import Decoding
from plc_core.evaluation.policies import LocalPolicy
from plc_core.runs import open_run

class StaysAtTheFourthBatch(LocalPolicy):
    begun = 0

    def _generated(self, *args):
        self.begun += 1
        time.sleep(3600 if self.begun == 4 else 0)
        return super()._generated(*args)

policy = StaysAtTheFourthBatch(*load_policy("world"), batch_size=4)
generate(open_run(sys.argv[1]), world_benchmark(40), policy, Decoding(64))
"""


def test_a_kill_loses_the_batch_under_way_and_no_more(run, world, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(run.path)], cwd=ROOT)

    def kept():
        parts = (tmp_path / "cache" / "generations").glob("*/*.parquet")
        return sum(pq.read_table(part).num_rows for part in parts)

    wait_for(lambda: kept() == 3 * 4, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (run.path / "generations").exists()
    Counting.asked = 0
    found = answers(run, world_benchmark(40), Counting(*world))
    assert Counting.asked == 40 - 3 * 4
    expected = {}
    turns = [[{"role": "user", "content": text}] for text in found["prompt"]]
    LocalPolicy(*world).answer(
        turns, GREEDY, lambda ns, got: expected.update(zip(ns, got, strict=True))
    )
    assert found["response"].tolist() == [expected[n].text for n in range(40)]


def test_a_damaged_part_of_the_cache_is_made_again(run, world, tmp_path):
    before = answers(run, world_benchmark(6), LocalPolicy(*world))
    for part in (tmp_path / "cache" / "generations").glob("*/*.parquet"):
        part.write_bytes(part.read_bytes()[:-30])
    Counting.asked = 0
    assert answers(run, world_benchmark(6), Counting(*world)).equals(before)
    assert Counting.asked == 6


# ---- turns, cuts, and what cannot be -------------------------------------------------------------


def two_turns():
    return Benchmark("two", (Prompt("a", ("first", "second")), Prompt("b", ("only",))))


def test_the_second_turn_sees_the_models_own_first_answer(run):
    seen = []

    def reply(body):
        seen.append(body["messages"])
        return f"answer {len(body['messages'])}", None

    with serving("openai", reply) as server:
        policy = ServerPolicy(ChatServer("m", server.url + "/v1", "openai", concurrency=1), "w")
        found = answers(run, two_turns(), policy)
    assert found[["prompt_id", "turn"]].to_numpy().tolist() == [["a", 1], ["b", 1], ["a", 2]]
    assert seen[2] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "second"},
    ]
    assert json.loads(found["conversation"].iloc[2]) == seen[2]
    assert found["response"].iloc[2] == "answer 3"


def test_cut_off_and_empty_answers_are_marked_and_counted(run, world):
    with pytest.warns(GenerationWarning, match="of 5 answers 5 were cut off .* and 0 are empty"):
        found = answers(run, world_benchmark(5), LocalPolicy(*world), Decoding(3))
    assert not found["finished"].any()
    assert found["response_tokens"].tolist() == [3] * 5
    with (
        serving("openai", lambda body: (" ", None)) as server,
        pytest.warns(GenerationWarning, match="0 were cut off .* and 2 are empty"),
    ):
        policy = ServerPolicy(ChatServer("m", server.url + "/v1", "openai"), "w")
        one_turn = Benchmark("two", (Prompt("a", ("first",)), Prompt("b", ("only",))))
        found = answers(run, one_turn, policy)
    assert found["empty"].all()
    assert found["finished"].all()


def test_a_prompt_near_the_models_longest_has_what_room_there_is(run, world):
    """The world's model takes 128 positions."""
    tokenizer = world[1]
    longest = len(prompt_ids(tokenizer, [{"role": "user", "content": f"{WORD} " * 100}]))
    prompts = [Prompt(str(n), (f"{WORD} " * (100 + n),)) for n in (0, 128 - longest - 1, 200)]
    short = world_benchmark(1).prompts[0]
    with pytest.warns(GenerationWarning):
        found = answers(run, Benchmark("long", (*prompts, short)), LocalPolicy(*world))
    assert found["response_tokens"].iloc[1] <= 1
    assert found["response_tokens"].iloc[2] == 0
    assert not found["finished"].iloc[2]
    alone = answers(run, world_benchmark(1), LocalPolicy(*world))
    assert found["response"].iloc[3] == alone["response"].iloc[0]


def test_sentences_for_what_cannot_be(run, world):
    unknown = Benchmark("x", (Prompt("7", ("zzz",)),))
    with pytest.raises(DataError, match=r"Prompt '7' of .*a word is not in the vocabulary"):
        answers(run, unknown, LocalPolicy(*world))
    tokenizer = AutoTokenizer.from_pretrained(world[1].name_or_path)
    tokenizer.chat_template = None
    with pytest.raises(DataError, match="no chat template"):
        LocalPolicy(world[0], tokenizer)
    for wrong in ({"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}):
        with pytest.raises(RunError, match="max_new_tokens is 1 or more"):
            Decoding(**wrong)


# ---- servers -------------------------------------------------------------------------------------


def world_reply(world):
    model, tokenizer = world

    def reply(body):
        ids = prompt_ids(tokenizer, body["messages"])
        limit = body["max_tokens"]
        (response,) = sample(model, tokenizer, [ids], "greedy", limit, 0)
        return response.text, "stop" if response.finished else "length"

    return reply


def test_a_server_with_the_worlds_model_answers_as_the_model_does(run, world):
    local = answers(run, world_benchmark(12), LocalPolicy(*world), name="local")
    with serving("openai", world_reply(world), ["429", "half", "500"]) as server:
        # One at a time: the stand-in's model is not safe to use from several threads.
        there = ChatServer("world", server.url + "/v1", "openai", pause=0.01, concurrency=1)
        served = answers(run, world_benchmark(12), ServerPolicy(there, "sft"), name="served")
    assert served["response"].tolist() == local["response"].tolist()
    assert served["finished"].tolist() == local["finished"].tolist()
    assert {body["temperature"] for body in server.requests} == {0.0}


def test_what_a_server_could_not_answer_is_named_and_the_rest_is_kept(run):
    with serving("openai", lambda body: ("yes", None), ["400"]) as server:
        there = ChatServer("m", server.url + "/v1", "openai", concurrency=1)
        with pytest.raises(RunError, match="1 of 2 prompts could not be answered, as 'a'"):
            answers(run, two_turns(), ServerPolicy(there, "w"))
        assert not (run.path / "generations").exists()
        before = len(server.requests)
        answers(run, two_turns(), ServerPolicy(there, "w"))
        assert len(server.requests) - before == 2  # "a", and its second turn
        # Other weights under the same name are asked anew.
        answers(run, two_turns(), ServerPolicy(there, "w2"))
        assert len(server.requests) - before == 5
