"""What damage does to a run, its checkpoints and the cache: nothing damaged is used in silence.

One bit of the payload flips, a file is cut in half, 64 bytes become zeros, or it is gone. A file of
a run or a checkpoint then ends in a sentence with its name and what to do; an entry of the cache is
made anew, and what is read from it is what was read before.
"""

import contextlib
import json
import re
import shutil
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transformers
from health import damage as damage_of
from inspection.digest import digest
from inspection.pair import read_pair, read_visits, snippets
from inspection.results import results_of

from plc_core import TrainConfig, evaluate, train
from plc_core.data import DataError, load_pairs
from plc_core.data.world import CHECKPOINT as WORLD_MODEL
from plc_core.engine.checkpoints import last_checkpoint, load_trained
from plc_core.engine.forward.packing import PairCollator, StepCollator
from plc_core.engine.models import load as models
from plc_core.engine.models import model_files
from plc_core.engine.models.load import ModelError, load_policy, load_tokenizer
from plc_core.engine.reference import with_reference
from plc_core.engine.row_sources import WorldSource
from plc_core.engine.tokens.tokenized import tokenize_pairs
from plc_core.evaluation.chain import evaluate_runs
from plc_core.evaluation.completeness import (
    EvaluationConfig,
    is_answered,
    is_judged,
    kept_verdicts,
    open_bench,
)
from plc_core.evaluation.judges import compare_generations
from plc_core.evaluation.judges.judgements import Verdict
from plc_core.evaluation.judges.named import named_judge
from plc_core.evaluation.methods import Contestant
from plc_core.label_audit.hidden_states import hidden_differences
from plc_core.progress import Progress
from plc_core.runs import open_run
from plc_core.runs.alerts import WITHOUT_CHECKSUMS
from plc_core.runs.cleaned import export_cleaned
from plc_core.runs.decisions import decide, read_decisions
from plc_core.runs.listing import list_runs
from plc_core.storage.cache import ContentStore, cached_folder
from plc_core.storage.checksums import opened_line, sealed_line
from plc_core.storage.files import RunError, read_json, write_json, write_table
from plc_core.storage.paths import cache_dir
from tests.paths import ROOT

DAMAGES = ("flip", "cut", "zeros", "removal")


