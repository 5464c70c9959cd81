"""Several executions of a notebook, each in a process of its own, some at a time.

A process's standard input is a pipe from the one that started it, which the system closes when
that one ends, however it ends: so a killed grid leaves no job behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from plc_core.batch.job_progress import JobLine, Tally, in_kernel
from plc_core.interrupts import Stopped
from plc_core.parameters import notebook_values, run_folder
from plc_core.progress import Progress
from plc_core.runs import UNSTARTED, Run, check_root, create_run, open_run
from plc_core.storage.files import RunError

_SECONDS_BETWEEN_LOOKS = 0.3
_SECONDS_TO_STOP = 60.0
_NOT_CONTENT = ("name", "resume", "runs_dir", "make", "workers")
"""Parameters that change nothing in what comes out."""


class JobError(ValueError):
    """Jobs that cannot be run as asked; the message is a sentence for the user."""


class Execution(Protocol):
    """A job that was started: a process here (`Process`), or a task of a cluster."""

    def poll(self) -> int | None:
        """The exit status; None while it goes on."""

    def said(self) -> str:
        """The last line that it wrote."""

    def stop(self, number: int) -> None:
        """End it and, through it, its kernel; by this signal where it is a process here."""


class Starter(Protocol):
    """Starts a job: with the notebook, its parameters and an empty folder for its files."""

    def __call__(self, notebook: Path, values: Mapping[str, Any], scratch: Path) -> Execution: ...


def run_jobs(
    notebook: Path | str,
    jobs: Sequence[Mapping[str, Any]],
    workers: int = 1,
    start: Starter | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """Execute a notebook once a job, `workers` at a time; a sentence for each job that failed.

    Every job has its share of the processors. A terminal shows a bar for each that runs and a line
    for each that has ended, with its time and what remains; a log has the lines, JupyterLab one
    bar. A job whose run is finished with the same parameters is kept, which is said; a training run
    that was cut off goes on from its last checkpoint; a job that fails leaves a run folder with the
    reason, and the others go on.

    Args:
        start: starts a job elsewhere than in a process of this machine.
        progress: told how many have ended.

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
    for root in {run_folder(values).parent for values in waiting}:
        check_root(root)
    running: list[_Job] = []
    errors: list[str] = []
    ending = signal.SIGTERM
    tally = Tally(len(waiting), None if start else workers)
    start = start or _here(workers)
    counted = progress or (Progress() if in_kernel() else None)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        if counted:
            advance = stack.enter_context(counted.phase("training runs", len(waiting)))
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    values = waiting.pop(0)
                    job_scratch = Path(tempfile.mkdtemp(dir=scratch))
                    execution = start(notebook, values, job_scratch)
                    running.append(_Job(execution, values, alone=tally.jobs == 1))
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                for job in running[:]:
                    if job.finished():
                        running.remove(job)
                        errors += job.errors()
                        others = [other.started for other in running]
                        tally.add(job.run_folder.name, job.state, job.started, others)
                        if counted:
                            advance(1)
        except KeyboardInterrupt as error:
            # A terminal's Ctrl-C reaches the jobs too: the same signal twice says the same, while
            # another one might be heard before it.
            by_user = not isinstance(error, Stopped)
            ending = signal.SIGINT if by_user else signal.SIGTERM
            raise
        finally:
            for job in running:
                job.stop(ending)
    return errors


def _here(workers: int) -> Starter:
    threads = max(1, (os.cpu_count() or 1) // workers)
    environment = {
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait take four times the time of two busy processors.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return lambda notebook, values, scratch: Process(notebook, values, scratch, environment)


def _to_run(values: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """The job as it has to be run, resuming where its run was cut off; None where it is done."""
    try:
        run = open_run(folder)
        status = run.status
        state = status["state"]
    except (RunError, KeyError):
        return values
    if not _has_parameters(run, values):
        return values  # an analysis is made again; another run of that name is refused by the job
    kind = run.info.get("kind")
    # A report without a batch's word that the run is done may be that of an attempt cut off.
    by_batch = state == "done" and status.get("by") is not None
    finished = by_batch and (folder / "report.html").exists()
    if kind == "training":
        finished = finished and run.is_trained
    if kind == "analysis":
        finished = finished and run.inputs_unchanged
    if finished:
        commit = (run.info.get("git") or {}).get("commit")
        made = f"{run.info.get('created')}{f' at commit {commit[:8]}' if commit else ''}"
        sys.stderr.write(f"{run.name}: kept, it is finished (made {made})\n")
        return None
    return values if state == "running" else going_on(values, folder)


def going_on(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A job's parameters, resuming where its run was cut off after its first visits."""
    cut_off = "resume" in values and any(folder.glob("visits/*"))
    return values | {"resume": True} if cut_off else values


def _has_parameters(run: Run, values: Mapping[str, Any]) -> bool:
    recorded = run.info.get("config") or {}
    return all(recorded.get(k) == v for k, v in values.items() if k not in _NOT_CONTENT)


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
        parameters.write_text(yaml.safe_dump(dict(values), sort_keys=False), encoding="utf-8")
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
        """The last line that it wrote; or which signal ended it, before it could say anything."""
        status = self._process.returncode
        if status is not None and status < 0:
            return f"the process was killed ({signal.Signals(-status).name})"
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended without a word (status {status})"

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the process by this signal and, through it, its kernel."""
        self._process.send_signal(number)
        try:
            self._process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()


class _Job:
    """An execution whose run's status.json is shown while it goes on.

    `alone`: a log has a line a phase and what the pairs were, and a terminal keeps the bar.
    """

    def __init__(self, execution: Execution, values: Mapping[str, Any], alone: bool) -> None:
        self.run_folder = run_folder(values)
        self.started = time.monotonic()
        self._execution = execution
        self._code: int | None = None
        self._shown = JobLine(self.run_folder.name, alone)

    @property
    def state(self) -> str:
        """How the execution ended."""
        return "failed" if self._code else "done"

    def finished(self) -> bool:
        """Whether the execution has ended; brings the bar up to date."""
        run = None
        with contextlib.suppress(RunError):
            run = open_run(self.run_folder)
        self._code = self._execution.poll()
        if self._code is not None:
            self._shown.show(self.state, 0 if self._code else 1, 1)
            if not self._code and run is not None:
                if run.info.get("kind") == "training":
                    self._shown.say(run.data_sentence())
                self._shown.say(f"Run: {run.path}")
                self._shown.say(f"Report: {run.path / 'report.html'}")
            self._shown.close()
            return True
        if run is not None:
            with contextlib.suppress(RunError):
                status = run.status
                self._shown.warn(status.get("alerts") or [])
                if status.get("total"):
                    done = status.get("done") or 0
                    self._shown.show(str(status.get("phase")), done, status["total"])
        return False

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

    def stop(self, number: int) -> None:
        """End the execution and its bar."""
        self._execution.stop(number)
        self._shown.close()
