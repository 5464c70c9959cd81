"""What an audit is used for: mended pairs, a run folder, a blind check, priors in training."""

import dataclasses
import json
import re
import shlex
import shutil
import subprocess
import sys
from html import unescape

import numpy as np
import pandas as pd
import pytest
import yaml

import plc_core
from notebooks.audit_report import next_steps
from notebooks.evidence.estimates import read_study
from notebooks.studies import audit_gains
from notebooks.studies.audit_gains import SAME_KL
from plc_core import TrainConfig, flip_labels, load_pairs, train
from plc_core.cli import main
from plc_core.data import DataError
from plc_core.label_audit.blind_check import BlindCheck, draw, verified
from plc_core.label_audit.config import POLICIES, AuditConfig
from plc_core.label_audit.contradictions import questions, reconciled
from plc_core.label_audit.folder import KIND, AuditFolder, save_audit
from plc_core.label_audit.next_steps import (
    MEASURED,
    OBJECTIVES,
    REFUTED,
    advice,
    exported_to,
)
from plc_core.label_audit.other_models import run_margins
from plc_core.parameters import notebook_values
from plc_core.runs import create_run, open_run
from plc_core.storage.files import RunError
from plc_core.storage.logs import Extent, write_extent
from tests.paths import ROOT


def rows(count):
    """Preferred answers have good words; every row has an annotator."""
    rng = np.random.default_rng(0)
    good, bad, plain = ("precise clear exactly", "dunno whatever lol", "the a of to in and")

    def answer(words):
        return " ".join(rng.choice([*plain.split()] * 3 + words.split(), 12))

    return [
        {"prompt": f"question {n}", "chosen": f"{answer(good)} {n}",
         "rejected": f"{answer(bad)} {n}", "annotator": "ab"[n % 2], "id": n}
        for n in range(count)
    ]  # fmt: skip


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    clean = load_pairs(written(tmp_path_factory.mktemp("pairs") / "pairs.jsonl", rows(400)))
    return flip_labels(clean, 0.2, seed=1)


@pytest.fixture(scope="module")
def audited(noisy):
    return plc_core.audit(noisy, evidence=["words", "lengths"])


@pytest.fixture
def folder(audited, tmp_path):
    run = create_run(tmp_path, "mine", {"kind": KIND})
    save_audit(audited, run, ["source", "annotator"])
    return AuditFolder(open_run(run.path))


# ---- pairs as the audit leaves them -----------------------------------------------------------


def test_turned_labels_are_turned_in_training_too(audited, noisy):
    """Tokens are found by the order in which a pair was read: the marker turns with the sides."""
    turned = audited.cleaned("flip").dataset
    wrong = audited.probabilities > 0.5
    assert wrong.any()
    for mended, given, is_wrong in zip(turned, noisy.dataset, wrong, strict=True):
        assert (mended["chosen"] == given["rejected"]) == is_wrong
        assert (mended["flipped"] != given["flipped"]) == is_wrong
    assert np.mean(turned["flipped"]) < 0.05


def test_every_policy_tells_p_flip_of_the_label_as_it_stands(audited):
    p, wrong = audited.probabilities, audited.probabilities > 0.5
    told = {}
    for policy in ("flip", "weight", "prior"):
        metadata = audited.cleaned(policy).dataset["metadata"]
        told[policy] = np.array([json.loads(text)["p_flip"] for text in metadata])
    np.testing.assert_allclose(told["flip"], np.where(wrong, 1 - p, p), atol=1e-6)
    np.testing.assert_allclose(told["weight"], np.minimum(p, 0.5), atol=1e-6)
    np.testing.assert_allclose(told["prior"], p, atol=1e-6)
    assert len(audited.cleaned("drop")) == (~wrong).sum()


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_an_export_is_read_back_with_the_users_columns(audited, tmp_path, ending):
    path = audited.export(tmp_path / f"clean.{ending}", policy="flip")
    back = load_pairs(path)
    assert back.dataset["chosen"][:] == audited.cleaned("flip").dataset["chosen"][:]
    own = [json.loads(text) for text in back.dataset["metadata"]]
    assert [row["id"] for row in own] == list(range(400))
    assert {"annotator", "p_flip"} <= set(own[0])
    with pytest.raises(RunError, match=r"should end in \.jsonl or \.parquet"):
        audited.export(tmp_path / "clean.csv")
    with pytest.raises(DataError, match="no policy 'turn'; known are flip, drop, weight, prior"):
        audited.export(tmp_path / "turned.jsonl", policy="turn")
    assert not (tmp_path / "turned.jsonl").exists()


