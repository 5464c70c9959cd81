"""The label audit: evidence read out of fold, one probability a pair, and an honest noise rate."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

import plc_core
from plc_core import load_pairs
from plc_core.data import DataError, flip_labels, pairs_from_rows
from plc_core.engine.models.load import load_policy
from plc_core.engine.tokens.tokenized import tokenize_pairs
from plc_core.label_audit.evidence import vote_shares
from plc_core.label_audit.hidden_states import read_model
from plc_core.label_audit.other_models import fold_file
from plc_core.label_audit.posterior import FlipModel, stacked
from plc_core.label_audit.probe import PENALTIES, log_likelihood, out_of_fold, prompt_folds
from plc_core.label_audit.result import evidence_table
from plc_core.progress import Progress
from tests.test_damage import DAMAGES, hurt

GOOD, BAD, NEUTRAL = (
    "thanks because exactly precise",
    "dunno whatever maybe lol",
    "the a of to in and",
)


def answer(rng, quality):
    words = rng.choice([*NEUTRAL.split()] * 3 + (GOOD if quality else BAD).split(), 12)
    return " ".join(words)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """600 pairs whose chosen answers have the better words; two annotators."""
    rng = np.random.default_rng(0)
    rows = [
        {"prompt": f"question {n // 2}", "chosen": answer(rng, True) + f" {n}",
         "rejected": answer(rng, False) + f" {n}", "annotator": "ab"[n % 2]}
        for n in range(600)
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("audit") / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_pairs(path)


@pytest.fixture(scope="module")
def noisy(pairs):
    return flip_labels(pairs, 0.2, seed=3)


# ---- the probe -----------------------------------------------------------------------------------


def test_a_probe_is_ridge_regression_of_the_other_folds():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(300, 8)).astype(np.float32) + 0.3
    folds = prompt_folds([str(n // 3) for n in range(300)])
    found = out_of_fold(lambda: iter([(slice(0, 200), rows[:200]), (slice(200, 300), rows[200:])]),
                        folds)  # fmt: skip
    scaled = rows / np.sqrt((rows**2).mean(0))
    for fold in range(folds.max() + 1):
        others = scaled[folds != fold]
        penalty = found.penalty * np.trace(others.T @ others) / 8
        plain = Ridge(alpha=penalty, fit_intercept=False).fit(others, np.ones(len(others)))
        expected = plain.predict(scaled[folds == fold])
        np.testing.assert_allclose(found.margins[folds == fold], expected, rtol=2e-3, atol=1e-5)
    assert found.penalty in PENALTIES


def test_turning_a_pair_round_turns_its_reading():
    """Its own label says nothing of it: only the sign changes, and the other folds' readings."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(200, 4)).astype(np.float32) + 0.5
    folds = prompt_folds([str(n) for n in range(200)])
    other = rows.copy()
    other[7] *= -1
    before, after = (out_of_fold(lambda r=r: iter([(slice(0, 200), r)]), folds)
                     for r in (rows, other))  # fmt: skip
    assert after.penalty == before.penalty
    assert after.margins[7] == pytest.approx(-before.margins[7], rel=1e-4)


def test_pairs_of_one_prompt_are_in_one_fold_whatever_their_order():
    groups = [f"p{n % 40}" for n in range(200)]
    folds = prompt_folds(groups)
    assert all(len({f for f, g in zip(folds, groups, strict=True) if g == name}) == 1
               for name in set(groups))  # fmt: skip
    assert prompt_folds(groups[::-1]).tolist() == folds[::-1].tolist()
    with pytest.raises(ValueError, match="2 prompts cannot be spread"):
        prompt_folds(["a", "b", "a"])


def test_knowing_nothing_is_chance():
    assert log_likelihood(np.zeros(10)) == pytest.approx(np.log(0.5))
    assert log_likelihood(-np.ones(10)) == pytest.approx(np.log(0.5))  # never against the labels


# ---- the posterior -------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2])
def test_the_noise_rate_lies_in_its_interval_and_p_flip_is_calibrated(rate):
    """Labels of a logistic model, some reversed: in 19 of 20 seeds."""
    inside, errors = 0, []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        strength = 2 * rng.normal(size=3000)
        flipped = rng.random(3000) < rate
        labels = np.where((rng.random(3000) < expit(strength)) ^ flipped, 1, -1)
        model = FlipModel(0.4 * strength * labels)  # its scale is not known either
        noise = model.noise()
        inside += noise.low <= rate <= noise.high
        chances = model.p_flip(0.4 * strength * labels)
        bins = np.digitize(chances, np.linspace(0, 1, 11))
        errors.append(sum(abs((chances - flipped)[bins == b].sum()) for b in set(bins)) / 3000)
    assert inside >= 19
    assert np.mean(errors) < 0.05