def hurt(path, damage):
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2
    if damage == "removal":
        path.unlink()
        return
    if damage == "flip":
        raw[middle] ^= 1
    elif damage == "cut":
        del raw[middle:]
    elif damage == "seal":  # the mark of its checksum, and the first bytes behind it
        place = raw.index(b"PLC-CRC")
        raw[place : place + 12] = bytes(12)
    else:
        raw[middle - 32 : middle + 32] = bytes(len(raw[middle - 32 : middle + 32]))
    path.write_bytes(raw)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Two epochs of three steps with three checkpoints, answers and their rewards."""
    folder = tmp_path_factory.mktemp("damage")
    run = train(
        TrainConfig(
            name="whole", runs_dir=str(folder), num_pairs=20, epochs=2.0, batch_pairs=8,
            pairs_per_forward=4, save_steps=2, flip_rate=0.3, learning_rate=1e-3,
        )
    )  # fmt: skip
    evaluate(run, prompts=8)
    return run.path


@pytest.fixture
def run(trained, tmp_path):
    """A copy to damage."""
    shutil.copytree(trained, tmp_path / "whole")
    return open_run(tmp_path / "whole")


# ---- a run --------------------------------------------------------------------------------------

READERS = {
    "run.json": lambda run: open_run(run.path),
    "status.json": lambda run: run.status,
    "metrics.parquet": lambda run: run.metrics(),
    "pairs.parquet": lambda run: run.pairs(),
    "findings.parquet": lambda run: run.findings(),
    "visits/00000002-00000003.parquet": lambda run: run.visits(),
    "generations/world.parquet": lambda run: run.table("generations/world.parquet"),
    "judgements/gold-world.parquet": lambda run: run.table("judgements/gold-world.parquet"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_of_a_run_is_a_sentence(run, name, damage):
    READERS[name](run)
    hurt(run.path / name, damage)
    named = "visits" if damage == "removal" and name.startswith("visits") else name
    with pytest.raises(RunError, match=re.escape(named)):
        READERS[name](run)


def test_results_that_are_gone_are_a_sentence_and_not_blank(run):
    """In the list of runs too, which reads no more of a run than its results."""
    before = results_of(run)
    assert np.isfinite(list(before.values())).all()
    (listed,) = list_runs(run.path.parent)
    tables = [run.path / "metrics.parquet", *run.path.glob("generations/*.parquet"),
              *run.path.glob("judgements/*.parquet")]  # fmt: skip
    assert len(tables) == 4
    for path in tables:
        raw = path.read_bytes()
        path.unlink()
        with pytest.raises(RunError, match=f"{path.name} is missing.*Put a copy of it back"):
            results_of(run)
        assert path.name in str(damage_of(listed))
        path.write_bytes(raw[: len(raw) // 2])
        with pytest.raises(RunError, match=f"{path.name} cannot be read: it is cut short"):
            results_of(run)
        assert f"{path.name} is cut short" in str(damage_of(listed))
        path.unlink()
        path.write_bytes(raw)
        assert damage_of(listed) is None and results_of(run) == before
    for path in tables[1:]:  # as the sentence says
        path.unlink()
        path.with_suffix(".json").unlink()
    assert damage_of(listed) is None
    assert results_of(run)["accuracy"] == before["accuracy"]


EARLIER = [
    "metrics.parquet",
    "judgements/gold-world.parquet",
    "generations/world-log-probs.parquet",
]


@pytest.mark.parametrize("name", EARLIER)
def test_an_earlier_copy_of_results_is_a_sentence(run, name):
    """Of fewer steps, or of fewer prompts: whole, of this run, and in its place."""
    before, path = results_of(run), run.path / name
    whole = pq.read_table(path)
    write_table(path, whole.take(list(range(0, whole.num_rows, 2))))
    for use in [results_of, *([type(run).metrics] if name == "metrics.parquet" else [])]:
        with pytest.raises(RunError, match=f"{re.escape(name)} .* earlier copy.*Put a copy of it"):
            use(run)
    write_table(path, whole)
    assert results_of(run) == before


REMEDIES = {
    "status.json": "go on with the run .*resume true",
    "metrics.parquet": "its run by the same command under another name",
    "visits/00000002-00000003.parquet": "its run by the same command under another name",
    "generations/world.parquet": "by evaluating again",
    "judgements/gold-world.parquet": "by evaluating again",
}


@pytest.mark.parametrize("name", REMEDIES)
def test_the_sentence_on_what_is_missing_names_the_file_and_what_can_be_done(run, name):
    (run.path / name).unlink()
    folder, file = map(re.escape, (str((run.path / name).parent), name.rpartition("/")[2]))
    said = rf"{folder}.*{file} is missing.*Put a copy of it back; without one, .*{REMEDIES[name]}"
    with pytest.raises(RunError, match=said):
        READERS[name](run)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_status_of_a_trained_run_is_mended_as_its_sentence_says(run, damage):
    hurt(run.path / "status.json", damage)
    config = run.info["config"] | {"resume": True, "runs_dir": str(run.path.parent)}
    visits = run.visits()
    again = train(TrainConfig(**config))
    assert again.status["state"] == "done"
    pd.testing.assert_frame_equal(again.visits(), visits)


def test_pairs_that_are_gone_are_not_pairs_that_one_has_not(run):
    pair = str(run.pairs()["pair_id"].iloc[0])
    with pytest.raises(RunError, match=r"pairs\.parquet has no pair 'x'"):
        run.pair("x")
    (run.path / "pairs.parquet").unlink()
    uses = (
        lambda: run.pair(pair),
        lambda: decide(run, pair, "keep"),
        lambda: digest(run),
        lambda: export_cleaned(run),
    )
    for use in uses:
        with pytest.raises(
            RunError, match=r"pairs\.parquet (is missing|cannot .* there). Put a co"
        ):
            use()


class Longer:
    """A pairwise judge that likes length."""

    name = "longer"
    record: ClassVar = {"kind": "length"}

    def compare(self, answers, others, progress=None):
        pairs = zip(answers["response"], others["response"], strict=True)
        return [Verdict("A" if len(a) > len(b) else "B", swapped=False) for a, b in pairs]


EVALUATED = [
    f"{stem}.{kind}"
    for stem in ("generations/world", "judgements/gold-world",
                 "judgements/longer-world-against-base")
    for kind in ("parquet", "json")
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::plc_core.evaluation.judges.JudgeWarning")
@pytest.mark.parametrize("name", EVALUATED)
def test_damaged_answers_scores_and_verdicts_are_made_anew_or_a_sentence(run, tmp_path, name):
    base = open_run(shutil.copytree(run.path, tmp_path / "base"))
    answers = base.path / "generations" / "world.parquet"
    table = pq.read_table(answers).to_pandas()
    write_table(answers, pa.Table.from_pandas(table.assign(response="well"), preserve_index=False))
    judge, gold, kinds = Longer(), named_judge("gold"), ("greedy", "sampled")
    bench = open_bench("world", EvaluationConfig(eval_prompts=8))

    def compare():
        for kind in kinds:
            compare_generations(run, "world", judge, base, decoding=kind)

    def verdicts():
        return [kept_verdicts(run, "world", judge, base, kind) for kind in kinds]

    compare()
    before = verdicts()
    readers = {
        "generations": lambda: is_answered(run, bench, ("trained", "reference")) or None,
        "gold": lambda: is_judged(run, "world", gold) or None,
        "longer": lambda: None if any(v is None for v in verdicts()) else True,
    }
    (read,) = (use for part, use in readers.items() if part in name)
    assert read()
    raw = (run.path / name).read_bytes()
    for damage in (*DAMAGES, "seal") if name.endswith("parquet") else DAMAGES:
        hurt(run.path / name, damage)
        with contextlib.suppress(RunError):
            assert read() is None, damage
        if "longer" in name:
            compare()
            for found, expected in zip(verdicts(), before, strict=True):
                pd.testing.assert_frame_equal(found, expected)
        (run.path / name).write_bytes(raw)


@pytest.mark.parametrize("name", ["metrics.parquet", "visits/00000002-00000003.parquet"])
def test_every_flipped_bit_of_a_table_is_found(run, name):
    path = run.path / name
    raw = path.read_bytes()
    for place in np.random.default_rng(0).integers(0, 8 * len(raw), 200).tolist():
        hit = bytearray(raw)
        hit[place // 8] ^= 1 << place % 8
        path.write_bytes(hit)
        with pytest.raises(RunError, match=re.escape(name)):
            READERS[name](run)


def test_every_flipped_bit_of_a_record_is_found(run):
    path = run.path / "run.json"
    raw = path.read_bytes()
    for place in range(0, 8 * len(raw), 41):
        hit = bytearray(raw)
        hit[place // 8] ^= 1 << place % 8
        path.write_bytes(hit)
        try:
            assert open_run(run.path).info == run.info
        except RunError as error:
            assert "run.json" in str(error)


def test_every_flipped_bit_of_the_checksum_of_a_record_is_found_or_changes_nothing(run):
    path = run.path / "run.json"
    raw = path.read_bytes()
    start = raw.rindex(b"checksum")
    for place in range(8 * (start - 8), 8 * len(raw)):
        hit = bytearray(raw)
        hit[place // 8] ^= 1 << place % 8
        path.write_bytes(hit)
        if start <= place // 8 < start + len(b"checksum"):
            with pytest.raises(RunError, match=r"run\.json"):
                open_run(run.path)
            continue
        with contextlib.suppress(RunError):
            assert open_run(run.path).info == run.info


def test_a_record_that_an_editor_wrote_anew_is_read(run):
    path = run.path / "run.json"
    content = json.loads(path.read_text())
    for form in (content, {k: v for k, v in content.items() if k != "checksum"}):
        path.write_text(json.dumps(form, indent=4))
        again = open_run(run.path)
        assert again.info == run.info
        pd.testing.assert_frame_equal(again.metrics(), run.metrics())
    again.update_info(looked_at=True)
    hurt(path, "flip")
    with pytest.raises(RunError, match=r"run\.json"):
        open_run(run.path)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_status_is_written_anew_by_who_works_on_the_run(run, damage):
    hurt(run.path / "status.json", damage)
    with run.running("evaluating"):
        assert run.status["state"] == "running"
    assert run.status["state"] == "done"


@pytest.mark.parametrize("damage", DAMAGES[:3])
def test_a_damaged_decision_is_a_sentence(run, damage):
    pair = str(run.pairs()["pair_id"].iloc[0])
    decide(run, pair, "flip")
    decide(run, pair, "keep", "read twice")
    path = run.path / "decisions" / "decisions.jsonl"
    hurt(path, damage)
    with pytest.raises(RunError, match=r"decisions\.jsonl"):
        read_decisions(run)


def test_a_line_says_when_it_was_changed():
    line = sealed_line({"decision": "flip", "note": "é"})
    assert opened_line(line) == ({"decision": "flip", "note": "é"}, True)
    with pytest.raises(ValueError, match="its checksum is of something else"):
        opened_line(line.replace("flip", "keep"))
    older = '{"decision": "flip"}'
    assert opened_line(older) == ({"decision": "flip"}, False)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_pairs_are_not_exported(run, damage):
    hurt(run.path / "pairs.parquet", damage)
    with pytest.raises(RunError, match=r"pairs\.parquet"):
        export_cleaned(run)
    assert not (run.path / "decisions" / "cleaned.parquet").exists()


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_damaged_export_is_a_sentence(run, tmp_path, form):
    """Also where it was moved to, if what lies beside it goes with it."""
    decide(run, str(run.pairs()["pair_id"].iloc[0]), "flip")
    path, _ = export_cleaned(run, form)
    moved = shutil.copytree(path.parent, tmp_path / "moved")
    for file in (path, moved / path.name):
        expected = load_pairs(file).table
        whole = file.read_bytes()
        places = range(5, len(whole), len(whole) // 12)
        said = rf"{re.escape(str(file))}.*( damaged|cannot be read|beside it)"
        for place in places:
            hit = bytearray(whole)
            hit[place] ^= 1
            for damaged in (hit, whole[:place], whole[:place] + bytes(64) + whole[place + 64 :]):
                file.write_bytes(damaged)
                # Where nothing but the mark of the checksum was hit, the rows are what they were.
                with contextlib.suppress(DataError):
                    assert load_pairs(file).table == expected
                    mark = whole.find(b"PLC-CRC\n")
                    assert mark - 64 <= place < mark + 8
                    continue
                with pytest.raises(DataError, match=said):
                    load_pairs(file)
        file.write_bytes(whole)
        assert load_pairs(file).table == expected


def test_an_export_of_json_lines_may_be_edited_and_be_checked_by_others(run, tmp_path):
    path, _ = export_cleaned(run, "jsonl")
    beside = path.with_name("cleaned.jsonl.sha256")
    check = ["sha256sum", "--check", "--strict", beside.name]
    assert subprocess.run(check, cwd=path.parent, capture_output=True).returncode == 0
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))
    with pytest.raises(DataError, match=r"damaged, or was edited.*meant to be so, delete clean"):
        load_pairs(path)
    beside.unlink()
    assert load_pairs(path).rows_read == 5
    export_cleaned(run, "jsonl")
    assert load_pairs(path).rows_read == 20
    odd = tmp_path / "odd.jsonl"
    shutil.copy(path, odd)
    for text in ("", "no digest", "0" * 64, f"{'0' * 64}  other.jsonl\n"):  # of others' making
        odd.with_name("odd.jsonl.sha256").write_text(text)
        assert load_pairs(odd).rows_read == 20


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["pairs.parquet", "visits/00000002-00000003.parquet"])
def test_the_inspector_reads_nothing_damaged(run, name, damage):
    found = digest(run)
    row = int(np.flatnonzero(found.table["visits"].to_numpy() > 0)[0])
    hurt(run.path / name, damage)
    with pytest.raises(RunError, match=re.escape(name.partition("/")[0])):
        digest(run)
    if name.startswith("visits"):
        with pytest.raises(RunError, match=r"visits/00000002-00000003\.parquet"):
            for row in range(found.size):
                read_visits(found, row)
    else:
        for read in (read_pair, lambda found, row: snippets(found.run, np.array([row]))):
            with pytest.raises(RunError, match=r"pairs\.parquet.*Put a copy of it back"):
                read(found, row)


def older(run):
    """The run as versions without checksums, and without ids of runs, left it."""
    for path in run.path.rglob("*.parquet"):
        pq.write_table(pq.read_table(path), path, compression="zstd")
    for path in [*run.path.rglob("*.json")]:
        content = json.loads(path.read_text())
        for name in ("checksum", "checksums", "run_id"):
            content.pop(name, None)
        path.write_text(json.dumps(content))
    for path in run.path.glob("checkpoints/*/checksums.json"):
        path.unlink()
    return open_run(run.path)


def test_a_run_of_an_older_version_is_read_goes_on_and_says_so(trained, run, caplog):
    run = older(run)
    assert not run.has_checksums
    whole = open_run(trained)
    pd.testing.assert_frame_equal(run.visits(), whole.visits())
    pd.testing.assert_frame_equal(run.metrics(), whole.metrics())
    info = read_json(run.path / "run.json")
    del info["trained_steps"]
    write_json(run.path / "run.json", info)
    shutil.rmtree(run.path / "checkpoints" / "checkpoint-6")
    config = info["config"] | {"resume": True, "runs_dir": str(run.path.parent)}
    again = train(TrainConfig(**config))
    pd.testing.assert_frame_equal(again.visits(), whole.visits())
    assert WITHOUT_CHECKSUMS in caplog.messages
    assert again.status["alerts"][0] == WITHOUT_CHECKSUMS


# ---- a checkpoint -------------------------------------------------------------------------------

OF_MODEL = ["model.safetensors", "config.json", "tokenizer.json"]
CHECKPOINT = [*OF_MODEL, "plc_state.json", "trainer_state.json", "optimizer.pt", "scheduler.pt",
              "rng_state.pth", "training_args.bin", "checksums.json"]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", CHECKPOINT)
def test_a_damaged_checkpoint_is_not_gone_on_from(run, name, damage):
    checkpoint = last_checkpoint(run)
    hurt(checkpoint / name, damage)
    with pytest.raises(RunError, match=f"{re.escape(name)} is damaged or missing. Delete the fol"):
        last_checkpoint(run)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", OF_MODEL)
def test_a_damaged_policy_does_not_answer(run, name, damage):
    hurt(last_checkpoint(run) / name, damage)
    with pytest.raises(RunError, match=f"{re.escape(name)} is damaged or missing"):
        load_trained(run)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", OF_MODEL)
def test_a_damaged_copy_of_a_checkpoint_is_no_model(run, tmp_path, name, damage):
    copy = shutil.copytree(last_checkpoint(run), tmp_path / "copy")
    hurt(copy / name, damage)
    for use in (load_policy, load_tokenizer):
        with pytest.raises(
            ModelError, match=f"{re.escape(name)} is damaged or missing.*Put a copy"
        ):
            use(str(copy))


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors", "vocab.json"])
def test_a_file_that_came_into_a_checkpoint_is_not_loaded(run, tmp_path, name):
    checkpoint = last_checkpoint(run)
    (checkpoint / "notes.md").write_text("of mine")
    load_trained(run)
    (checkpoint / name).write_text("{}")
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    said = rf"{re.escape(name)} is not in checksums\.json beside it.* Take it out of the folder"
    for use in (last_checkpoint, load_trained):
        with pytest.raises(RunError, match=said):
            use(run)
    with pytest.raises(ModelError, match=said):
        load_policy(str(copy))


def test_adapters_that_an_older_checkpoint_lacks_are_a_sentence(run):
    checkpoint = last_checkpoint(older(run))
    config = {"peft_type": "LORA", "base_model_name_or_path": "world", "target_modules": ["q_proj"]}
    (checkpoint / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match=r"The adapters in .* cannot be loaded.* Delete the folder"):
        load_trained(open_run(run.path))


def test_a_run_whose_checkpoints_are_gone_says_what_can_be_done(run):
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(RunError, match=r"there is none in .*checkpoints\. Put a copy of it back"):
        load_trained(run)


# ---- the model that a run began from -------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "checksums.json"])
def test_a_damaged_model_of_the_embedded_world_is_not_loaded(monkeypatch, tmp_path, name, damage):
    copy = shutil.copytree(WORLD_MODEL, tmp_path / "checkpoint")
    for module in (models, model_files):
        monkeypatch.setattr(module, "CHECKPOINT", copy)
    load_policy("world")
    hurt(copy / name, damage)
    with pytest.raises(ModelError, match=f"{re.escape(name)} is damaged.*install plc_core again"):
        load_policy("world")


def test_adapters_answer_on_the_model_that_they_were_trained_on_alone(own_cache, tmp_path, caplog):
    base = shutil.copytree(WORLD_MODEL, tmp_path / "base")
    (base / "checksums.json").unlink()  # as of another's making
    weights = base / "model.safetensors"
    settings = {
        "name": "adapters", "runs_dir": str(tmp_path), "model": str(base), "lora_rank": 4,
        "num_pairs": 20, "epochs": 2.0, "batch_pairs": 8, "pairs_per_forward": 4, "save_steps": 2,
    }  # fmt: skip
    run = train(TrainConfig(**settings))
    entries, few = [Contestant("DPO", run)], EvaluationConfig(eval_prompts=4)
    evaluate_runs(entries, few)
    before, raw = run.table("generations/world.parquet"), weights.read_bytes()
    hurt(weights, "flip")
    said = rf"'adapters' began from .* in {re.escape(str(base))} are others now.*Put a copy of that"
    evaluate_runs(entries, few)  # asks it nothing
    for use in (
        lambda: load_trained(run),
        lambda: evaluate_runs(entries, EvaluationConfig(eval_prompts=6)),
    ):
        with pytest.raises(RunError, match=said):
            use()
    pd.testing.assert_frame_equal(run.table("generations/world.parquet"), before)
    run.update_info(versions=run.info["versions"] | {"transformers": "4.0.0"})
    load_trained(run)  # in whose words the same model may have another hash
    assert "its hash was" in caplog.messages[-1] and "under transformers 4.0.0" in caplog.text
    run.update_info(versions=run.info["versions"] | {"transformers": transformers.__version__})
    shutil.rmtree(run.path / "checkpoints" / "checkpoint-6")
    resumed = TrainConfig(**settings, resume=True)
    with pytest.raises(RunError, match=said):
        train(resumed)
    weights.write_bytes(raw)
    train(resumed)
    load_trained(open_run(run.path))


def test_answers_of_another_start_are_made_anew(run):
    bench = open_bench("world", EvaluationConfig(eval_prompts=8))
    both = ("trained", "reference")
    assert is_answered(run, bench, both)
    path = run.path / "generations" / "world.json"
    record = read_json(path)
    record["reference, greedy"]["policy"]["model"] = "0" * 16
    write_json(path, record)
    assert not is_answered(run, bench, both)
    before = run.table("generations/world.parquet")
    evaluate(run, prompts=8)
    assert is_answered(run, bench, both)
    after = run.table("generations/world.parquet")
    order = {"by": ["policy", "decoding", "prompt_id"], "ignore_index": True}
    pd.testing.assert_frame_equal(after.sort_values(**order), before.sort_values(**order))


# ---- the cache ----------------------------------------------------------------------------------


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLC_CACHE", str(tmp_path / "cache"))


class Uses:
    """What is read from each kind of entry, from a few pairs."""

    def __init__(self, folder, run):
        self.folder, self.run = folder, run
        self.policy, self.tokenizer = load_policy("world")
        rows = [
            {"prompt": f"cook soup . {verb} chop .", "chosen": "then chop it .", "rejected": end}
            for verb in ("skip", "cover")
            for end in ("well , so", "then boil it .")
        ]
        self.file = folder / "pairs.jsonl"
        self.file.write_text("\n".join(map(json.dumps, rows)))

    def pairs(self):
        return load_pairs(self.file).table.to_pylist()

    def tokens(self):
        return tokenize_pairs(load_pairs(self.file), self.tokenizer, 64).dataset

    def reference(self):
        collator = StepCollator(PairCollator(64), 4)
        found, _ = with_reference(
            self.tokens(), self.policy, cache_dir(), collator, False, Progress()
        )
        return found[:]

    def world_pairs(self):
        source = WorldSource((self.policy, self.tokenizer))
        return source.pairs(4, 0, Progress()).table.to_pylist()

    def hidden_states(self):
        collator = StepCollator(PairCollator(64), 4)
        layers = hidden_differences(self.tokens(), self.policy, collator, False, Progress())
        return {n: [block.tolist() for _, block in rows()] for n, rows in layers.items()}

    def inspector(self):
        found = digest(self.run)
        return found.table.to_pylist(), found.steps().to_dict("records"), found.places(3)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "kind",
    ["pairs", "tokens", "reference", "world_pairs", "hidden_states", "inspector"],
)
def test_a_damaged_entry_of_the_cache_is_made_anew(own_cache, tmp_path, run, kind, damage):
    uses = Uses(tmp_path, run)
    use = getattr(uses, kind)
    before = use()
    before = before[:] if kind == "tokens" else before
    kept = [p for p in (cache_dir() / kind).rglob("*") if p.is_file() and p.suffix != ".lock"]
    assert kept
    for path in kept:
        if not path.exists():  # a part that gave way to a new one
            continue
        hurt(path, damage)
        after = use()
        assert repr(after[:] if kind == "tokens" else after) == repr(before), path


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_answer_or_verdict_is_asked_for_again(own_cache, damage):
    schema = pa.schema({"key": pa.string(), "verdict": pa.string()})
    store = ContentStore("verdicts", {"judge": "a"}, schema)
    store.add([{"key": "first", "verdict": "A"}])
    [part] = store.folder.glob("*.parquet")
    store.add([{"key": "second", "verdict": "B"}])
    hurt(part, damage)
    again = ContentStore("verdicts", {"judge": "a"}, schema)
    assert "first" not in again
    assert again["second"] == {"key": "second", "verdict": "B"}
    assert not part.exists()


def test_a_part_without_a_checksum_is_not_believed(own_cache):
    schema = pa.schema({"key": pa.string(), "verdict": pa.string()})
    store = ContentStore("verdicts", {"judge": "a"}, schema)
    store.add([{"key": "first", "verdict": "A"}])
    [part] = store.folder.glob("*.parquet")
    pq.write_table(pq.read_table(part), part)
    assert "first" not in ContentStore("verdicts", {"judge": "a"}, schema)


def test_other_readers_read_a_table_with_a_checksum(tmp_path):
    import duckdb

    path = tmp_path / "table.parquet"
    write_table(path, pa.table({"a": [1, 2, 3]}))
    assert pd.read_parquet(path)["a"].tolist() == [1, 2, 3]
    assert duckdb.read_parquet(str(path)).fetchall() == [(1,), (2,), (3,)]


def test_two_processes_that_need_one_entry_make_it_once(tmp_path):
    code = """if True:
        import os, sys, time
        from pathlib import Path
        from plc_core.storage.cache import cached_folder
        def make(folder):
            time.sleep(0.5)
            (folder / "who").write_text(str(os.getpid()))
        print((cached_folder(Path(sys.argv[1]), make) / "who").read_text())"""
    command = [sys.executable, "-c", code, str(tmp_path / "entry")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(2)]
    first, second = (process.communicate()[0] for process in both)
    assert first == second != b""


def test_an_entry_that_cannot_be_made_leaves_nothing(tmp_path):
    def make(folder):
        (folder / "half").write_text("half")
        raise RunError("The disk is full.")

    with pytest.raises(RunError, match="disk is full"):
        cached_folder(tmp_path / "entry", make)
    assert [path.name for path in tmp_path.iterdir()] == ["entry.lock"]
    cached_folder(tmp_path / "entry", lambda folder: (folder / "whole").touch())
    assert (tmp_path / "entry" / "whole").exists()


# ---- places -------------------------------------------------------------------------------------


def test_a_runs_folder_may_be_a_link(tmp_path, trained):
    (tmp_path / "real").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "real")
    run = train(TrainConfig(name="linked", runs_dir=str(tmp_path / "runs"), num_pairs=4))
    assert (tmp_path / "real" / "linked" / "run.json").exists()
    assert open_run(tmp_path / "runs" / "linked").metrics()["step"].tolist() == [0]
    assert run.is_trained


def test_without_a_home_the_cache_is_where_it_is_told_to_be(tmp_path, monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("PLC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "plc_core"
