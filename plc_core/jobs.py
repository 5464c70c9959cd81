"""Several executions of a notebook, each in a process of its own, some at a time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tqdm.auto import tqdm

from plc_core.files import RunError
from plc_core.parameters import notebook_values, run_folder
from plc_core.runs import Run, open_run

_SECONDS_BETWEEN_LOOKS = 0.3
_SECONDS_TO_STOP = 10.0


class JobError(ValueError):
    """Jobs that cannot be run as asked; the message is a sentence for the user."""


def run_jobs(
    notebook: Path | str, jobs: Sequence[Mapping[str, Any]], workers: int = 1
) -> list[str]:
    """Execute a notebook once a job, `workers` at a time; a sentence for each job that failed.

    Every job has its share of the processors, and a bar that shows its phase. A training run that
    is finished with the same parameters is kept, which is said; one that was cut off goes on from
    its last checkpoint.

    Raises:
        ParameterError, RunError, JobError: before anything runs, where a job cannot be meant.
    """
    if workers < 1:
        raise JobError(f"workers, the jobs at a time, must be at least 1; it is {workers}.")
    wanted = [notebook_values(Path(notebook), job) for job in jobs]
    folders = [run_folder(values) for values in wanted]
    if twice := {folder.name for folder in folders if folders.count(folder) > 1}:
        raise JobError(f"Two jobs have one name: {', '.join(sorted(twice))}.")
    to_run = map(_to_run, wanted, folders)
    waiting = [values for values in to_run if values is not None]
    threads = max(1, (os.cpu_count() or 1) // workers)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    running: list[_Job] = []
    errors: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    values = waiting.pop(0)
                    job_scratch = Path(tempfile.mkdtemp(dir=scratch))
                    running.append(_Job(notebook, values, job_scratch, environment))
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                for job in running[:]:
                    if job.finished():
                        running.remove(job)
                        errors += job.errors()
        finally:
            for job in running:
                job.stop()
    return errors


def _to_run(values: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """The job as it has to be run, resuming where its run was cut off; None where it is done."""
    try:
        run = open_run(folder)
        state = run.status["state"]
    except (RunError, KeyError):
        return values
    if run.info.get("kind") != "training" or not _has_parameters(run, values):
        return values  # an analysis is made again; another run of that name is refused by the job
    if state == "done" and run.is_trained and (folder / "report.html").exists():
        commit = (run.info.get("git") or {}).get("commit", "?")[:8]
        made = run.info.get("created")
        sys.stderr.write(f"{run.name}: kept, it is finished (made {made} at commit {commit})\n")
        return None
    cut_off = state != "running" and (folder / "visits").exists()
    return values | {"resume": True} if cut_off else values


def _has_parameters(run: Run, values: Mapping[str, Any]) -> bool:
    recorded = run.info.get("config") or {}
    return all(recorded.get(k) == v for k, v in values.items() if k not in ("resume", "runs_dir"))


class _Job:
    """One notebook in a process of its own, with a bar that follows its status.json."""

    def __init__(
        self,
        notebook: Path | str,
        values: Mapping[str, Any],
        scratch: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.run_folder = run_folder(values)
        parameters = scratch / "parameters.yaml"
        parameters.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
        self.log = scratch / "log"
        command = [sys.executable, "-m", "plc_core.batch", str(notebook), "-f", str(parameters)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--quiet"], stdout=log, stderr=subprocess.STDOUT, env=dict(environment)
            )
        # Where nobody watches, as in a log file, a line a phase is enough.
        watched = sys.stderr.isatty()
        shape = "{desc:44}{bar:24}{percentage:4.0f} % {elapsed}"
        self.bar = tqdm(total=1, bar_format=shape, disable=not watched)
        self._phase = ""
        self._show("starting", 0, 1)

    def finished(self) -> bool:
        """Whether the process has ended; brings the bar up to date."""
        run = None
        with contextlib.suppress(RunError):
            run = open_run(self.run_folder)
        code = self.process.poll()
        if code is not None:
            if code:
                self._show("failed", int(self.bar.n), int(getattr(self.bar, "total", None) or 1))
            else:
                self._show("done", 1, 1)
            self.bar.close()
            if not code and run is not None and run.info.get("kind") == "training":
                sys.stderr.write(f"  {run.data_sentence()}\n")
            return True
        if run is not None:
            with contextlib.suppress(RunError):
                status = run.status
                if status.get("total"):
                    self._show(str(status.get("phase")), status.get("done") or 0, status["total"])
        return False

    def _show(self, phase: str, done: int, total: int) -> None:
        text = f"{self.run_folder.name}: {phase}"
        if not self.bar.disable:
            self.bar.total, self.bar.n = total, done
            self.bar.set_description_str(text)
        elif phase != self._phase:
            sys.stderr.write(f"{text}\n")
        self._phase = phase

    def errors(self) -> list[str]:
        """The last line that a failed process said, behind the run's name."""
        if not self.process.returncode:
            return []
        said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return [f"{self.run_folder.name}: {said[-1] if said else 'ended without a word'}"]

    def stop(self) -> None:
        """End the process and, through it, its kernel."""
        self.process.terminate()
        try:
            self.process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.bar.close()
