"""What a command and the inspector's first page must not wait for."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

SLOW = ("torch", "transformers", "sklearn", "statsmodels", "datasets", "scipy.stats")


def slow_libraries_of(module: str, folder: Path) -> str:
    code = f"import {module}, sys; print(sorted(set(sys.modules) & set({SLOW!r})))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


@pytest.mark.parametrize("page", ["runs", "verdict"])
def test_a_first_page_is_drawn_without_the_libraries_of_other_pages(page: str) -> None:
    assert slow_libraries_of(f"views.{page}", ROOT / "app") == "[]"


@pytest.mark.parametrize("module", ["label_audit.config", "engine.config", "batch.jobs"])
def test_parameters_are_checked_without_the_libraries_of_models(module: str) -> None:
    """By the command, and by the process that runs the notebook, before a kernel starts."""
    assert slow_libraries_of(f"plc_core.{module}", ROOT) == "[]"
