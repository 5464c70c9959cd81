"""A reward model of one's own: trained on clean pairs, held out by prompt, read back as a judge."""

import json

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification

from plc_core.data import DataError, load_pairs
from plc_core.engine.models.load import ModelError
from plc_core.engine.stages.reward_model import RewardModelConfig, score, train_reward_model
from plc_core.engine.stages.reward_scoring import load_reward_model

PROMPT = "cook soup . cover chop , boil . skip bake ."


def pairs_file(folder, count=96):
    """Short answers are better than long ones, whatever the prompt: easy to learn."""
    rows = []
    for number in range(count):
        word = ["chop", "boil"][number % 2]
        rows.append(
            {
                "prompt": f"{PROMPT} {'chop , ' * (number % 12)}boil .",
                "chosen": f"then {word} it .",
                "rejected": f"{'well , ' * (1 + number // 12)}then {word} it .",
            }
        )
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reward")
    pairs = load_pairs(pairs_file(folder))
    config = RewardModelConfig(name="rm", runs_dir=str(folder), epochs=4, held_out_share=0.2)
    return train_reward_model(config, pairs)


def test_the_rule_is_learnt_on_prompts_that_were_held_out(run):
    held_out = run.info["held_out"]
    assert held_out["n"] == run.info["data"]["held_out"] > 4
    assert held_out["low"] <= held_out["accuracy"] <= held_out["high"]
    assert held_out["accuracy"] > 0.9
    assert run.status["state"] == "done"
    assert {"loss", "accuracy", "margin"} <= set(run.metrics().columns)


def test_the_folder_is_an_ordinary_classifier_of_one_label(run):
    model = AutoModelForSequenceClassification.from_pretrained(run.path / "model")
    assert model.config.num_labels == 1
    assert (
        model.config.pad_token_id
        == load_reward_model(str(run.path / "model")).tokenizer.pad_token_id
    )


def test_scores_do_not_depend_on_order_or_batch(run):
    model = load_reward_model(str(run.path / "model"))
    answers = ["then chop it .", "well , well , well , then chop it .", "boil ."]
    together = score(model, [PROMPT] * 3, answers)
    alone = [score(model, [PROMPT], [answer])[0] for answer in answers]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(score(model, [PROMPT] * 3, answers[::-1]), together[::-1], atol=1e-5)
    assert together[0] > together[1]
    turns = [{"role": "user", "content": PROMPT}]
    np.testing.assert_allclose(score(model, [turns], answers[:1]), together[:1], atol=1e-5)
    assert len(score(model, [], [])) == 0


def test_what_cannot_be_scored_is_a_sentence(run):
    model = load_reward_model(str(run.path / "model"))
    with pytest.raises(DataError, match="There are 1 prompts and 2 responses"):
        score(model, [PROMPT], ["a", "b"])
    with pytest.raises(DataError, match="Response 1 cannot be written"):
        score(model, [[{"role": "system", "content": PROMPT}]], ["boil ."])
    with pytest.raises(ModelError, match=r"'world' lack 1 tensors, as 'score"):
        load_reward_model("world")


def test_pairs_that_prefer_nothing_are_left_out_and_counted(tmp_path):
    rows = [json.loads(line) for line in pairs_file(tmp_path, 24).read_text().splitlines()]
    for number, row in enumerate(rows):
        row |= {"score_chosen": 2.0, "score_rejected": 2.0 if number < 5 else 1.0}
    path = tmp_path / "scored.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    config = RewardModelConfig(name="rm", runs_dir=str(tmp_path), data=str(path),
                               held_out_share=0.0, lora_rank=2)  # fmt: skip
    run = train_reward_model(config)
    assert (run.info["data"]["equal_scores"], run.info["data"]["train"]) == (5, 19)
    assert run.info["held_out"]["accuracy"] is None
    assert np.isfinite(score(load_reward_model(str(run.path / "model")), [PROMPT], ["boil ."]))