def test_where_margins_say_nothing_the_noise_rate_is_not_known():
    margins = np.random.default_rng(0).normal(size=500)
    noise = FlipModel(margins, reliability=0.0).noise()
    assert noise.rate is None
    assert noise.high - noise.low >= 0.3
    assert np.ptp(FlipModel(np.zeros(500)).p_flip(np.zeros(500))) == 0


def test_that_most_suspicious_labels_are_reversed_is_not_said_too_surely():
    """It holds in at least the share of cases that is said, and strong evidence says it surer."""
    said, held = {}, {}
    for size in (0.5, 1.0, 2.0):
        for seed in range(8):
            rng = np.random.default_rng(seed)
            strength = size * rng.normal(size=1500)
            flipped = rng.random(1500) < 0.15
            margins = strength * np.where((rng.random(1500) < expit(strength)) ^ flipped, 1, -1)
            model = FlipModel(margins)
            turned = model.p_flip(margins) > 0.5
            if turned.any():
                chances, surplus = model.surplus(margins[turned])
                said.setdefault(size, []).append(chances @ (surplus > 0))
                held.setdefault(size, []).append(flipped[turned].mean() > 0.5)
    assert np.mean(np.concatenate([*said.values()])) < np.mean(np.concatenate([*held.values()]))
    assert np.mean(said[1.0]) + 0.05 < np.mean(said[2.0])
    assert np.mean(held[2.0]) == 1


def test_groups_have_their_own_rates_and_those_that_are_alike_change_little():
    rng = np.random.default_rng(5)
    strength = 2 * rng.normal(size=3000)
    worse = np.arange(3000) % 3 == 0
    flipped = rng.random(3000) < np.where(worse, 0.4, 0.05)
    margins = strength * np.where((rng.random(3000) < expit(strength)) ^ flipped, 1, -1)
    model = FlipModel(margins)
    alone = model.p_flip(margins)
    told = model.p_flip(margins, worse)
    assert roc_auc_score(flipped, told) > roc_auc_score(flipped, alone) + 0.04
    assert model.of_group(margins[worse]).noise().low > model.of_group(margins[~worse]).noise().high
    alike = model.p_flip(margins, rng.integers(0, 3, 3000))
    assert roc_auc_score(flipped, alike) == pytest.approx(roc_auc_score(flipped, alone), abs=0.02)
    few = model.of_group(margins[:3]).noise()  # are near to all
    assert few.low < model.noise().rate < few.high


def test_people_who_judge_some_pairs_sharpen_the_posterior():
    """Of evidence that may be weak the noise rate is hardly known; verdicts tell it, and how steep
    the evidence is.
    """
    rng = np.random.default_rng(3)
    strength = rng.normal(size=600)
    flipped = rng.random(600) < 0.3
    margins = strength * np.where((rng.random(600) < expit(3 * strength)) ^ flipped, 1, -1)
    before = FlipModel(margins, reliability=0.1)
    after = before.checked(margins[:300], flipped[:300].astype(float))
    assert abs(after.noise().rate - 0.3) < 0.03 < abs(before.noise().rate - 0.3)
    assert after.noise().high - after.noise().low < before.noise().high - before.noise().low
    ends = np.array([-1.5, 1.5])
    reversed_share = 0.3 * expit(-3 * ends)
    true = reversed_share / (reversed_share + 0.7 * expit(3 * ends))
    assert after.p_flip(ends) == pytest.approx(true, abs=0.05)
    assert before.p_flip(ends)[0] < true[0] - 0.5


def test_a_column_that_reads_as_much_of_coin_flips_is_not_reliable():
    rng = np.random.default_rng(0)
    column, folds = rng.normal(0.5, 1, size=2000), np.arange(2000) % 5
    chance = {"words": rng.permutation(column)}
    assert stacked({"words": column}, folds).reliability > 0.9
    assert stacked({"words": column}, folds, chance).reliability < 0.1


