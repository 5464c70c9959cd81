"""Decisions on pairs: kept at once, never lost, and exported as pairs that load again."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path

import pandas as pd
import pytest

from plc_core.data import load_pairs
from plc_core.runs import Run, decisions, open_run
from plc_core.runs.cleaned import export_cleaned
from plc_core.runs.decisions import DECISIONS, Undone, decide, decide_all, read_decisions, undo
from plc_core.storage.checksums import opened_line, sealed_line
from plc_core.storage.files import RunError, read_json
from tests.fake_run import write_fake_run
from tests.rewritten import rewrite


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """40 pairs with votes."""
    return open_run(write_fake_run(tmp_path, "run", pairs=40, votes=True))


def _answers(path: Path) -> list[str]:
    return [turns[-1]["content"] for turns in pd.read_parquet(path)["chosen"]]


def pairs_of(run: Run) -> pd.DataFrame:
    return pd.read_parquet(run.path / "pairs.parquet")


def test_a_decision_is_on_disk_at_once_and_can_be_taken_back(run: Run) -> None:
    first, second = pairs_of(run)["pair_id"][:2]
    decide(run, first, "flip", "why: \ud800 $x$ \n line")
    decide(run, second, "drop")
    kept = read_decisions(open_run(run.path))
    assert (kept[first].decision, kept[first].note) == ("flip", "why: \ud800 $x$ \n line")
    assert kept[first].decided.endswith("+00:00")
    decide(run, first, None, "only a note")
    assert read_decisions(run)[first].decision is None
    assert set(decide(run, first, None)) == {second}


def test_an_unknown_decision_and_an_unknown_pair_are_refused(run: Run) -> None:
    known = pairs_of(run)["pair_id"][0]
    with pytest.raises(RunError, match="one of keep, flip, tie, drop"):
        decide(run, known, "delete")
    for unknown in ("nope", "", "\ud800"):
        with pytest.raises(RunError, match="has no pair"):
            decide(run, unknown, "keep")
        with pytest.raises(RunError, match="has no pair"):
            decide_all(run, [known, unknown], "keep")
    (run.path / "pairs.parquet").unlink()
    with pytest.raises(RunError, match=r"pairs\.parquet is missing. Put a copy of it back"):
        decide(run, known, "keep")
    assert not (run.path / "decisions").exists()


def test_a_broken_file_is_never_written_over(run: Run) -> None:
    one, two, three = pairs_of(run)["pair_id"][:3]
    decide(run, one, "keep")
    path = run.path / "decisions" / "decisions.jsonl"
    path.write_text(path.read_text() + f'{{"pair_id": "{two}", "decis\n')
    before = path.read_bytes()
    with pytest.raises(RunError, match="line 2, is damaged or no decision"):
        decide(run, three, "keep")
    assert path.read_bytes() == before


def test_links_are_left_alone(run: Run, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (run.path / "decisions").symlink_to(outside)
    with pytest.raises(RunError, match="leads outside"):
        decide(run, pairs_of(run)["pair_id"][0], "keep")
    with pytest.raises(RunError, match="leads outside"):
        export_cleaned(run)
    assert not list(outside.iterdir())


# ---- the log and how far it goes --------------------------------------------------------------


@pytest.fixture
def log(run: Run) -> Path:
    """The log of four decisions, on three pairs."""
    one, two, three = pairs_of(run)["pair_id"][:3]
    decide(run, one, "keep")
    decide(run, two, "flip", "read twice")
    decide(run, one, "drop")
    decide(run, three, "tie")
    return run.path / "decisions" / "decisions.jsonl"


def refused(run: Run, sentence: str) -> None:
    """Every use of the decisions ends in this sentence, and changes nothing."""
    log = run.path / "decisions" / "decisions.jsonl"
    before = log.read_bytes() if log.exists() else None
    for use in (read_decisions, lambda run: decide(run, pairs_of(run)["pair_id"][3], "keep"), undo,
                export_cleaned):  # fmt: skip
        with pytest.raises(RunError, match=sentence):
            use(run)
    assert before == (log.read_bytes() if log.exists() else None)


def test_a_log_that_ends_early_says_so(run: Run, log: Path) -> None:
    raw = log.read_bytes()
    kept = read_decisions(run)
    extent = log.with_name("decisions.lines.json")
    remedy = r"had 4 lines\. Put a copy of it back.*, delete decisions\.lines\.json"
    lines = raw.splitlines(keepends=True)
    for left in range(4):
        log.write_bytes(b"".join(lines[:left]))
        refused(run, rf"decisions\.jsonl ends after line {left}, and {remedy}")
        log.write_bytes(b"".join(lines[:left]) + lines[left][:-2])
        refused(run, rf"decisions\.jsonl ends after line {left}, and {remedy}")
    log.write_bytes(bytes(len(raw)))
    refused(run, rf"decisions\.jsonl ends after line 0, and {remedy}")
    log.unlink()
    refused(run, rf"decisions\.jsonl is missing, and {remedy}")
    log.write_bytes(raw)
    assert read_decisions(run) == kept
    # To go on with what is left is a person's word, by the way that the sentence says.
    log.write_bytes(b"".join(lines[:2]))
    extent.unlink()
    assert [d.decision for d in read_decisions(run).values()] == ["keep", "flip"]
    decide(run, pairs_of(run)["pair_id"][3], "tie")
    log.write_bytes(b"".join(lines[:2]))
    refused(run, "ends after line 2, and had 3 lines")
    log.unlink()
    extent.unlink()
    assert read_decisions(run) == {} and undo(run) is None


def test_lines_that_are_gone_doubled_or_moved_show_in_those_behind_them(
    run: Run, log: Path
) -> None:
    raw = log.read_bytes()
    a, b, c, d = raw.splitlines(keepends=True)
    for lines, said in (
        ((a, c, d, d), "line 2, was written as line 3"),
        ((a, b, b, c, d), "line 3, was written as line 2"),
        ((b, a, c, d), "line 1, was written as line 2"),
        ((a, b, d, c), "line 3, was written as line 4"),
    ):
        log.write_bytes(b"".join(lines))
        refused(run, rf"decisions\.jsonl, {said}: lines before it are gone, or came in.*Put a copy")
    log.write_bytes(b"".join((a, b"\n", c, d)))  # as the sentence says
    assert [d.decision for d in read_decisions(run).values()] == ["drop", "tie"]
    log.write_bytes(raw)
    assert len(read_decisions(run)) == 3


def test_a_kill_between_a_line_and_the_count_of_lines_is_no_error(run: Run, log: Path) -> None:
    extent = log.with_name("decisions.lines.json")
    fourth = pairs_of(run)["pair_id"][3]
    before = extent.read_bytes()
    decide(run, fourth, "keep")
    extent.write_bytes(before)  # the line was written, and then came the kill
    assert len(read_decisions(open_run(run.path))) == 4
    assert decide(run, fourth, "flip") == read_decisions(open_run(run.path))
    said = read_json(extent)
    assert said == {"lines": 6, "bytes": log.stat().st_size}
    raw = log.read_bytes()
    undo(run)
    log.write_bytes(raw)  # the count was lowered, and then came the kill
    assert read_decisions(open_run(run.path))[fourth].decision == "flip"
    undo(run)
    log.write_bytes(log.read_bytes() + b'{"pair_id": "')  # half a line, and then came the kill
    assert read_decisions(open_run(run.path))[fourth].decision == "keep"
    after = decide(run, fourth, "drop", "again")
    assert read_decisions(open_run(run.path)) == after
    assert opened_line(log.read_text().splitlines()[-1])[0].items() >= {"line": 7, "cut": 6}.items()
    assert undo(run) == Undone((fourth,), "drop")
    assert undo(run) == Undone((fourth,), "keep")
    assert len(read_decisions(run)) == 3


def test_a_damaged_count_of_lines_is_a_sentence_and_a_missing_one_made_anew(
    run: Run, log: Path
) -> None:
    extent = log.with_name("decisions.lines.json")
    raw = extent.read_bytes()
    hit = bytearray(raw)
    hit[len(raw) // 2] ^= 1
    for damaged in (bytes(hit), raw[: len(raw) // 2], bytes(len(raw)), b""):
        extent.write_bytes(damaged)
        decisions._read.clear()  # what is remembered of a log is what was in it
        refused(run, r"decisions\.lines\.json is damaged.*Put a copy of it back.*, and delete dec")
    shutil.copy(run.path / "status.json", extent)
    decisions._read.clear()
    refused(run, r"decisions\.lines\.json was written as status.json.*and delete dec")
    extent.unlink()
    assert len(read_decisions(run)) == 3
    decide(run, pairs_of(run)["pair_id"][3], "keep")
    assert read_json(extent)["lines"] == 5


def test_a_log_of_an_older_version_is_read_and_counted_from_the_next_line_on(
    run: Run, log: Path
) -> None:
    entries = [opened_line(line)[0] for line in log.read_text().splitlines()]
    older = [{k: v for k, v in entry.items() if k != "line"} for entry in entries]
    log.write_text("".join(map(sealed_line, older)))
    log.with_name("decisions.lines.json").unlink()
    assert len(read_decisions(run)) == 3
    decide(run, pairs_of(run)["pair_id"][3], "keep")
    assert len(read_decisions(open_run(run.path))) == 4
    log.write_text("".join(map(sealed_line, older)))
    refused(run, "ends after line 4, and had 5 lines")


def test_a_run_that_is_copied_or_renamed_keeps_its_log(run: Run, log: Path) -> None:
    shutil.copytree(run.path, run.path.parent / "copy")
    run.path.rename(run.path.parent / "renamed")
    for name in ("copy", "renamed"):
        again = open_run(run.path.parent / name)
        assert len(read_decisions(again)) == 3
        assert len(decide(again, pairs_of(again)["pair_id"][3], "keep")) == 4
        again.path.joinpath("decisions", "decisions.jsonl").unlink()
        refused(again, "is missing, and had 5 lines")


def _decide_many(path: Path, pair_ids: list[str]) -> None:
    for pair_id in pair_ids:
        decide(open_run(path), pair_id, "keep")


def test_two_processes_lose_nothing(run: Run) -> None:
    context = multiprocessing.get_context("spawn")
    ids = pairs_of(run)["pair_id"].tolist()
    parts = ids[:15], ids[15:30]
    workers = [context.Process(target=_decide_many, args=(run.path, part)) for part in parts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert len(read_decisions(run)) == 30


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_the_cleaned_pairs_load_again(run: Run, form: str) -> None:
    before = pairs_of(run)
    ids = before["pair_id"].tolist()
    for place, decision in ((0, "flip"), (1, "tie"), (2, "drop"), (3, "keep")):
        decide(run, ids[place], decision, "because\ud800")
    path, counts = export_cleaned(run, form)  # type: ignore[arg-type]
    assert {word: counts[word] for word in (*DECISIONS, "undecided")} == {
        "keep": 1, "flip": 1, "tie": 1, "drop": 1, "undecided": 36,
    }  # fmt: skip
    assert json.loads((run.path / "decisions" / "cleaned.json").read_text())["flip"] == 1
    loaded = load_pairs(path)
    assert len(loaded) == 39
    assert loaded.report().rows_read == 39
    rows = {json.loads(row["metadata"])["run_pair_id"]: row for row in loaded.dataset}
    assert ids[2] not in rows
    flipped, was = rows[ids[0]], before.iloc[0]
    assert (flipped["chosen"], flipped["rejected"]) == (was["rejected"], was["chosen"])
    assert flipped["score_chosen"] == was["score_rejected"]
    other = {"chosen": "rejected", "rejected": "chosen", "tie": "tie"}
    assert flipped["votes"] == [other[vote] for vote in was["votes"]]
    assert rows[ids[1]]["votes"] == ["tie"]
    assert "tied-votes" in rows[ids[1]]["marks"]
    kept, was = rows[ids[3]], before.iloc[3]
    assert kept["prompt"] == list(was["prompt"])
    assert (kept["chosen"], kept["source"], kept["split"]) == (was["chosen"], "world", "train")
    said = json.loads(kept["metadata"])
    assert (said["run"], said["decision"], said["note"]) == ("run", "keep", "because\\ud800")


def test_only_what_was_decided_may_be_exported(run: Run) -> None:
    first = pairs_of(run)["pair_id"][0]
    decide(run, first, "keep")
    path, counts = export_cleaned(run, undecided=False)
    assert pd.read_parquet(path)["run_pair_id"].tolist() == [first]
    assert (counts["undecided"], counts["restored"]) == (39, 0)


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_undecided_pairs_get_back_the_order_of_the_data(run: Run, form: str) -> None:
    before = pairs_of(run)
    swapped = before.loc[before["flipped"], "pair_id"].tolist()
    for pair_id, decision in zip(swapped, ("keep", "flip"), strict=False):
        decide(run, pair_id, decision)
    decide(run, swapped[2], None, "a note alone decides nothing")
    path, counts = export_cleaned(run, form)  # type: ignore[arg-type]
    assert counts["restored"] == len(swapped) - 2 > 3
    written = json.loads((run.path / "decisions" / "cleaned.json").read_text())
    assert (written["restored"], written["injected_ties"]) == (counts["restored"], 0)
    loaded = {json.loads(row["metadata"])["run_pair_id"]: row for row in load_pairs(path).dataset}
    other = {"chosen": "rejected", "rejected": "chosen", "tie": "tie"}
    for was in before.to_dict("records"):
        row, restored = loaded[was["pair_id"]], was["pair_id"] in swapped[2:]
        turned = restored or was["pair_id"] == swapped[1]
        one, two = ("rejected", "chosen") if turned else ("chosen", "rejected")
        assert (row["chosen"], row["rejected"]) == (was[one], was[two])
        assert (row["score_chosen"], row["score_rejected"]) == (
            was[f"score_{one}"],
            was[f"score_{two}"],
        )
        assert row["votes"] == [other[vote] if turned else vote for vote in was["votes"]]
        assert json.loads(row["metadata"])["restored"] is restored


def test_undecided_injected_ties_are_counted_and_marked(tmp_path: Path) -> None:
    run = open_run(write_fake_run(tmp_path, "ties", pairs=40, ties=6))
    decide(run, pairs_of(run)["pair_id"][0], "drop")
    path, counts = export_cleaned(run)
    assert counts["injected_ties"] == 5
    assert pd.read_parquet(path)["injected_tie"].sum() == 5
    assert export_cleaned(run, undecided=False)[1]["injected_ties"] == 0


def test_a_run_that_knows_no_markers_is_exported_as_it_is(run: Run) -> None:
    rewrite(run.path / "pairs.parquet", pairs_of(run).drop(columns="flipped"))
    path, counts = export_cleaned(run)
    assert counts["restored"] == 0
    assert _answers(path) == pairs_of(run)["chosen"].tolist()


def test_pairs_without_texts_cannot_be_exported(run: Run) -> None:
    rewrite(run.path / "pairs.parquet", pairs_of(run).drop(columns="chosen"))
    with pytest.raises(RunError, match=r"lacks the column\(s\) chosen"):
        export_cleaned(run)
    assert not list((run.path / "decisions").glob("cleaned*"))


def test_a_run_of_texts_is_exported_as_texts(run: Run) -> None:
    texts = pairs_of(run).assign(prompt="a question")
    rewrite(run.path / "pairs.parquet", texts)
    path, _ = export_cleaned(run)
    written = pd.read_parquet(path)
    assert set(written["prompt"]) == {"a question"}
    assert all(isinstance(text, str) for text in [*written["chosen"], *written["rejected"]])


def test_ties_are_marked_and_can_be_left_out(tmp_path: Path) -> None:
    run = open_run(write_fake_run(tmp_path, "ties", pairs=40, ties=6, flip_rate=0))
    ids = pairs_of(run)["pair_id"]
    decide(run, ids[0], "keep")
    decide(run, ids[9], "tie")
    path, counts = export_cleaned(run)
    marked = pd.read_parquet(path).set_index("run_pair_id")["tie"]
    assert set(marked.index[marked]) == {*ids[1:6], ids[9]}
    assert counts["ties"] == 6
    path, counts = export_cleaned(run, ties=False)
    assert set(pd.read_parquet(path)["run_pair_id"]) == {*ids} - {*ids[1:6], ids[9]}
    assert (counts["ties"], counts["injected_ties"]) == (6, 0)
    assert not json.loads(path.with_suffix(".json").read_text())["ties_kept"]


def test_an_export_of_an_export_has_the_new_decisions_alone(run: Run, tmp_path: Path) -> None:
    pairs = pairs_of(run).assign(metadata='{"id": 7, "decision": "their own"}')
    rewrite(run.path / "pairs.parquet", pairs)
    first, _ = export_cleaned(run)
    columns = pd.read_parquet(first)
    assert (columns["decision"][0], columns["plc_decision"][0]) == ("their own", "undecided")
    again = open_run(write_fake_run(tmp_path, "again", pairs=40))
    kept = load_pairs(first).table.to_pandas()[pairs.columns.intersection(["metadata", "prompt"])]
    rewrite(again.path / "pairs.parquet", pairs.assign(metadata=kept["metadata"]))
    columns = pd.read_parquet(export_cleaned(again)[0])
    assert set(columns["id"]) == {7}
    assert set(columns["run"]) == {"again"}


def test_every_decision_can_be_undone_back_to_the_first(run: Run) -> None:
    one, two, three = pairs_of(run)["pair_id"][:3]
    decide(run, one, "keep")
    decide(run, two, "flip", "a note")
    decide(run, one, "drop")
    decide_all(run, [one, two, three], "tie")
    assert [d.decision for d in read_decisions(run).values()] == ["tie"] * 3
    assert read_decisions(run)[two].note == "a note"
    # As in another process, which knows the file alone.
    read_decisions(open_run(run.path))
    assert undo(run) == Undone((one, two, three), "tie")
    assert {d.pair_id: d.decision for d in read_decisions(run).values()} == {
        one: "drop",
        two: "flip",
    }
    assert undo(run) == Undone((one,), "drop")
    assert read_decisions(run)[one].decision == "keep"
    assert undo(run) == Undone((two,), "flip")
    assert undo(run) == Undone((one,), "keep")
    assert read_decisions(run) == {}
    assert undo(run) is None


def test_what_changes_nothing_is_not_written(run: Run) -> None:
    first = pairs_of(run)["pair_id"][0]
    decide(run, first, "keep")
    size = (run.path / "decisions" / "decisions.jsonl").stat().st_size
    decide(run, first, "keep")
    decide_all(run, [first], "keep")
    assert (run.path / "decisions" / "decisions.jsonl").stat().st_size == size
