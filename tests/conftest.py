"""Offline, with a cache of its own, and no run of the user's touched."""

import os
import resource
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",  # the models are tiny: a second thread only waits for the first
    "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false",
}
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "app"))


DEAREST = [
    "test_kill_batches",
    "test_win_rate_notebooks",
    "test_study_notebooks",
    "test_real_shapes",
    "test_experiments",
    "test_notebooks",
    "test_cut_off",
    "test_browser",
    "test_study",
    "test_kill",
    "test_sft",
    "test_real_studies",
    "test_chain",
    "test_training",
    "test_cli",
    "test_generate",
    "test_sharded",
    "test_fuzz_data",
    "test_trl",
    "test_app",
]
"""Files of tests by falling time (pytest --durations=0 says it); xdist hands out whole files."""


def pytest_make_parametrize_id(val, argname):
    """Name bytes by their argument: compressed ones hold the clock, and workers would disagree."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Every worker collects at another time, and with another seed of hashes by itself.

    So xdist, which refuses to run where two workers have other tests, meets every name of a test
    that hangs on the clock or on the order of a set, and not by chance.
    """
    now, days = time.time, int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + 86_400 * days)
        return (yield)


def pytest_collection_modifyitems(items):
    """The dearest files first, so that no worker is left alone with one of them at the end."""
    rank = {name: number for number, name in enumerate(DEAREST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(DEAREST)))


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
    """One cache for the whole session and its workers: what one test samples, the next reuses."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    folder.mkdir(exist_ok=True)
    before = os.environ.get("PLC_CACHE")
    os.environ["PLC_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["PLC_CACHE"]
    else:
        os.environ["PLC_CACHE"] = before


@pytest.fixture
def largest_file():
    """Sets the largest file that may be written, as on a disk that is full after so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def patient_ray(monkeypatch):
    """Ray, without its limit of 30 seconds for a node to start, which a busy machine misses."""
    ray = pytest.importorskip("ray")
    from ray._private import node
    from ray.cluster_utils import Cluster

    still = SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep, time=time.time)
    monkeypatch.setattr(node, "time", still)
    wait = Cluster._wait_for_node
    monkeypatch.setattr(Cluster, "_wait_for_node", lambda *given: wait(*given, timeout=3600))
    return ray
