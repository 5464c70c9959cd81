"""Zero-shot routing of a probe set by a small run of the world."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from notebooks.studies.routing_probe import (
    check_probe,
    corrupted_pairs,
    held_out_pairs,
    labelled_by_one,
    router_of,
    score_probe,
    with_votes,
)
from plc_core import TrainConfig, train
from plc_core.analysis.routing.pooling import of_calibration
from plc_core.data.votes import vote_groups
from plc_core.engine.checkpoints import trained_checkpoint
from plc_core.evaluation.judges import reward_model
from plc_core.evaluation.judges.judgements import Score
from plc_core.evaluation.judges.reward_model import pair_rewards
from plc_core.objective import RECIPES
from plc_core.objective.routing import energies
from plc_core.runs import Run, open_run
from plc_core.storage.files import RunError
from tests.fake_run import write_fake_run

SMALL = {"num_pairs": 64, "batch_pairs": 16, "pairs_per_forward": 16, "eval_prompts": 0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Run]:
    folder = str(tmp_path_factory.mktemp("runs"))
    return {
        name: train(TrainConfig(name=name, runs_dir=folder, objective=name, **SMALL))
        for name in ("plc", "dpo")
    }


@pytest.mark.parametrize("name", ["plc", "dpo"])
def test_a_probe_has_both_calibrations_and_its_weights_follow_from_z(runs, name) -> None:
    run = runs[name]
    pairs = held_out_pairs(run, 30)
    scores = score_probe(run, "held-out", pairs)
    assert scores["calibration"].value_counts().to_dict() == {"checkpoint": 30, "self": 30}
    margin = of_calibration(scores, "self")["margin"].to_numpy()
    own = of_calibration(scores, "self")
    np.testing.assert_allclose(own["z"], (margin - margin.mean()) / margin.std(), rtol=1e-6)
    mean, deviation = router_of(run, trained_checkpoint(run)).calibration.statistics()
    by_training = of_calibration(scores, "checkpoint")
    expected = (margin - float(mean)) / float(deviation)
    np.testing.assert_allclose(by_training["z"], expected, rtol=1e-6)
    q = energies(torch.tensor(expected), (0.80, 0.08, 0.12), RECIPES["aggressive"]).softmax(-1)
    found = by_training[["q_clean", "q_flip", "q_tie"]].to_numpy()
    np.testing.assert_allclose(found, q.numpy(), rtol=1e-6)


def test_the_margins_of_training_pairs_are_those_of_the_last_policy(runs) -> None:
    """A probe of the training set is scored by the trained policy, in the observed direction."""
    run = runs["plc"]
    pairs = corrupted_pairs(run)
    scores = of_calibration(score_probe(run, "training", pairs), "checkpoint")
    assert scores["pair_id"].tolist() == run.pairs()["pair_id"].tolist()
    flipped = of_calibration(
        score_probe(run, "flipped", corrupted_pairs(run, flip_rate=1.0)), "checkpoint"
    )
    np.testing.assert_allclose(flipped["margin"], -scores["margin"], atol=1e-5)
    lengths = run.pairs()[["chosen_tokens", "rejected_tokens"]].to_numpy()
    assert (scores[["chosen_tokens", "rejected_tokens"]].to_numpy() == lengths).all()
    other = np.where(scores[["flipped"]], lengths, lengths[:, ::-1])
    assert (flipped[["chosen_tokens", "rejected_tokens"]].to_numpy() == other).all()
    assert flipped["flipped"].all()


def test_a_kept_probe_is_read_again_until_its_pairs_change(runs) -> None:
    run = runs["plc"]
    pairs = held_out_pairs(run, 20)
    for refused in (
        lambda: check_probe(run, "kept", False),
        lambda: score_probe(run, "kept", pairs, False),
    ):
        with pytest.raises(RunError, match=r"1 run lacks the routing .*'kept': plc. Set make"):
            refused()
    first = score_probe(run, "kept", pairs)
    check_probe(run, "kept", False)
    assert len(score_probe(run, "kept", pairs, False)) == len(first)
    path = run.path / "scores" / "kept.parquet"
    made = path.stat().st_mtime_ns
    again = score_probe(run, "kept", pairs)
    assert path.stat().st_mtime_ns == made
    pd.testing.assert_frame_equal(first, again, check_dtype=False)
    score_probe(run, "kept", labelled_by_one(pairs, 0))
    assert path.stat().st_mtime_ns != made
    made = path.stat().st_mtime_ns
    path.write_bytes(b"half of a file")
    assert len(score_probe(run, "kept", pairs)) == len(first)


def test_held_out_pairs_are_none_of_the_training_pairs(runs) -> None:
    run = runs["plc"]
    held = held_out_pairs(run, 40)
    assert not set(held.dataset["pair_id"]) & set(run.pairs()["pair_id"])
    assert set(held.dataset["oracle_state"]) <= {"clean", "tie"}
    labelled = labelled_by_one(held, 0)
    wrong = [
        flipped
        for flipped, chosen, rejected in zip(
            *(labelled.dataset[c] for c in ("flipped", "score_chosen", "score_rejected")),
            strict=True,
        )
        if chosen < rejected
    ]
    assert wrong
    assert all(wrong)


def test_votes_decide_the_label_and_the_group(runs) -> None:
    run = runs["plc"]
    pairs = with_votes(held_out_pairs(run, 60), 0)
    for votes in pairs.dataset["votes"]:
        assert votes.count("chosen") >= votes.count("rejected")
    scores = score_probe(run, "votes", pairs)
    own = of_calibration(scores, "self").set_index("pair_id")["group"]
    groups = vote_groups(pairs).set_index("pair_id")["group"]
    assert own.to_dict() == groups.to_dict()
    assert own.isin(["unanimous", "divergent", "tie-majority"]).all()


def test_ties_are_marked_in_a_corrupted_probe(runs) -> None:
    scores = score_probe(runs["dpo"], "ties", corrupted_pairs(runs["dpo"], tie_rate=0.25))
    part = of_calibration(scores, "self")
    assert part["injected_tie"].sum() == 16
    assert (part.loc[part["injected_tie"], "score_chosen"] == part.loc[
        part["injected_tie"], "score_rejected"]).all()  # fmt: skip


def test_a_run_without_a_policy_is_a_sentence(tmp_path: Path, runs) -> None:
    run = open_run(write_fake_run(tmp_path, "none", pairs=20))
    with pytest.raises(RunError, match="has no whole checkpoint, so it has no policy"):
        score_probe(run, "x", held_out_pairs(runs["plc"], 20))


def test_answers_without_a_score_are_not_scored_where_nothing_is_to_be_made(
    runs, monkeypatch
) -> None:
    class Judge:
        name = "some"

        def __init__(self, model: str) -> None:
            self.left = 2 if model == "new" else 0

        def unscored(self, answers: pd.DataFrame) -> int:
            return self.left

        def score(self, answers: pd.DataFrame) -> list[Score]:
            return [Score(1.0)] * len(answers)

    monkeypatch.setattr(reward_model, "RewardModelJudge", Judge)
    pairs = held_out_pairs(runs["plc"], 20)
    assert len(pair_rewards(pairs, "known", make=False)) == len(pairs)
    assert len(pair_rewards(pairs, "new")) == len(pairs)
    with pytest.raises(RunError, match="2 of 20 chosen answers have no score of 'some'"):
        pair_rewards(pairs, "new", make=False)
