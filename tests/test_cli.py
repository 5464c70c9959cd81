"""The command `plc`, in a checkout and installed from a wheel."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plc_core.cli import COMMANDS, main
from tests.paths import ROOT

TINY = {"num_pairs": 16, "batch_pairs": 16, "pairs_per_forward": 16, "eval_prompts": 4}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_takes(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_the_help_lists_every_command_and_every_parameter_of_training(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    assert "learning_rate         None                  5e-4 or 1e-4: peak" in shown
    assert "the first is for the world, the second for your own pairs" in shown
    assert "optimizer steps between checkpoints" in shown


def test_an_unknown_command_and_a_missing_file_are_sentences(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["tran"])
    assert end.value.code == 2
    assert main(["train", str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml cannot be read: No such file" in capsys.readouterr().err


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that holds the package as a wheel installs it."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, which builds the wheel, is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    return site


def plc(site: Path, where: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(site / "bin" / "plc"), *words],
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )


def test_a_wheel_brings_notebooks_recipes_app_and_results(installed):
    resources = installed / "plc_core" / "resources"
    for name in (
        "notebooks/01_train.ipynb",
        "notebooks/recipes/demo.yaml",
        "app/inspector.py",
        "data/paper/cells.csv",
        "data/results/world/jobs.csv",
    ):
        assert (resources / name).is_file(), name


def test_an_installed_package_works_from_an_empty_folder(installed, tmp_path):
    table = plc(installed, tmp_path, "evidence")
    assert table.stdout.count("\n") > 30, table.stderr
    assert "| not run |" not in table.stdout.splitlines()[2]
    values = [word for name, value in TINY.items() for word in ("-p", name, str(value))]
    run = plc(installed, tmp_path, "batch", "01_train", "-p", "name", "first", *values)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
