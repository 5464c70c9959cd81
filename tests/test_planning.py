"""Runs planned by content, and what is said where they are missing."""

from pathlib import Path

import pytest

from plc_core.experiments import plan_runs, ready_runs
from plc_core.files import RunError
from plc_core.parameters import ParameterError
from tests.fake_run import write_fake_run


def test_a_name_is_the_content_and_nothing_else() -> None:
    first, second = plan_runs("world", {"a": {"objective": "dpo", "flip_rate": 0.2}}, [0, 1])
    again = plan_runs("world", {"b": {"flip_rate": 0.2, "beta": 0.2}}, [0], {"objective": "dpo"})
    assert again[0].name == first.name  # another label, another place, a default spelled out
    assert first.name != second.name
    assert (first.label, second.seed) == ("a", 1)
    changed = plan_runs("world", {"a": {"objective": "dpo", "flip_rate": 0.3}}, [0])
    assert changed[0].name != first.name


def test_a_recipe_comes_before_common_and_common_before_the_variant() -> None:
    (run,) = plan_runs("small-real", {"a": {"beta": 0.3}}, [0], {"beta": 0.2, "lora_rank": 8})
    assert run.parameters["beta"] == 0.3
    assert run.parameters["lora_rank"] == 8
    assert run.parameters["batch_pairs"] == 16
    with pytest.raises(RunError, match="no recipe 'large'; known are world, demo"):
        plan_runs("large", {"a": {}}, [0])


def test_unknown_parameters_are_refused_before_anything_runs() -> None:
    with pytest.raises(ParameterError, match="did you mean 'flip_rate'"):
        plan_runs("world", {"a": {"flip_rat": 0.1}}, [0])


def test_missing_runs_are_named_with_the_command(tmp_path: Path) -> None:
    planned = plan_runs("world", {f"v{i}": {"beta": 0.1 + i / 10} for i in range(4)}, [0])
    write_fake_run(tmp_path, planned[0].name, pairs=20)
    with pytest.raises(RunError) as raised:
        ready_runs(planned, str(tmp_path), make=False)
    said = str(raised.value)
    assert said.startswith(f"3 runs are missing in {tmp_path}: v1 (seed 0), v2 (seed 0), v3")
    assert f"-p name '\"{planned[1].name}\"'" in said
    assert not (tmp_path / planned[1].name).exists()


def test_ready_runs_are_opened_in_the_order_of_the_plan(tmp_path: Path) -> None:
    planned = plan_runs("world", {"x": {}, "y": {"objective": "dpo"}}, [1, 0])
    for p in planned:
        write_fake_run(tmp_path, p.name, pairs=20, seed=p.seed)
    found = ready_runs(planned, str(tmp_path), make=False)
    assert {k: [run.info["config"]["seed"] for run in own] for k, own in found.items()} == {
        "x": [1, 0],
        "y": [1, 0],
    }


def test_a_run_that_was_cut_off_is_missing(tmp_path: Path) -> None:
    (planned,) = plan_runs("world", {"x": {}}, [0])
    write_fake_run(tmp_path, planned.name, pairs=20, state="killed")
    with pytest.raises(RunError, match="1 runs are missing"):
        ready_runs([planned], str(tmp_path), make=False)
