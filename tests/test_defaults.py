"""Parameters of a training run that nobody gave: they suit the pairs."""

import shlex

import yaml

from notebooks.studies.ensure_runs import _job
from plc_core.batch.planning import NOT_CONTENT, planned
from plc_core.engine.config import TrainConfig
from plc_core.parameters import defaults_beside, notebook_values, rerun_command
from tests.stand_in import TRAIN


def test_what_is_left_open_suits_the_pairs():
    """Own pairs get a real model and its settings; the world's model has its own for any pairs."""
    own = notebook_values(TRAIN, {"data": "pairs.jsonl"})
    recipe = yaml.safe_load((TRAIN.parent / "recipes" / "own-data.yaml").read_text())
    shared = recipe.keys() - {"name", "max_length"}
    assert {name: own[name] for name in shared} == {name: recipe[name] for name in shared}
    on_world = notebook_values(TRAIN, {"data": "pairs.jsonl", "model": "world"})
    assert on_world == notebook_values(TRAIN, {}) | {"data": "pairs.jsonl"}
    assert notebook_values(TRAIN, {"model": "mine"}) == notebook_values(TRAIN, {}) | {
        "model": "mine"
    }
    large = {"data": "pairs.jsonl", "tokens_per_forward": 9216}
    on_gpu = notebook_values(TRAIN, large)
    sizes = [on_gpu[name] for name in ("batch_pairs", "pairs_per_forward", "row_tokens")]
    assert sizes == [64, 64, 9216]
    assert TrainConfig(name="x", data="pairs.jsonl").learning_rate == 5e-4, "given, not left open"


def test_a_command_names_what_differs_from_what_suits_the_pairs(tmp_path):
    given = {"data": "pairs.jsonl", "beta": 0.2}
    config = notebook_values(TRAIN, given)
    defaults = defaults_beside(TRAIN, config)
    words = shlex.split(rerun_command(config, "again", tmp_path, defaults))[4:]
    named = dict(zip(words[1::3], words[2::3], strict=True))
    assert named.keys() == {"name", "runs_dir", "data", "model", "beta"}
    again = notebook_values(TRAIN, {k: yaml.safe_load(v) for k, v in named.items()})
    assert again == config | {"name": "again", "runs_dir": str(tmp_path)}


def test_a_planned_run_is_trained_as_planned_whatever_suits_the_pairs(tmp_path):
    plan = planned("all weights", {"data": "pairs.jsonl", "model": "mine", "learning_rate": 1e-5})
    values = notebook_values(TRAIN, _job(plan, tmp_path))
    expected = TrainConfig(name="x", **plan.parameters).model_dump()
    assert {k: v for k, v in values.items() if k not in NOT_CONTENT} == {
        k: v for k, v in expected.items() if k not in NOT_CONTENT
    }
