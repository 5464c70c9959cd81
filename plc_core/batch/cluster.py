"""Jobs on a Ray cluster, whose nodes see the same files as this machine.

A job is one task, which executes the notebook in a process of its node. A task that is lost with
its node is started again on another one, and a training run goes on from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plc_core.batch.jobs import JobError, Process, Starter, going_on
from plc_core.parameters import run_folder
from plc_core.runs import open_run
from plc_core.runs.status import STALE_SECONDS
from plc_core.storage.files import RunError

_STARTS = 4
"""How often a job is begun at most, where nodes go away under it."""


@contextlib.contextmanager
def ray_starter(address: str, gpus: float = 0) -> Iterator[Starter]:
    """What starts jobs on the cluster at `address`, each with a CPU core and `gpus` GPUs.

    Raises JobError where Ray is not installed, or no cluster answers.
    """
    try:
        import ray
    except ImportError:
        raise JobError("Ray is not installed: pip install 'plc-core[ray]'.") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise JobError(f"No Ray cluster answers at {address}: {error}") from None
    try:
        available = ray.cluster_resources().get("GPU", 0)
        if gpus > available:
            raise JobError(
                f"A job asks for {gpus:g} GPUs, and the cluster at {address} has {available:g}."
            )
        yield lambda notebook, values, scratch: _Task(notebook, values, gpus)
    finally:
        ray.shutdown()


class _Task:
    """A notebook executed by a task of the cluster."""

    def __init__(self, notebook: Path, values: Mapping[str, Any], gpus: float) -> None:
        self._notebook, self._values, self._gpus = notebook, dict(values), gpus
        self._starts = 0
        self._said = ""
        self._start()

    def _start(self) -> None:
        import ray

        self._starts += 1
        task = ray.remote(_execute).options(num_cpus=1, num_gpus=self._gpus, max_retries=0)
        self._reference = task.remote(str(self._notebook), self._values, self._starts > 1)

    def poll(self) -> int | None:
        """The exit status; None while it goes on."""
        import ray

        done, _ = ray.wait([self._reference], timeout=0)
        if not done:
            return None
        try:
            code, self._said = ray.get(self._reference)
        except ray.exceptions.RayError as error:
            self._said = f"the cluster lost the job {self._starts} times, at last: {error}"
            if self._starts >= _STARTS:
                return 1
            self._start()
            return None
        return int(code)

    def said(self) -> str:
        """The last line that it wrote."""
        return " ".join(self._said.split())

    def stop(self, number: int) -> None:
        """End the task, whatever the signal; its process sees it end."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            ray.cancel(self._reference, force=True)


def _execute(notebook: str, values: dict[str, Any], again: bool) -> tuple[int, str]:
    if again:
        values = _after_the_lost(values)
    with tempfile.TemporaryDirectory() as scratch:
        process = Process(
            Path(notebook), values, Path(scratch), {"TOKENIZERS_PARALLELISM": "false"}
        )
        try:
            while (code := process.poll()) is None:
                time.sleep(0.3)
        finally:
            process.stop()
        return code, process.said() if code else ""


def _after_the_lost(values: dict[str, Any]) -> dict[str, Any]:
    """The job's parameters, to go on with what a lost attempt left, once that is at an end.

    A lost node's process may work on for a while; one that is cut off from here has no heartbeat.
    """
    folder = run_folder(values)
    deadline = time.monotonic() + STALE_SECONDS
    with contextlib.suppress(RunError, KeyError):  # it made no run
        while open_run(folder).status["state"] == "running" and time.monotonic() < deadline:
            time.sleep(1)
    return going_on(values, folder)
