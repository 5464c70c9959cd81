"""Workers of the study that share a GPU whose memory is too small for all of them."""

import queue
import time
from types import SimpleNamespace

import pytest
import torch

from notebooks.replication.workers import take_jobs


class Laboratory:
    """Runs jobs, but for those that need more memory than there is beside the others."""

    def __init__(self, *, too_large: tuple[str, ...]) -> None:
        self.too_large = too_large
        self.tried: list[str] = []

    def run(self, job, choice):
        self.tried.append(job.name)
        if job.name in self.too_large:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return f"outcome of {job.name}"


@pytest.fixture
def todo():
    waiting = queue.Queue()
    for name in ("large", "small"):
        waiting.put(SimpleNamespace(name=name))
    return waiting


def taken(laboratory, todo, scratch, *, stays):
    come = queue.Queue()
    take_jobs(laboratory, None, todo, come, time.monotonic() + 60, scratch, stays=stays)
    return [come.get_nowait() for _ in range(come.qsize())]


def test_a_worker_without_memory_gives_its_job_back_and_leaves(todo, tmp_path):
    first = Laboratory(too_large=("large",))
    assert taken(first, todo, tmp_path / "1", stays=False) == []
    assert first.tried == ["large"]
    # Beside fewer there is room for it.
    second = taken(Laboratory(too_large=()), todo, tmp_path / "0", stays=True)
    assert [(kind, name) for kind, name, _ in second] == [("done", "small"), ("done", "large")]


def test_what_is_too_large_alone_fails_and_the_others_are_run(todo, tmp_path):
    last = Laboratory(too_large=("large",))
    come = taken(last, todo, tmp_path / "0", stays=True)
    assert [(kind, name) for kind, name, _ in come] == [("done", "small"), ("failed", "large")]
    assert last.tried == ["large", "small", "large"]
    assert "OutOfMemoryError" in come[1][2][1]
