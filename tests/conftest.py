"""Offline, with a cache of its own, and no run of the user's touched."""

import os
import sys
from pathlib import Path

import pytest

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",  # the models are tiny: a second thread only waits for the first
    "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false",
}
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "app"))


def pytest_make_parametrize_id(val, argname):
    """Name bytes by their argument: compressed ones hold the clock, and workers would disagree."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session")
def study_runs(tmp_path_factory):
    """The runs of the tiny studies, which share them by content."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """Real benchmarks' shapes and the runs of the studies on them; see tests/real_shapes.py."""
    from tests.real_shapes import Shapes  # loads torch

    return Shapes(tmp_path_factory.mktemp("shapes"))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """One cache for the whole session: what one test samples, the next one reuses."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("PLC_CACHE")
    os.environ["PLC_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["PLC_CACHE"]
    else:
        os.environ["PLC_CACHE"] = before
