"""All workers collect the same tests, whatever the clock says and in whatever order sets come."""

import os
import subprocess
import sys

import pytest

from tests.paths import ROOT

NAMES = """
import gzip, time, pytest
@pytest.mark.parametrize("value", {values})
def test_nothing(value):
    pass
"""


@pytest.mark.parametrize(
    ("values", "same"),
    [
        ("[str(int(time.time()) // 3600)]", False),
        ("{str(n) for n in range(50)}", False),
        ("[gzip.compress(b'x'), 'a constant']", True),
    ],
    ids=["the clock", "a set", "compressed bytes"],
)
def test_a_name_that_is_not_constant_stops_every_run_on_several_workers(tmp_path, values, same):
    (tmp_path / "test_names.py").write_text(NAMES.format(values=values))
    (tmp_path / "pytest.ini").write_text("[pytest]")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PY")}
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "tests.conftest", str(tmp_path)]
    ended = subprocess.run(
        command,
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ("Different tests were collected" in ended.stdout) == (not same), ended.stdout
    assert (ended.returncode == 0) == same
