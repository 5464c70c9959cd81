"""Several executions of a notebook, each in a process of its own, some at a time.

A process's standard input is a pipe from the one that started it, which the system closes when
that one ends, however it ends: so a killed grid leaves no job behind.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml
from tqdm.auto import tqdm

from plc_core.files import RunError
from plc_core.parameters import notebook_values, run_folder
from plc_core.progress import in_batch
from plc_core.runs import UNSTARTED, Run, create_run, open_run

_SECONDS_BETWEEN_LOOKS = 0.3
_SECONDS_TO_STOP = 10.0


class JobError(ValueError):
    """Jobs that cannot be run as asked; the message is a sentence for the user."""


class Execution(Protocol):
    """A job that was started: a process here (`Process`), or a task of a cluster."""

    def poll(self) -> int | None:
        """The exit status; None while it goes on."""

    def said(self) -> str:
        """The last line that it wrote."""

    def stop(self) -> None:
        """End it and, through it, its kernel."""


class Starter(Protocol):
    """Starts a job: with the notebook, its parameters and an empty folder for its files."""

    def __call__(self, notebook: Path, values: Mapping[str, Any], scratch: Path) -> Execution: ...


def run_jobs(
    notebook: Path | str,
    jobs: Sequence[Mapping[str, Any]],
    workers: int = 1,
    start: Starter | None = None,
) -> list[str]:
    """Execute a notebook once a job, `workers` at a time; a sentence for each job that failed.

    Every job has its share of the processors, and a bar that shows its phase (in JupyterLab one
    bar for all). A job whose run is finished with the same parameters is kept, which is said; a
    training run that was cut off goes on from its last checkpoint; a job that fails leaves a run
    folder with the reason, and the others go on.

    Args:
        start: starts a job elsewhere than in a process of this machine.

    Raises:
        ParameterError, RunError, JobError: before anything runs, where a job cannot be meant.
    """
    if workers < 1:
        raise JobError(f"workers, the jobs at a time, must be at least 1; it is {workers}.")
    notebook = Path(notebook).resolve()
    wanted = [notebook_values(notebook, job) for job in jobs]
    folders = [run_folder(values) for values in wanted]
    if twice := {folder.name for folder in folders if folders.count(folder) > 1}:
        raise JobError(f"Two jobs have one name: {', '.join(sorted(twice))}.")
    waiting = [v for v in map(_to_run, wanted, folders) if v is not None]
    start = start or _here(workers)
    running: list[_Job] = []
    errors: list[str] = []
    with tempfile.TemporaryDirectory() as scratch, _overall(len(waiting)) as advance:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    values = waiting.pop(0)
                    job_scratch = Path(tempfile.mkdtemp(dir=scratch))
                    running.append(_Job(start(notebook, values, job_scratch), values))
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                for job in running[:]:
                    if job.finished():
                        running.remove(job)
                        errors += job.errors()
                        advance(1)
        finally:
            for job in running:
                job.stop()
    return errors


def _here(workers: int) -> Starter:
    threads = max(1, (os.cpu_count() or 1) // workers)
    environment = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    return lambda notebook, values, scratch: Process(notebook, values, scratch, environment)


def in_jupyter() -> bool:
    """Whether this is a notebook that a person looks at."""
    return "ipykernel" in sys.modules and not in_batch()


@contextlib.contextmanager
def _overall(jobs: int) -> Iterator[Callable[[int], object]]:
    with tqdm(total=jobs, desc="runs", disable=not jobs or not in_jupyter()) as bar:
        yield bar.update


def _to_run(values: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """The job as it has to be run, resuming where its run was cut off; None where it is done."""
    try:
        run = open_run(folder)
        state = run.status["state"]
    except (RunError, KeyError):
        return values
    if not _has_parameters(run, values):
        return values  # an analysis is made again; another run of that name is refused by the job
    kind = run.info.get("kind")
    finished = state == "done" and (folder / "report.html").exists()
    if kind == "training":
        finished = finished and run.is_trained
    if kind == "analysis":
        finished = finished and run.inputs_unchanged
    if finished:
        commit = (run.info.get("git") or {}).get("commit")
        made = f"{run.info.get('created')}{f' at commit {commit[:8]}' if commit else ''}"
        sys.stderr.write(f"{run.name}: kept, it is finished (made {made})\n")
        return None
    cut_off = state != "running" and (folder / "visits").exists()
    return values | {"resume": True} if cut_off and "resume" in values else values


def _has_parameters(run: Run, values: Mapping[str, Any]) -> bool:
    recorded = run.info.get("config") or {}
    return all(recorded.get(k) == v for k, v in values.items() if k not in ("resume", "runs_dir"))


class Process:
    """A notebook executed in a process of this machine."""

    def __init__(
        self,
        notebook: Path,
        values: Mapping[str, Any],
        scratch: Path,
        environment: Mapping[str, str],
    ) -> None:
        parameters = scratch / "parameters.yaml"
        parameters.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
        self._log = scratch / "log"
        command = [sys.executable, "-m", "plc_core.batch", str(notebook), "-f", str(parameters)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--quiet", "--attached"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
            )

    def poll(self) -> int | None:
        """The exit status; None while it goes on."""
        return self._process.poll()

    def said(self) -> str:
        """The last line that it wrote."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended without a word (status {self._process.returncode})"

    def stop(self) -> None:
        """End the process and, through it, its kernel."""
        self._process.terminate()
        try:
            self._process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()


class _Job:
    """An execution with a bar that follows its run's status.json."""

    def __init__(self, execution: Execution, values: Mapping[str, Any]) -> None:
        self.run_folder = run_folder(values)
        self._execution = execution
        self._code: int | None = None
        # Where nobody watches, as in a log file, a line a phase is enough.
        shape = "{desc:44}{bar:24}{percentage:4.0f} % {elapsed}"
        self.bar = tqdm(total=1, bar_format=shape, disable=not sys.stderr.isatty() or in_jupyter())
        self._phase = ""
        self._show("starting", 0, 1)

    def finished(self) -> bool:
        """Whether the execution has ended; brings the bar up to date."""
        run = None
        with contextlib.suppress(RunError):
            run = open_run(self.run_folder)
        self._code = self._execution.poll()
        if self._code is not None:
            if self._code:
                self._show("failed", int(self.bar.n), int(getattr(self.bar, "total", None) or 1))
            else:
                self._show("done", 1, 1)
            self.bar.close()
            if not self._code and run is not None and run.info.get("kind") == "training":
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
        elif phase != self._phase and not in_jupyter():
            sys.stderr.write(f"{text}\n")
        self._phase = phase

    def errors(self) -> list[str]:
        """The last line that a failed execution said, behind the run's name; kept in its folder."""
        if not self._code:
            return []
        reason = self._execution.said()
        if not self.run_folder.exists():
            with contextlib.suppress(RunError):
                run = create_run(self.run_folder.parent, self.run_folder.name, {"kind": UNSTARTED})
                run.set_status(state="failed", reason=reason)
        return [f"{self.run_folder.name}: {reason}"]

    def stop(self) -> None:
        """End the execution and its bar."""
        self._execution.stop()
        self.bar.close()
