"""From runs to the paper's table: made once, read back, and every number found again by hand."""

import json
import shutil
import subprocess

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plc_core import TrainConfig, train
from plc_core.data import DataError
from plc_core.evaluation.chain import evaluate_runs
from plc_core.evaluation.chat_api import ChatServer
from plc_core.evaluation.comparison import nearest_controls
from plc_core.evaluation.completeness import EvaluationConfig
from plc_core.evaluation.judged import read_evaluation
from plc_core.evaluation.judges import JudgeWarning
from plc_core.evaluation.methods import Contestant, contestants
from plc_core.evaluation.policies import ServerPolicy
from plc_core.evaluation.results import (
    difference,
    finding,
    interval,
    mean_and_worst,
    shown,
)
from plc_core.evaluation.win_rate import JoinError
from plc_core.runs import create_run, open_run
from plc_core.storage.files import RunError, write_table
from tests.chat_server import serving

TINY = {"num_pairs": 64, "batch_pairs": 8, "pairs_per_forward": 8, "flip_rate": 0.3}
TINY |= {"learning_rate": 2e-3}  # they have to move
CONFIG = EvaluationConfig(eval_prompts=24)
METHODS = {
    "DPO": {"objective": "dpo"},
    "DPO β=0.1": {"objective": "dpo", "beta": 0.1},
    "PLC-DPO": {"objective": "plc"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("runs"))
    return {
        method: train(TrainConfig(name=f"run{n}", runs_dir=folder, **TINY, **own))
        for n, (method, own) in enumerate(METHODS.items())
    }


@pytest.fixture
def runs(trained, tmp_path):
    """Copies, so that a test may spoil them."""
    copies = {}
    for method, run in trained.items():
        subprocess.run(["cp", "-r", str(run.path), str(tmp_path / run.name)], check=True)
        copies[method] = open_run(tmp_path / run.name)
    return copies


@pytest.fixture
def unanswered(runs):
    for run in runs.values():
        for part in ("generations", "judgements"):
            shutil.rmtree(run.path / part, ignore_errors=True)
    return runs


@pytest.fixture(scope="module")
def evaluation(trained):
    return evaluate_runs(contestants(trained), CONFIG)


# ---- what is not to be made ----------------------------------------------------------------------


def test_where_nothing_is_to_be_made_the_runs_that_lack_something_are_named(unanswered):
    """Answers, then verdicts, then scores are missing; when all are there they are read."""
    runs, entries = unanswered, contestants(unanswered)
    with serving("openai", lambda body: ("[[A]]", None)) as server:
        config = EvaluationConfig(
            eval_prompts=24, decodings=["greedy"], pairwise_judges=[f"openai:m@{server.url}/v1"]
        )
        reading = config.model_copy(update={"make": False})
        with pytest.raises(RunError, match="3 runs lack answers to 'world': run0, run1, run2"):
            evaluate_runs(entries, reading)
        assert not any((run.path / "generations").exists() for run in runs.values())
        evaluate_runs(entries, config.model_copy(update={"pairwise_judges": []}))
        asked = len(server.requests)
        with pytest.raises(RunError, match="2 runs lack verdicts of 'm' beside DPO: run1, run2"):
            evaluate_runs(entries, reading)
        assert len(server.requests) == asked
        with pytest.warns(JudgeWarning):
            made = evaluate_runs(entries, config)
        asked = len(server.requests)
        read = evaluate_runs(entries, reading)
        assert len(server.requests) == asked
    columns = ["method", "prompt_id", "turn", "win"]
    pd.testing.assert_frame_equal(read.versus[columns], made.versus[columns])
    (runs["DPO"].path / "judgements" / "gold-world.parquet").unlink()
    with pytest.raises(RunError, match="1 run lacks scores of 'gold' on 'world': run0"):
        evaluate_runs(entries, reading)


# ---- for a reader; every number again: test_real_shapes, test_sceptic ----------------------------


def test_the_table_for_a_reader_and_its_sentence_say_the_numbers(evaluation):
    table = evaluation.results(["DPO β=0.1"])
    plc = table[(table["method"] == "PLC-DPO") & (table["decoding"] == "greedy")].iloc[0]
    text = shown(table)
    assert text.loc["PLC-DPO", "win % against DPO, greedy"].startswith(f"{plc['win_rate']:.1f} [")
    assert text.loc["DPO", "win % against DPO, greedy"] == "–"
    said = text.loc["PLC-DPO", "its control (KL)"]
    assert said.startswith(f"{plc['control']} ({plc['control_kl']:.2f}")
    near = abs(plc["control_kl"] - plc["kl"]) <= 0.1 * plc["kl"]
    assert said.endswith(", not matched)") != near
    sentence = finding(table, "PLC-DPO")
    assert f"{plc['win_rate']:.1f} [" in sentence
    assert f"({plc['control']}, {plc['control_kl']:.2f} nats" in sentence


def test_several_benchmarks_have_a_mean_and_several_seeds_a_deviation():
    lines = [("a", 0, 40.0), ("b", 0, 60.0), ("a", 1, 60.0), ("b", 1, 80.0)]
    table = pd.DataFrame(lines, columns=["benchmark", "seed", "win_rate"])
    table = table.assign(low=0.0, high=100.0, over=table["win_rate"])
    names = ("win_rate", "low", "high")
    assert interval(table.iloc[:1], *names) == "40.0 [0.0, 100.0]"
    assert interval(table.iloc[:2], *names) == "50.0 (mean of 2)"
    assert interval(table, *names) == "60.0 ± 14.1"  # of the seeds' means, 50 and 70
    assert difference(table.iloc[::2]) == "no difference shown"
    with pytest.raises(JoinError, match="average its benchmarks first"):  # they are no seeds
        difference(table)
    assert interval(table.assign(win_rate=np.nan), *names) == "–"


def test_mean_and_worst_are_of_the_means_over_seeds():
    lines = [("a", 0, 40.0), ("b", 0, 60.0), ("a", 1, 60.0), ("b", 1, 80.0)]
    table = pd.DataFrame(lines, columns=["benchmark", "seed", "win_rate"])
    table = table.assign(dataset="d", decoding="greedy", method="x", n=10)
    (line,) = mean_and_worst(table).to_dict("records")
    assert (line["cells"], line["mean"], line["worst"]) == (2, 60.0, 50.0)
    with pytest.raises(JoinError, match="seeds rest on"):
        mean_and_worst(table.assign(n=[10, 10, 10, 9]))


def test_the_nearest_control_is_nearest_by_ratio():
    lines = [("DPO", 1.0), ("DPO β=0.1", 4.0), ("PLC-DPO", 2.1), ("RSO", 0.0)]
    kl = pd.DataFrame(lines, columns=["method", "kl"]).assign(dataset="d", model="m", seed=0)
    chosen = nearest_controls(kl, ["DPO", "DPO β=0.1"])
    # 2.1 is 1.1 from 1 and 1.9 from 4, but nearer to 4 by ratio; nobody is near 0.
    assert chosen[["method", "control"]].to_numpy().tolist() == [["PLC-DPO", "DPO β=0.1"]]


# ---- nothing twice, and whole again --------------------------------------------------------------


def test_a_second_call_makes_nothing_and_reads_the_same(trained, evaluation, monkeypatch):
    def refuse(*_args, **_options):
        raise AssertionError("made again")

    for name in ("generate", "load_trained"):
        monkeypatch.setattr(f"plc_core.evaluation.chain.{name}", refuse)
    monkeypatch.setattr("plc_core.evaluation.completeness.score_generations", refuse)
    again = evaluate_runs(contestants(trained), CONFIG)
    pd.testing.assert_frame_equal(again.judged, evaluation.judged)
    pd.testing.assert_frame_equal(again.log_ratios, evaluation.log_ratios)


def test_rows_that_went_missing_are_made_again(runs):
    entries = contestants(runs)
    before = evaluate_runs(entries, CONFIG)
    for folder in ("generations/world", "judgements/gold-world"):
        path = runs["PLC-DPO"].path / f"{folder}.parquet"
        write_table(path, pq.read_table(path).slice(3))
    pd.testing.assert_frame_equal(evaluate_runs(entries, CONFIG).judged, before.judged)


def prompts_file(folder, count=60):
    from plc_core.evaluation.benchmarks import world_benchmark

    rows = [
        {"id": p.prompt_id, "prompt": p.turns[0], "category": p.category}
        for p in world_benchmark(count).prompts
    ]
    path = folder / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


# ---- any benchmark, any policy -------------------------------------------------------------------


def test_a_file_of_prompts_gives_the_numbers_of_the_world_and_the_kl(runs, tmp_path):
    """The world's prompts as a user's file: the same greedy answers, judged by the gold judge."""
    config = EvaluationConfig(benchmarks=[str(prompts_file(tmp_path, 24))], max_new_tokens=64)
    entries = contestants(runs)
    found = evaluate_runs(entries, config).results()
    own = evaluate_runs(entries, CONFIG).results()
    keys = ["method", "decoding"]
    both = found.merge(own, on=keys, suffixes=("", "_world"))
    greedy = both[both["decoding"] == "greedy"]
    assert greedy["reward"].tolist() == greedy["reward_world"].tolist()
    np.testing.assert_allclose(greedy["win_rate"], greedy["win_rate_world"])
    known = both[both["method"] != "SFT"]
    assert known["kl"].notna().all()
    # Other samples of the same policies, 24 each: near, and not the same.
    assert (known["kl"] - known["kl_world"]).abs().max() < 3


def test_other_prompts_under_the_same_ids_are_answered_anew(runs, tmp_path):
    path = prompts_file(tmp_path, 4)
    config = EvaluationConfig(benchmarks=[str(path)], max_new_tokens=64, decodings=["greedy"])
    entries = contestants({"DPO": runs["DPO"]})
    evaluate_runs(entries, config)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    prompts = [row["prompt"] for row in rows][::-1]
    changed = [row | {"prompt": own} for row, own in zip(rows, prompts, strict=True)]
    path.write_text("\n".join(map(json.dumps, changed)))
    evaluate_runs(entries, config)
    answers = runs["DPO"].table("generations/mine.parquet").query("policy == 'trained'")
    assert answers["prompt"].tolist() == prompts


def test_turns_are_averaged_before_prompts_are_compared(tmp_path):
    from plc_core.evaluation.benchmarks import world_benchmark

    first, second, third = (p.turns[0] for p in world_benchmark(3).prompts)
    path = tmp_path / "two-turns.jsonl"
    rows = [{"id": "a", "turns": [first, second]}, {"id": "b", "turns": [third]}]
    path.write_text("\n".join(map(json.dumps, rows)))
    config = EvaluationConfig(benchmarks=[str(path)], max_new_tokens=64, decodings=["greedy"])
    with serving("openai", lambda body: ("hope this helps . " * len(body["messages"]), None)) as s:
        entries = []
        for method in ("DPO", "PLC-DPO"):
            run = create_run(tmp_path, method, {"kind": "analysis", "config": {"model": "world"}})
            policy = ServerPolicy(ChatServer("m", f"{s.url}/v1", "openai"), method)
            entries.append(Contestant(method, run, policy=policy))
        evaluation = evaluate_runs(entries, config)
    scores = entries[1].run.table("judgements/gold-two-turns.parquet")
    own = scores.set_index(["prompt_id", "turn"])["reward"]
    assert own["a", 1] != own["a", 2]
    judged = evaluation.judged.query("method == 'PLC-DPO'").set_index("prompt_id")
    assert judged["turns"].to_dict() == {"a": 2, "b": 1}
    assert judged.loc["a", "reward"] == pytest.approx((own["a", 1] + own["a", 2]) / 2)
    assert judged.loc["b", "reward"] == pytest.approx(own["b", 1])
    assert evaluation.kl().empty  # nothing was sampled
    # One turn without a score leaves the prompt without one: a mean of the others would be another.
    scores.loc[scores["turn"] == 2, "reward"] = np.nan
    file = entries[1].run.path / "judgements/gold-two-turns.parquet"
    write_table(file, pa.Table.from_pandas(scores, preserve_index=False))
    read = read_evaluation(
        entries, {"two-turns": {"greedy": "greedy"}}, ["gold"], "DPO", {"two-turns": 2}
    )
    judged = read.judged.query("method == 'PLC-DPO'").set_index("prompt_id")["reward"]
    assert judged.isna().to_dict() == {"a": True, "b": False}


def test_a_server_takes_part_under_its_own_name(runs, tmp_path):
    prompts = prompts_file(tmp_path, 4)
    with serving("openai", lambda body: ("then chop it .", None)) as server:
        run = create_run(tmp_path, "server", {"kind": "analysis", "config": {"model": "world"}})
        policy = ServerPolicy(ChatServer("m", f"{server.url}/v1", "openai"), "some weights")
        entries = [*contestants({"DPO": runs["DPO"]}), Contestant("Server", run, policy=policy)]
        config = EvaluationConfig(benchmarks=[str(prompts)], max_new_tokens=64)
        table = evaluate_runs(entries, config).results()
    own = table[table["method"] == "Server"]
    assert set(own["n"]) == {4}
    assert own["kl"].isna().all()
    assert own["control"].isna().all()


# ---- what cannot be compared ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda table: table.slice(2), "2 of 24 are missing"),
        (lambda table: table.take([0, *range(table.num_rows)]), "1 rows twice"),
    ],
)
def test_scores_that_do_not_meet_are_a_sentence(runs, change, sentence):
    """Read from files that were spoilt: no table over silently fewer rows."""
    evaluate_runs(contestants(runs), CONFIG)
    path = runs["PLC-DPO"].path / "judgements" / "gold-world.parquet"
    table = pq.read_table(path)
    mask = [p == "trained" and d == "greedy" for p, d in zip(
        table["policy"].to_pylist(), table["decoding"].to_pylist(), strict=True)]  # fmt: skip
    own = change(table.filter(mask))
    write_table(path, own)
    labels = {"world": {"greedy": "greedy"}}
    with pytest.raises((RunError, JoinError), match=sentence):
        read_evaluation(contestants(runs), labels, ["gold"], "DPO", {"world": 24}).cells()