def test_votes_speak_for_the_label_by_their_majority(tmp_path):
    rows = [
        {"prompt": f"q{n}", "response_a": "a", "response_b": "b", "votes": given}
        for n, given in enumerate((["a", "a"], ["a", "a", "b"], ["b", "tie"]))
    ]
    (tmp_path / "votes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert vote_shares(load_pairs(tmp_path / "votes.jsonl")) == pytest.approx([1, 1 / 3, 1 / 2])


def test_evidence_that_a_pair_lacks_adds_nothing_to_it():
    rng = np.random.default_rng(0)
    column = rng.normal(size=400) + 0.5
    column[:50] = np.nan
    found = stacked({"one": column}, np.arange(400) % 5)
    assert (found.margins[:50] == 0).all()
    assert found.weights["one"] > 0


# ---- the audit -----------------------------------------------------------------------------------


def test_reversed_labels_are_found_and_mended(pairs, noisy):
    audit = plc_core.audit(noisy)
    flipped = np.array(noisy.dataset["flipped"])
    assert roc_auc_score(flipped, audit.probabilities) > 0.95
    assert audit.noise.low <= 0.2 <= audit.noise.high
    assert audit.evidence.log_likelihoods["words"] > np.log(0.5) + 0.1
    table = audit.table(50)
    assert table["p_flip"].is_monotonic_decreasing
    assert flipped[[noisy.dataset["pair_id"].index(i) for i in table["pair_id"]]].mean() > 0.95
    assert table["reason"].str.contains("reads like preferred ones").mean() > 0.8
    mended = audit.cleaned("flip")
    right = [a == b for a, b in zip(mended.dataset["chosen"], pairs.dataset["chosen"], strict=True)]
    assert np.mean(right) > 0.95
    kept = audit.cleaned("drop").dataset["pair_id"]
    assert len(kept) == (audit.probabilities <= 0.5).sum()


def test_what_turning_would_mend_is_said_before_it_is_done(noisy):
    audit = plc_core.audit(noisy)
    flipped, turned = np.array(noisy.dataset["flipped"]), audit.probabilities > 0.5
    fewer, probability = audit.fewer_wrong()
    assert fewer == pytest.approx(flipped.sum() - (flipped ^ turned).sum(), abs=40)
    said = " ".join(audit.sentences())
    assert f"leave some {fewer:,.0f} fewer wrong" in said
    assert f"fewer at all is {probability:.0%}" in said
    weak = replace(audit, probabilities=np.full(600, 0.51))  # of labels that the evidence is for
    assert weak.fewer_wrong() == (pytest.approx(12), 0)
    assert "weight them instead, or check some blind first" in " ".join(weak.sentences())


def test_a_pair_that_is_turned_round_gets_the_other_probability(pairs):
    """p_flip of a label and of its reverse: what speaks for the one speaks against the other."""
    one, other = plc_core.audit(pairs), plc_core.audit(flip_labels(pairs, 1.0, seed=0))
    np.testing.assert_allclose(one.stack.margins, other.stack.margins, rtol=1e-3)


def test_noise_is_told_by_any_column_of_ones_own(noisy):
    table = plc_core.audit(noisy).noise_by("annotator")
    assert table["group"].tolist() == ["a", "b"]
    assert table["pairs"].sum() == 600
    assert (table["low"] <= 0.2).all()
    assert (table["high"] >= 0.2).all()
    with pytest.raises(DataError, match=r"no column 'rater'.*annotator"):
        plc_core.audit(noisy).noise_by("rater")


def test_a_group_whose_labels_are_worse_than_those_of_all_is_a_reason(tmp_path):
    rng = np.random.default_rng(1)
    rows = []
    for n in range(1200):
        sides = [answer(rng, True) + f" {n}", answer(rng, False) + f" {n}"]
        turned = n % 2 and rng.random() < 0.45
        chosen, rejected = sides[::-1] if turned else sides
        row = {"prompt": f"q{n}", "chosen": chosen, "rejected": rejected}
        rows.append(row | {"annotator": "ab"[n % 2]})
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = plc_core.audit(path, evidence=["words", "lengths"], by="annotator")
    said = "annotator b: some"
    assert [said in why for why in found.why] == [bool(n % 2) for n in range(1200)]
    assert not any("annotator a: some" in why for why in found.why)


def test_scores_that_the_labels_were_made_from_are_shown_and_not_believed(pairs, tmp_path):
    rows = [
        {"prompt": f"q {n}", "chosen": f"yes {n}", "rejected": f"no {n}",
         "score_chosen": 2.0 + n % 3, "score_rejected": 1.0}
        for n in range(400)
    ]  # fmt: skip
    rows[5]["score_rejected"] = 9.0
    (tmp_path / "scored.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    audit = plc_core.audit(tmp_path / "scored.jsonl", evidence=["lengths", "scores"])
    assert list(audit.evidence.aside) == ["scores"]
    assert "probably made from them" in " ".join(audit.sentences())
    assert "the scores say the opposite (4 against 9)" in audit.why[5]
    notes = evidence_table(audit.evidence, audit.stack.weights).set_index("evidence")["note"]
    assert notes["scores"]


def test_what_cannot_be_audited_is_a_sentence(pairs):
    with pytest.raises(DataError, match="There is no evidence smell; known are hidden states"):
        plc_core.audit(pairs, evidence=["smell"])
    few = pairs.map(lambda batch, start: batch.slice(0, 50) if not start else batch.slice(0, 0))
    with pytest.raises(DataError, match="50 pairs are too few"):
        plc_core.audit(few)


# ---- hidden states -------------------------------------------------------------------------------


def test_hidden_states_are_those_of_plain_forwards_and_computed_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PLC_CACHE", str(tmp_path))
    monkeypatch.setattr("plc_core.label_audit.hidden_states._multiplies_bf16", lambda: False)
    pairs = load_pairs("world", limit=40)
    kept, found = read_model(pairs, "world", 64, {"hidden states"}, Progress())
    rows, lengths = found.hidden, found.token_lengths
    model, tokenizer = load_policy("world")
    tokens = tokenize_pairs(pairs, tokenizer, 64).dataset
    assert len(kept) == len(tokens) == len(lengths)
    (layer, *_) = rows
    found = np.concatenate([block for _, block in rows[layer]()])
    width = model.config.hidden_size
    for place in (0, 7, len(tokens) - 1):
        row, sides = tokens[place], []
        for side in ("chosen_ids", "rejected_ids"):
            ids = torch.tensor([row["prompt_ids"] + row[side]])
            with torch.no_grad():
                state = model(ids, output_hidden_states=True).hidden_states[layer][0]
            own = state[len(row["prompt_ids"]) :]
            sides.append(torch.cat((own[-1], own.mean(0))))
        expected = (sides[0] - sides[1]).numpy()
        np.testing.assert_allclose(found[place], expected, rtol=2e-3, atol=4e-3)
        assert found.shape[1] == 2 * width
    # The other way round and from the disk: the same with the other sign.
    monkeypatch.setattr(type(model), "forward", None)
    turned = read_model(
        flip_labels(pairs, 1.0, seed=0), "world", 64, {"hidden states"}, Progress()
    )[1].hidden
    again = np.concatenate([block for _, block in turned[layer]()])
    np.testing.assert_array_equal(again, -found)


def test_hidden_states_are_the_same_whoever_reads_them_beside_each_other(tmp_path, monkeypatch):
    pairs, threads, found = load_pairs("world", limit=60), torch.get_num_threads(), []
    for count in (1, 3):
        monkeypatch.setenv("PLC_CACHE", str(tmp_path / str(count)))
        torch.set_num_threads(count)
        try:
            read = read_model(pairs, "world", 64, {"hidden states"}, Progress())[1].hidden
            assert torch.get_num_threads() == count
        finally:
            torch.set_num_threads(threads)
        found.append([np.concatenate([block for _, block in rows()]) for rows in read.values()])
    np.testing.assert_array_equal(*found)


def test_the_pairs_of_a_fold_are_made_anew_where_they_are_damaged_or_of_another(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PLC_CACHE", str(tmp_path))
    pairs, folds = load_pairs("world", limit=12), np.arange(12) % 3
    files = [fold_file(pairs, folds, fold) for fold in range(3)]
    before = [load_pairs(file).table for file in files]
    assert len(before[0]) == 8 and before[0] != before[1]
    for damage in (*DAMAGES, "exchange"):
        if damage == "exchange":
            shutil.rmtree(files[0].parent)
            shutil.copytree(files[1].parent, files[0].parent)
        else:
            hurt(files[0], damage)
        assert [load_pairs(fold_file(pairs, folds, fold)).table for fold in range(3)] == before


def test_damaged_parts_are_computed_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PLC_CACHE", str(tmp_path))
    pairs = load_pairs("world", limit=20)
    rows = read_model(pairs, "world", 64, {"hidden states"}, Progress())[1].hidden
    before = {layer: np.concatenate([b for _, b in read()]) for layer, read in rows.items()}
    (part,) = tmp_path.glob("hidden_states/*/*.npy")
    raw = bytearray(part.read_bytes())
    raw[-9] ^= 64
    part.write_bytes(raw)
    rows = read_model(pairs, "world", 64, {"hidden states"}, Progress())[1].hidden
    for layer, read in rows.items():
        np.testing.assert_array_equal(np.concatenate([b for _, b in read()]), before[layer])


@pytest.mark.parametrize("prompts", [1, 4])
def test_pairs_of_too_few_prompts_are_refused_in_words(prompts):
    rows = [
        {"prompt": f"q{row % prompts}", "chosen": f"yes {row}", "rejected": f"no {row}"}
        for row in range(120)
    ]
    with pytest.raises(DataError, match=f"{prompts} different prompts, too few for an audit"):
        plc_core.audit(pairs_from_rows(rows, "few prompts"), evidence=("lengths", "words"))