def test_the_command_says_what_was_found_and_how_to_train_on_it(tmp_path, capsys):
    data, cleaned = tmp_path / "own.jsonl", tmp_path / "cleaned.jsonl"
    written(data, [*rows(200), {"prompt": "no answers", "id": 200}])
    options = ["--policy", "weight", "--export", str(cleaned), "--by", "annotator"]
    assert main(["audit", str(data), *options, "-p", "runs_dir", str(tmp_path / "r")]) == 0
    said = capsys.readouterr().out
    assert "of the labels are reversed" in said or "is not known" in said
    assert "1 of 201 rows left out: " in said
    folder = tmp_path / "r" / "audit-own"
    for path in (folder / "report.html", folder / "audit.parquet", cleaned):
        assert str(path) in said
        assert path.is_file()
    report = unescape((folder / "report.html").read_text())
    trained = re.search(r"<pre>(\S*plc train .*)</pre>", report).group(1)
    assert f"-p data {cleaned} " in trained
    assert "-p objective cdpo -p pair_priors true" in trained


def test_what_the_command_cannot_mean_is_a_sentence_before_anything_runs(tmp_path, capsys):
    data, runs = tmp_path / "own.jsonl", ["--runs", str(tmp_path / "r")]
    written(data, rows(3))
    for given, said in (
        ([str(tmp_path / "none.jsonl")], "There is no file or folder of pairs at "),
        ([str(data), "-p", "nonsense", "3"], "Unknown parameter 'nonsense'"),
        ([str(data), "--export", "clean.csv"], "export should end in .jsonl or .parquet"),
    ):
        assert main(["audit", *given, *runs]) == 1
        assert capsys.readouterr().err.startswith(said)
    assert not (tmp_path / "r").exists()


def test_a_group_that_is_worse_than_the_rest_is_to_be_looked_at_first(tmp_path):
    own = rows(800)
    for row in own:
        if row["annotator"] == "b" and row["id"] % 10 < 4:
            row["chosen"], row["rejected"] = row["rejected"], row["chosen"]
    found = plc_core.audit(load_pairs(written(tmp_path / "own.jsonl", own)), evidence=["words"])
    run = create_run(tmp_path, "mine", {"kind": KIND})
    save_audit(found, run, ["annotator", "source"])
    said = next_steps(run, AuditConfig(name="mine", noise_by=["annotator"]))
    assert "whose labels are worse than those of all: annotator b, " in said
    assert "annotator a, " not in said
    assert "Look at these first" not in next_steps(run, AuditConfig(name="mine"))