def test_a_missing_score_is_refused_or_counted(runs):
    evaluate_runs(contestants(runs), CONFIG)
    path = runs["PLC-DPO"].path / "judgements" / "gold-world.parquet"
    table = pq.read_table(path).to_pandas()
    spoilt = table.index[(table["policy"] == "trained") & (table["decoding"] == "greedy")][:3]
    table.loc[spoilt, "reward"] = np.nan
    write_table(path, pa.Table.from_pandas(table, preserve_index=False))
    labels = {"world": {"greedy": "greedy"}}
    read = (contestants(runs), labels, ["gold"], "DPO", {"world": 24}, ())
    with pytest.raises(JoinError, match=r"method PLC-DPO, seed 0: 3 of 24 rewards are NaN"):
        read_evaluation(*read).cells()
    cells = read_evaluation(*read, "common").cells().set_index("method")
    assert cells.loc["PLC-DPO", "n"] == 21
    assert "3 without a number; over 21 of 24 prompts" in cells.loc["PLC-DPO", "note"]
    assert cells.loc["DPO β=0.1", "note"] == ""


def test_runs_that_mean_nothing_together_are_a_sentence(runs, tmp_path):
    with pytest.raises(RunError, match="no runs to compare"):
        evaluate_runs([], CONFIG)
    with pytest.raises(RunError, match="PLC-DPO has no DPO beside it on pairs, world, seed 0"):
        evaluate_runs(contestants({"PLC-DPO": runs["PLC-DPO"]}), CONFIG)
    entries = contestants(runs)
    with pytest.raises(RunError, match="DPO is there twice for pairs, world, seed 0"):
        evaluate_runs([*entries, entries[0]], CONFIG)
    runs["PLC-DPO"].update_info(data=runs["PLC-DPO"].info["data"] | {"fingerprint": "other"})
    with pytest.raises(RunError, match="have not the same pairs"):
        evaluate_runs(contestants(runs), CONFIG)
    runs["DPO"].update_info(trained_steps=None)
    with pytest.raises(RunError, match="is not trained to its end"):
        evaluate_runs(contestants(runs), CONFIG)


