"""status.json: what a run is doing, kept alive by a heartbeat while it runs."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from plc_core.progress import batch_of, in_batch
from plc_core.storage.files import RunError, read_json, write_json

INPUTS_VARIABLE = "PLC_BATCH_INPUTS"
"""Set where a notebook is executed in a batch, to a file that lists the runs it opens."""

HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 120.0
"""A run counts as killed when its heartbeat is older than this.

One that is further than this in the future is of a clock that is wrong; then the time of the file
counts, which is of the machine that holds it.
"""

INTERRUPTED = "interrupted by the user"

REPORTING = "report"
"""The phase of a run whose notebook, in a batch, has yet to come to its end."""


class StatusFile:
    """The state of one run: queued, running with a heartbeat, done, failed or killed.

    A run is done when the last to work on it is: training where it was called by itself, and in a
    batch the notebook that makes the run, which evaluates after it trained. `by` is the token of
    that batch, and None where the run was not brought to its end by one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any]:
        """The fields, with state "killed" where the process that was running is gone."""
        status = read_json(self.path)
        state = status.get("state")
        if state == "running":
            ended = _is_gone(status, self._written())
        else:
            ended = state == "queued" and _has_ended(status)
        if ended:
            return status | {
                "state": "killed",
                "reason": "the process stopped without a word (killed, out of memory, or power)",
            }
        return status

    def _written(self) -> datetime:
        with contextlib.suppress(OSError, ValueError, OverflowError):
            return datetime.fromtimestamp(self.path.stat().st_mtime, UTC)
        return datetime.now(UTC)  # being replaced

    def change(self, **changes: Any) -> None:
        """Change some fields and refresh the heartbeat; a damaged file is written anew."""
        with self._lock:
            status: dict[str, Any] = {}
            with contextlib.suppress(RunError):
                status = read_json(self.path)
            write_json(self.path, status | {"heartbeat": now()} | changes)

    def end(self, state: str, reason: str | None = None) -> None:
        """Write how the run ended; one that is done is in no phase, another in its last one."""
        phase = {"phase": None, "done": None, "total": None} if state == "done" else {}
        self.change(state=state, reason=reason, finished=now(), **phase)

    def take_up(self) -> None:
        """Go on with a run that is trained: nothing but evaluation and report can be left."""
        if by := batch_of(self.path.parent):
            self._begin(REPORTING, by)
        elif self._before().get("state", "killed") in ("killed", "failed"):
            # What was cut off came after training, or is the word that it is done.
            self.change(by=None)
            self.end("done")

    @contextlib.contextmanager
    def running(self, phase: str) -> Iterator[None]:
        """Mark the run as running `phase`, keep its heartbeat; then done, failed or killed.

        In the notebook of a batch that makes this run it goes on until the notebook has ended.

        Raises RunError where another process is at work on the run.
        """
        with self._alone(), self._alive(phase):
            yield

    def _before(self) -> dict[str, Any]:
        """The fields, none where the file is missing or damaged: who begins writes it anew."""
        try:
            return self.read()
        except RunError:
            return {}

    def _begin(self, phase: str, by: str | None) -> None:
        self.change(
            state="running",
            phase=phase,
            done=None,
            total=None,
            reason=None,
            started=self._before().get("started") or now(),
            finished=None,
            pid=os.getpid(),
            by=by,
            host=socket.gethostname(),
        )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        lock = FileLock(self.path.with_name(".lock"), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise RunError(
                f"Another process is at work on the run {self.path.parent.name!r}; wait for it, or "
                "stop it first."
            ) from None
        except OSError as error:  # of a folder that may only be read
            raise RunError(f"{lock.lock_file} cannot be locked: {error.strerror}.") from None
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _alive(self, phase: str) -> Iterator[None]:
        before = self._before()
        own = batch_of(self.path.parent)
        # Who works on what a batch finished leaves it that batch's.
        by = own or (before.get("by") if before.get("state") == "done" else None)
        self._begin(phase, by)
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(HEARTBEAT_SECONDS):
                with contextlib.suppress(RunError):
                    self.change()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        state, reason = "done", None
        try:
            yield
        except KeyboardInterrupt:
            state = "killed"
            # A batch interrupts its kernel, and says itself why it was stopped.
            reason = "stopped with the batch that ran it" if in_batch() else INTERRUPTED
            raise
        except BaseException as error:
            state, reason = "failed", f"{type(error).__name__}: {error}"
            raise
        finally:
            stop.set()
            thread.join()
            # Where even this cannot be written, the error under way says more.
            with contextlib.suppress(RunError):
                if own and state == "done":
                    self.change(phase=REPORTING, done=None, total=None)
                else:
                    self.end(state, reason)


def now() -> str:
    """The time in UTC, to the second, as run files hold it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _is_gone(status: Mapping[str, Any], written: datetime) -> bool:
    """Whether the process of a run is gone, whose status.json was `written` then."""
    try:
        here = status.get("host") == socket.gethostname()
        # Between training and evaluation a notebook has no heartbeat.
        if here and status.get("phase") == REPORTING:
            return _is_dead(int(status["pid"]))
        age = _age(datetime.fromisoformat(str(status.get("heartbeat"))))
        if age < -STALE_SECONDS:
            # Here the process is known; elsewhere the file's own time may be ahead as well.
            age = 0.0 if here else abs(_age(written))
        return age > STALE_SECONDS or (here and _is_dead(int(status["pid"])))
    except (TypeError, ValueError, KeyError, OverflowError):
        return True


def _age(moment: datetime) -> float:
    return (datetime.now(UTC) - moment).total_seconds()


def _has_ended(status: Mapping[str, Any]) -> bool:
    # A report has no heartbeat; of one that a batch began on this machine the process is known.
    pid = status.get("pid")
    here = status.get("host") == socket.gethostname()
    return here and isinstance(pid, int) and _is_dead(pid)


def _is_dead(pid: int) -> bool:
    try:
        # A killed process whose parent is gone too may stay as a zombie for ever.
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, OverflowError, ValueError):
        return True
    except psutil.AccessDenied:
        return False
