"""What the inspector's first page must not wait for."""

import subprocess
import sys

from tests.paths import ROOT

SLOW = ("torch", "transformers", "sklearn", "statsmodels")


def test_the_list_of_runs_is_read_without_the_libraries_of_other_pages() -> None:
    code = f"import views.runs, sys; print(sorted(set(sys.modules) & set({SLOW!r})))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "app",
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"