def spoil(path):
    path.write_bytes(path.read_bytes()[:-200])


def test_damaged_files_are_made_again_or_a_sentence(runs, tmp_path):
    entries = contestants(runs)
    config = EvaluationConfig(benchmarks=[str(prompts_file(tmp_path, 24))], max_new_tokens=64)
    before = evaluate_runs(entries, config).results()
    folder = runs["PLC-DPO"].path
    for name in ("judgements/gold-mine", "generations/mine-log-probs"):
        spoil(folder / f"{name}.parquet")
        pd.testing.assert_frame_equal(evaluate_runs(entries, config).results(), before)
    spoil(folder / "generations/mine.parquet")
    with pytest.raises(RunError, match=r"mine.parquet cannot be read.*delete it and make it anew"):
        evaluate_runs(entries, config)
    (folder / "generations/mine.parquet").unlink()
    pd.testing.assert_frame_equal(evaluate_runs(entries, config).results(), before)


def test_a_kl_over_fewer_answers_is_never_shown(runs, tmp_path):
    entries = contestants(runs)
    config = EvaluationConfig(benchmarks=[str(prompts_file(tmp_path, 24))], max_new_tokens=64)
    before = evaluate_runs(entries, config).kl()
    path = runs["PLC-DPO"].path / "generations/mine-log-probs.parquet"
    whole = pq.read_table(path)
    for spoilt in (whole.slice(5), whole.set_column(4, "policy_logp", [[None] * 24])):
        write_table(path, spoilt)
        labels = {"mine": {"greedy": "greedy", "sampled": "sampled T=1 seed=0"}}
        with pytest.raises(RunError, match="log-ratios, and 24 sampled answers were judged"):
            read_evaluation(entries, labels, ["gold"], "DPO", {"mine": 24})
    write_table(path, whole.slice(5))
    pd.testing.assert_frame_equal(evaluate_runs(entries, config).kl(), before)
    # Whichever of several judges saw other answers.
    folder = runs["PLC-DPO"].path / "judgements"
    for run in runs.values():
        name = run.path / "judgements" / "other-mine.parquet"
        write_table(name, pq.read_table(run.path / "judgements" / "gold-mine.parquet"))
    labels = {"mine": {"greedy": "greedy", "sampled": "sampled T=1 seed=0"}}
    spoilt = pq.read_table(folder / "other-mine.parquet").to_pandas()
    sampled = (spoilt["policy"] == "trained") & (spoilt["decoding"] == labels["mine"]["sampled"])
    kept = spoilt.drop(spoilt[sampled].index[:5])
    write_table(folder / "gold-mine.parquet", pa.Table.from_pandas(kept, preserve_index=False))
    with pytest.raises(RunError, match="19 sampled answers were judged by 'gold'"):
        read_evaluation(entries, labels, ["gold", "other"], "DPO", {"mine": 24})


