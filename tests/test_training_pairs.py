"""From a run's parameters to its pairs: sources, corruption in order, warm start, the record."""

import json

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from plc_core import TrainConfig, train
from plc_core.engine.forward.packing import VisitOrder, deal
from plc_core.engine.models.load import load_policy
from plc_core.engine.training_pairs import training_pairs
from plc_core.progress import Progress

PROMPT = "cook soup . cover chop , boil . skip bake ."


def config(tmp_path, **changes):
    return TrainConfig(name="run", runs_dir=str(tmp_path / "runs"), **{"num_pairs": 60} | changes)


@pytest.fixture(scope="module")
def world():
    return load_policy("world")


def pairs_of(world, configuration):
    return training_pairs(configuration, *world, Progress())


@pytest.fixture
def scored_file(tmp_path):
    words = ("chop", "boil", "salt", "bake")
    rows = [
        {"prompt": PROMPT, "chosen": f"then {a} it .", "rejected": f"next , {b} it . well",
         "score_chosen": n % 5, "score_rejected": 2, "split": "test" if n < 3 else "train"}
        for n, (a, b) in enumerate((a, b) for a in words for b in words)
    ]  # fmt: skip
    path = tmp_path / "scored.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_corruption_is_applied_in_its_order_and_leaves_warm_pairs_alone(world, tmp_path):
    changes = {"warm_share": 0.2, "annotator": True, "tie_rate": 0.1, "flip_rate": 0.3}
    pairs = pairs_of(world, config(tmp_path, **changes))
    frame = pairs.dataset.to_pandas()
    assert len(frame) == 60
    assert frame["warm"].sum() == 12
    assert frame["injected_tie"].sum() == 6
    assert 5 < frame["flipped"].sum() < 35
    assert not (frame["warm"] & (frame["flipped"] | frame["injected_tie"])).any()
    assert (frame.loc[frame["injected_tie"], "oracle_state"] == "tie").all()
    gap = frame["score_chosen"] - frame["score_rejected"]
    assert (frame.loc[gap.abs() > 0.25, "oracle_state"] == "flip").equals(
        (gap < 0)[gap.abs() > 0.25]
    )
    again = pairs_of(world, config(tmp_path, objective="dpo", **changes))
    assert again.fingerprint == pairs.fingerprint


def test_hard_pairs_by_the_margin_of_a_run_on_clean_labels(world, tmp_path):
    clean = config(tmp_path, objective="dpo", eval_prompts=0, batch_pairs=12, pairs_per_forward=12)
    run = train(clean)
    hard = config(tmp_path, flip_rate=0.25, flips="lowest-margin", margins_run=run.name)
    frame = pairs_of(world, hard).dataset.to_pandas().set_index("pair_id")
    assert frame["flipped"].sum() == 15
    # The margins of the last optimizer step's pairs are nearly those of the final policy.
    last = run.visits().sort_values("step").groupby("pair_id").last()
    late = last[last["step"] == last["step"].max()]
    margins = late["margin"]
    assert margins[frame.loc[late.index, "flipped"]].mean() < margins.mean()
    with pytest.raises(Exception, match="nothing"):
        pairs_of(world, config(tmp_path, flips="lowest-margin", margins_run="nothing"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"flips": "lowest-margin"}, "lowest-margin and margins_run need each other"),
        ({"margins_run": "x"}, "lowest-margin and margins_run need each other"),
        ({"data": "x.jsonl", "tie_rate": 0.1}, "needs a tie_pool"),
        ({"data_actions": {"prefixes": "drop"}}, "no rule 'prefixes'"),
        ({"data_actions": {"prefix": "delete"}}, "can keep, drop, error"),
        ({"flip_rate": 1.5}, "less than or equal to 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_read(tmp_path, changes, sentence):
    with pytest.raises(ValidationError, match=sentence):
        config(tmp_path, **changes)


def test_a_file_s_other_splits_are_left_out_of_training_and_counted(tmp_path, scored_file):
    run = train(
        config(tmp_path, data=str(scored_file), num_pairs=None, eval_prompts=0, batch_pairs=4,
               pairs_per_forward=4, data_actions={"prefix": "drop"})
    )  # fmt: skip
    data = run.info["data"]
    assert (data["rows_read"], data["rows"]) == (16, 13)
    assert data["rules"]["other-split"] == {"rows": 3, "action": "drop"}
    assert data["rules"]["split-leak"]["action"] == "keep"
    assert data["origin"]["files"][0]["name"] == "scored.jsonl"
    assert len(data["origin"]["files"][0]["sha256"]) == 64
    assert "Left out: other-split 3." in run.data_sentence()
    findings = run.findings()
    assert (findings["rule"] == "other-split").sum() == 3
    pair = run.pairs()["pair_id"].iloc[0]
    assert set(run.findings(pair)["rule"]) >= {"split-leak"}


def test_warm_pairs_come_first_in_the_first_epoch_only():
    warm = [False, True] * 10
    sampler = VisitOrder([1] * 20, seed=3, warm=warm)
    first = list(sampler)
    assert all(warm[i] for i in first[:10])
    assert sorted(first) == list(range(20))
    assert list(sampler) == first
    sampler.set_epoch(1)
    second = list(sampler)
    assert sorted(second) == list(range(20))
    assert not all(warm[i] for i in second[:10])
    plain = VisitOrder([1] * 20, seed=3)
    before = list(plain)
    plain.set_epoch(1)
    assert list(plain) != before


def test_a_step_has_the_same_pairs_on_any_number_of_ranks_and_ranks_about_as_much_to_do():
    rng = np.random.default_rng(0)
    sizes = np.exp(6.4 + 0.6 * rng.standard_normal(200)).astype(int).tolist()
    one = list(VisitOrder(sizes, 5, batch_pairs=64))
    four = list(VisitOrder(sizes, 5, batch_pairs=64, ranks=4))
    for start in range(0, 200, 64):
        assert sorted(one[start : start + 64]) == sorted(four[start : start + 64])
    assert one[192:] == four[192:]  # too few for a step: in the order of one rank
    loads = np.array(sizes)[four[:192]].reshape(3, 4, 16).sum(2)
    assert (loads.max(1) / loads.mean(1) < 1.02).all()


def test_a_rank_gets_as_many_pairs_as_any_other_also_where_one_pair_is_longest_by_far():
    places = deal([100, 1, 1, 1, 1, 1], ranks=2)
    assert sorted(places) == list(range(6))
    assert 0 in places[:3] or 0 in places[3:]
    assert deal([3, 3, 3, 3], ranks=2) == [0, 2, 1, 3]
    assert deal([], ranks=2) == []


def test_training_visits_warm_pairs_first_and_resumes_in_that_order(tmp_path):
    changes = {"warm_share": 0.5, "flip_rate": 0.5, "eval_prompts": 0, "batch_pairs": 12,
               "pairs_per_forward": 6, "save_steps": 2}  # fmt: skip
    run = train(config(tmp_path, **changes))
    warm = run.pairs().set_index("pair_id")["warm"]
    steps = run.visits().set_index("pair_id")["step"]
    assert steps[warm[warm].index].max() <= steps[warm[~warm].index].min()
    assert run.info["data"]["warm"] == 30
    # The order does not hang on the global random state.
    torch.manual_seed(99)
    other = train(config(tmp_path, **changes).model_copy(update={"name": "again"}))
    assert other.visits()["pair_id"].tolist() == run.visits()["pair_id"].tolist()