@pytest.mark.parametrize("policy", OBJECTIVES)
def test_the_commands_of_the_report_write_the_pairs_and_train_on_them(folder, policy):
    """The same audit as it was, moved by the verdicts so far, and not made again."""
    report = unescape(next_steps(folder.run, AuditConfig(name="mine", policy=policy)))
    steps = re.findall("<pre>(.*?)</pre>", report)
    app, export, trained = (shlex.split(step) for step in steps[1:])
    assert app[1:] == ["app", "--runs", str(folder.run.path.parent)]
    folder.check.start(draw(folder.table["pair_id"].tolist(), folder.p_flip(), 60))
    for shown in folder.check.shown():  # a person who finds every label right
        folder.check.add(shown.pair_id, "left" if shown.chosen_left else "right")
    done = subprocess.run([sys.executable, *export[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == str(exported_to(folder, policy)), done.stderr
    back = load_pairs(exported_to(folder, policy)).dataset
    after = folder.p_flip()
    assert (after < folder.table["p_flip"]).mean() > 0.9
    if policy in ("weight", "prior"):
        told = [json.loads(text)["p_flip"] for text in back["metadata"]]
        capped = np.minimum(after, 0.5) if policy == "weight" else after
        np.testing.assert_allclose(told, capped, atol=1e-6)
    given = {k: yaml.safe_load(v) for k, v in zip(trained[4::3], trained[5::3], strict=True)}
    recipe = yaml.safe_load((ROOT / trained[2]).read_text())
    values = notebook_values(ROOT / "notebooks" / "01_train.ipynb", recipe | given)
    assert values["name"] == f"mine-{policy}"
    assert (values["objective"], values["pair_priors"]) == OBJECTIVES[policy]


def test_what_was_measured_is_what_the_study_says():
    """The sentence on what weighting gains, from the files of `data/results`."""
    for name in ("qwen", "label-audit"):
        table = audit_gains.gains(read_study(name))
        own = table[(table["method"] == audit_gains.BEST) & (table["against"] == SAME_KL)]
        for rate in (0.2, 0.0):
            row = own[own["rate"] == rate].to_dict("records")[0]
            said = "{value:+.1f} [{low:.1f}, {high:.1f}]".format_map(row).replace("-", "−")
            assert said in MEASURED
            assert (row["low"] > 0) == (rate > 0)


def test_an_export_after_a_check_knows_contradictions_and_damage(tmp_path):
    own = rows(200)
    own.append({**own[3], "chosen": own[3]["rejected"], "rejected": own[3]["chosen"], "id": 999})
    found = plc_core.audit(written(tmp_path / "twice.jsonl", own), evidence=["words"])
    run = create_run(tmp_path, "twice", {"kind": KIND})
    save_audit(found, run)
    folder = AuditFolder(open_run(run.path))
    folder.check.start(draw(folder.table["pair_id"].tolist(), folder.p_flip(), 20))
    for shown in folder.check.shown():
        folder.check.add(shown.pair_id, "left" if shown.chosen_left else "right")
    back = load_pairs(folder.export(tmp_path / "out.jsonl", "prior")).dataset
    told = {row["id"]: row["p_flip"] for row in map(json.loads, back["metadata"])}
    assert told[3] + told[999] == pytest.approx(1, abs=1e-5)
    with pytest.raises(RunError, match="should end in"):
        folder.export(tmp_path / "out.csv")
    folder.table["pair_id"] = folder.table["pair_id"].to_numpy()[::-1]
    with pytest.raises(RunError, match="have other pairs, or another order"):
        folder.export(tmp_path / "other.jsonl")
    assert not (tmp_path / "other.jsonl").exists()


def test_advice_follows_the_verdicts(folder):
    """Whether to turn labels, by the audit alone and after people found every label reversed."""
    assert advice(folder).said == folder.said["sentences"][2]
    folder.check.start(draw(folder.table["pair_id"].tolist(), folder.p_flip(), 60))
    for shown in folder.check.shown():
        folder.check.add(shown.pair_id, "right" if shown.chosen_left else "left")
    assert advice(folder) == (REFUTED, tuple(POLICIES)), "no policy is left"


def test_whose_label_it_is_counts_in_p_flip_where_that_is_asked_for(tmp_path):
    own = rows(800)
    for row in own:
        if row["annotator"] == "b" and row["id"] % 10 < 4:
            row["chosen"], row["rejected"] = row["rejected"], row["chosen"]
    pairs = load_pairs(written(tmp_path / "own.jsonl", own))
    plain, told = (plc_core.audit(pairs, evidence=["words"], by=by) for by in (None, "annotator"))
    theirs = np.array([json.loads(text)["annotator"] for text in pairs.dataset["metadata"]])
    assert told.probabilities[theirs == "a"].mean() < plain.probabilities[theirs == "a"].mean()
    assert told.probabilities[theirs == "b"].mean() > plain.probabilities[theirs == "b"].mean()
    run = create_run(tmp_path, "told", {"kind": KIND})
    save_audit(told, run, ["annotator"])
    folder = AuditFolder(open_run(run.path))
    assert folder.table["group"].tolist() == theirs.tolist()
    before = folder.p_flip()
    np.testing.assert_array_equal(before, told.probabilities)
    folder.check.start(draw(folder.table["pair_id"].tolist(), before, 20))
    for shown in folder.check.shown():  # a person who finds every label right
        folder.check.add(shown.pair_id, "left" if shown.chosen_left else "right")
    after = folder.p_flip()
    assert after.mean() < before.mean()
    assert after[theirs == "b"].mean() > after[theirs == "a"].mean()
    with pytest.raises(DataError, match="no column 'rater'"):
        plc_core.audit(pairs, evidence=["words"], by="rater")


def test_the_table_of_all_pairs_has_the_users_columns(audited, folder):
    assert folder.table["id"].tolist() == list(range(400))
    assert folder.table["annotator"].tolist() == ["ab"[n % 2] for n in range(400)]
    # An audit of what an audit exported: its own p_flip is not the user's.
    run = create_run(folder.run.path.parent, "again", {"kind": KIND})
    mended = dataclasses.replace(audited, pairs=audited.cleaned("weight"))
    save_audit(mended, run)
    again = AuditFolder(open_run(run.path)).table
    np.testing.assert_allclose(again["p_flip"], audited.probabilities)
    np.testing.assert_allclose(
        again["own_p_flip"], np.minimum(audited.probabilities, 0.5), atol=1e-6
    )


# ---- labels that contradict each other --------------------------------------------------------


def test_of_two_labels_that_contradict_each_other_one_is_wrong():
    question, lower = np.array([0, 0, 1]), np.array([True, False, True])
    found = reconciled(np.array([0.5, 0.1, 0.3]), question, lower)
    assert found[0] + found[1] == pytest.approx(1)
    assert found[0] == pytest.approx(0.9)  # even odds against nine to one
    assert found[2] == 0.3
    three = reconciled(np.full(3, 0.2), np.zeros(3, int), np.array([True, True, False]))
    assert three[0] == pytest.approx(0.2)  # (1/4)^2 against 4 for the other way: odds of 4
    assert three[2] == pytest.approx(0.8)


def test_contradicting_rows_are_found_and_said(tmp_path):
    many = rows(200)
    again = {**many[3], "chosen": many[3]["rejected"], "rejected": many[3]["chosen"], "id": 999}
    found = plc_core.audit(written(tmp_path / "twice.jsonl", [*many, again]), evidence=["words"])
    asked, _ = questions(found.pairs.batches())
    two = np.flatnonzero(asked == asked[3])
    assert len(two) == 2
    assert found.probabilities[two].sum() == pytest.approx(1)
    assert all(
        "contradict" in found.why[row] or "prefers the other" in found.why[row] for row in two
    )


# ---- the run folder ---------------------------------------------------------------------------


def test_an_audit_is_read_back_from_its_folder(folder, audited):
    np.testing.assert_array_equal(folder.table["p_flip"], audited.probabilities)
    np.testing.assert_allclose(folder.p_flip(), audited.probabilities)
    assert folder.noise() == audited.noise
    assert folder.said["sentences"] == audited.sentences()
    by = pd.read_csv(folder.run.path / "tables" / "noise-by-annotator.csv")
    assert by["group"].tolist() == ["a", "b"]


# ---- a blind check ----------------------------------------------------------------------------


def test_a_blind_check_shows_every_level_of_suspicion_and_no_side(audited):
    ids = audited.pairs.dataset["pair_id"][:]
    shown = draw(ids, audited.probabilities, 60)
    assert len({pair.pair_id for pair in shown}) == 60
    assert 0.3 < np.mean([pair.chosen_left for pair in shown]) < 0.7
    sizes = pd.Series([pair.stratum for pair in shown]).value_counts()
    present = np.unique(np.searchsorted((0, 0.1, 0.25, 0.5, 0.75), audited.probabilities, "right"))
    assert len(sizes) == len(present)
    assert sum(pair.stands_for for pair in shown) == pytest.approx(len(ids))


def test_what_people_find_moves_the_noise_rate(folder, audited, noisy):
    truth = dict(zip(noisy.dataset["pair_id"], noisy.dataset["flipped"], strict=True))
    check = BlindCheck(folder.run.path)
    check.start(draw(folder.table["pair_id"].tolist(), audited.probabilities, 120))
    before = folder.noise()
    for pair in check.shown():
        label_is_right = not truth[pair.pair_id]
        left = pair.chosen_left == label_is_right
        check.add(pair.pair_id, "left" if left else "right", "ada")
    table = folder.verified().set_index("p_flip")
    overall = table.loc["all pairs"]
    assert overall["low"] <= 0.2 <= overall["high"]
    assert table["pairs"].iloc[:-1].sum() == 120
    after = folder.noise()
    assert after.high - after.low < before.high - before.low
    assert after.low <= 0.2 <= after.high


def test_verdicts_that_contradict_the_evidence_count_alone(folder):
    assert folder.by_people() is None
    folder.check.start(draw(folder.table["pair_id"].tolist(), folder.p_flip(), 60))
    for shown in folder.check.shown():  # who finds every label reversed
        folder.check.add(shown.pair_id, "right" if shown.chosen_left else "left")
    assert folder.is_refuted()
    assert folder.noise() == folder.by_people()
    assert folder.noise().low > 0.8 > folder.flips().noise().high


def test_a_verdict_is_replaced_by_a_later_one_of_the_same_person(folder):
    check = folder.check
    (pair,) = draw(folder.table["pair_id"].tolist()[:1], np.array([0.6]), 1)
    check.start([pair])
    for_label, against = ("left", "right") if pair.chosen_left else ("right", "left")
    check.add(pair.pair_id, against, "ada")
    check.add(pair.pair_id, for_label, "ada")
    check.add(pair.pair_id, against, "bob")
    (row,) = check.checked().to_dict("records")
    assert row["reversed"] == 0.5
    assert verified(check.checked(), {pair.pair_id: 0.6})["reversed"].iloc[0] == 0.5
    with pytest.raises(RunError, match="has begun"):
        check.start([pair])


@pytest.mark.parametrize("bit", range(8))
def test_a_verdict_whose_last_sign_is_damaged_is_not_taken_for_one_that_a_kill_cut_off(
    tmp_path, bit
):
    check = BlindCheck(tmp_path)
    check.start([])
    for pair in "abc":
        check.add(pair, "left", 'says "checksum": "12345678"')
    path = check.folder / "verdicts.jsonl"
    lines = path.read_bytes().splitlines()
    for damaged in (lines[1][:-1] + bytes([lines[1][-1] ^ 1 << bit]), lines[1][: 20 * bit + 5]):
        path.write_bytes(b"\n".join([lines[0], damaged, lines[2]]))
        with pytest.raises(RunError, match=r"verdicts\.jsonl, line 2, is damaged.*leave it blank"):
            check.verdicts()
    path.write_bytes(b"\n".join([lines[0], b"", lines[2]]))
    assert check.verdicts()["pair_id"].tolist() == ["a", "c"]


def test_a_verdict_that_a_kill_cut_off_is_passed_over(tmp_path):
    check = BlindCheck(tmp_path)
    check.start([])
    check.add("a", "left")
    check.add("b", "left")
    path = check.folder / "verdicts.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    for length in range(1, len(second) - 2):
        path.write_bytes(first)
        write_extent(path, Extent(1, len(first)))
        path.write_bytes(first + second[:length])
        assert check.verdicts()["pair_id"].tolist() == ["a"]
        check.add("c", "right")
        check.add("d", "right")
        assert check.verdicts()["pair_id"].tolist() == ["a", "c", "d"]


def test_verdicts_that_are_gone_are_a_sentence(folder, tmp_path):
    copy = AuditFolder(open_run(shutil.copytree(folder.run.path, tmp_path / "audit")))
    pairs = draw(copy.table["pair_id"].tolist()[:3], np.array([0.2, 0.6, 0.9]), 3)
    copy.check.start(pairs)
    for pair in pairs:
        copy.check.add(pair.pair_id, "left", "ada")
    copy.check.take_back(pairs[0].pair_id, "ada")
    path = copy.check.folder / "verdicts.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    uses = (copy.check.verdicts, copy.p_flip, copy.noise, lambda: copy.check.start(pairs),
            lambda: copy.check.add(pairs[0].pair_id, "right", "bob"))  # fmt: skip
    for left in (lines[:3], lines[:1], [], None):
        path.write_bytes(b"".join(left)) if left is not None else path.unlink()
        for use in uses:
            with pytest.raises(RunError, match=r"verdicts\.jsonl .*, and had 4 lines\. Put a copy"):
                use()
    path.write_bytes(b"".join([*lines, lines[3]]))
    with pytest.raises(RunError, match="line 5, was written as line 4"):
        copy.check.verdicts()
    path.write_bytes(b"".join(lines))
    assert len(copy.check.verdicts()) == 2


def test_damaged_tables_of_an_audit_are_not_read(folder, tmp_path):
    copy = AuditFolder(open_run(shutil.copytree(folder.run.path, tmp_path / "audit")))
    assert len(copy.noise_by("annotator")) == 2
    with pytest.raises(RunError, match="no noise rates by 'city'"):
        copy.noise_by("city")
    path = copy.run.path / "tables" / "noise-by-annotator.csv"
    path.write_text(path.read_text().replace("0.", "1.", 1))
    with pytest.raises(RunError, match=r"noise-by-annotator\.csv is damaged"):
        copy.noise_by("annotator")
    shutil.copy(folder.run.path / "status.json", path.with_name("checksums.json"))
    with pytest.raises(RunError, match=r"checksums\.json was written as status\.json"):
        copy.noise_by("annotator")


def test_pairs_of_an_audit_and_of_its_blind_check_that_are_gone_are_a_sentence(folder, tmp_path):
    copy = AuditFolder(open_run(shutil.copytree(folder.run.path, tmp_path / "audit")))
    copy.check.start(draw(copy.table["pair_id"].tolist()[:1], np.array([0.6]), 1))
    shutil.copy(copy.tables() / "checksums.json", copy.check.folder / "pairs.json")
    with pytest.raises(RunError, match=r"pairs\.json does not hold a blind check.*and check anew"):
        copy.check.shown()
    copy.run.path.joinpath("pairs.parquet").unlink()
    with pytest.raises(RunError, match=r"pairs\.parquet is missing. Put a copy of it back"):
        copy.run.pairs()


# ---- priors of pairs in training --------------------------------------------------------------

TINY = {"num_pairs": 32, "batch_pairs": 16, "pairs_per_forward": 16, "eval_prompts": 0}


@pytest.fixture(scope="module")
def world_file(tmp_path_factory):
    """32 pairs of the world as a file, each with its own p_flip but the last."""
    path = tmp_path_factory.mktemp("world") / "pairs.jsonl"
    fields = ("prompt", "chosen", "rejected")
    kept = [{name: row[name] for name in fields} for row in load_pairs("world", 32).dataset]
    told = np.linspace(0, 1, len(kept) - 1)
    return written(path, [row | {"p_flip": float(p)} for row, p in zip(kept, told, strict=False)])


def test_a_run_routes_each_pair_by_its_own_prior(world_file, tmp_path):
    config = TrainConfig(name="own", runs_dir=str(tmp_path), data=str(world_file), pair_priors=True,
                         recipe="balanced", **TINY)  # fmt: skip
    run = train(config)
    visits = run.visits().set_index("pair_id")
    metadata = run.pairs(["pair_id", "metadata"]).set_index("pair_id")["metadata"]
    told = metadata.map(lambda text: json.loads(text or "{}").get("p_flip"))
    clean, flip, tie = config.prior
    f = told.fillna(flip / (clean + flip)).astype(float).loc[visits.index]
    prior = np.stack(((1 - tie) * (1 - f), (1 - tie) * f, np.full(len(f), tie)), 1)
    z = visits["z"].to_numpy()
    with np.errstate(divide="ignore"):
        energy = np.log(prior) + np.stack((z / 0.75, -z / 0.75, -abs(z) / 1.0), 1)
    q = np.exp(energy - energy.max(1, keepdims=True))
    q /= q.sum(1, keepdims=True)
    np.testing.assert_allclose(visits[["q_clean", "q_flip", "q_tie"]].to_numpy(), q, atol=2e-3)
    found = run_margins(run, load_pairs(world_file))
    np.testing.assert_allclose(found, visits.loc[load_pairs(world_file).dataset["pair_id"][:], "z"])


def test_priors_that_are_not_there_are_a_sentence(tmp_path):
    plain = written(tmp_path / "plain.jsonl", [
        {name: row[name] for name in ("prompt", "chosen", "rejected")}
        for row in load_pairs("world", 20).dataset
    ])  # fmt: skip
    with pytest.raises(DataError, match="needs the column p_flip"):
        train(
            TrainConfig(name="x", runs_dir=str(tmp_path), data=str(plain), pair_priors=True, **TINY)
        )
    with pytest.raises(ValueError, match="pair_priors are of the labels as the data have them"):
        TrainConfig(name="x", pair_priors=True, flip_rate=0.1)