@pytest.mark.parametrize("folder", ["generations", "judgements"])
def test_a_folder_that_cannot_be_made_is_a_sentence(runs, tmp_path, folder):
    path = runs["DPO"].path / folder
    subprocess.run(["rm", "-rf", str(path)], check=True)
    path.write_text("a file in its place")
    with pytest.raises(RunError, match=f"The folder .*{folder} cannot be made: File exists"):
        evaluate_runs(contestants(runs), CONFIG)


def test_two_evaluations_at_once_are_one_and_a_sentence(runs):
    with (
        runs["PLC-DPO"].running("generating"),
        pytest.raises(RunError, match="Another process is at work on the run 'run2'"),
    ):
        evaluate_runs(contestants(runs), EvaluationConfig(eval_prompts=25))
    table = evaluate_runs(contestants(runs), EvaluationConfig(eval_prompts=25)).results()
    assert set(table["n"]) == {25}


def test_the_subset_for_commercial_judges_is_the_first_and_its_answers_are_there(runs, tmp_path):
    """The same file with a limit: nothing is answered again, and the verdicts are of its start."""
    path = prompts_file(tmp_path, 24)
    entries = contestants(runs)
    whole = EvaluationConfig(benchmarks=[str(path)], max_new_tokens=64, decodings=["greedy"])
    evaluate_runs(entries, whole)
    with serving("openai", lambda body: ("[[B]]", None)) as server:
        first = whole.model_copy(
            update={"prompt_limit": 10, "pairwise_judges": [f"openai:m@{server.url}/v1"]}
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("plc_core.engine.sampling.generate_batch", None)
            evaluation = evaluate_runs(entries, first)
    assert set(evaluation.verdict_cells()["n"]) == {10}
    ids = [json.loads(line)["id"] for line in path.read_text().splitlines()][:10]
    stored = runs["PLC-DPO"].table("judgements/m-mine-first-10-against-run0.parquet")
    assert stored["prompt_id"].tolist() == ids


def test_benchmarks_and_judges_that_are_none_are_a_sentence(unanswered, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    runs, entries = unanswered, contestants(unanswered)
    with pytest.raises(DataError):
        evaluate_runs(entries, EvaluationConfig(benchmarks=[str(tmp_path / "empty.jsonl")]))
    with pytest.raises(RunError, match="have one name"):
        evaluate_runs(entries, EvaluationConfig(benchmarks=["world", "world"]))
    judges = ["openai:m@http://127.0.0.1:9/v1", "openai:m@http://127.0.0.1:9/v2"]
    for asked in ({"judges": judges}, {"pairwise_judges": judges}):
        with pytest.raises(RunError, match=r"Two of the judges .* have one name in files, 'm'"):
            evaluate_runs(entries, EvaluationConfig(eval_prompts=24, **asked))
    # Before anything was answered.
    assert not any((run.path / "generations").exists() for run in runs.values())
    with pytest.raises(RunError, match="needs an address"):
        evaluate_runs(entries, EvaluationConfig(eval_prompts=24, judges=["openai:some"]))
    with pytest.raises(RunError, match="two side by side need an LLM judge"):
        evaluate_runs(entries, EvaluationConfig(eval_prompts=24, pairwise_judges=["gold"]))
