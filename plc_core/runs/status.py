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

from filelock import FileLock, Timeout

from plc_core.files import RunError, read_json, write_json
from plc_core.progress import BATCH_VARIABLE

INPUTS_VARIABLE = "PLC_BATCH_INPUTS"
"""Set where a notebook is executed in a batch, to a file that lists the runs it opens."""

HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 120.0
"""A run counts as killed when its heartbeat is older than this."""


class StatusFile:
    """The state of one run: queued, running with a heartbeat, done, failed or killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any]:
        """The fields, with state "killed" where the process that was running is gone."""
        status = read_json(self.path)
        state = status.get("state")
        ended = _is_gone(status) if state == "running" else state == "queued" and _has_ended(status)
        if ended:
            return status | {
                "state": "killed",
                "reason": "the process stopped without a word (killed, out of memory, or power)",
            }
        return status

    def change(self, **changes: Any) -> None:
        """Change some fields and refresh the heartbeat."""
        with self._lock:
            status = read_json(self.path) if self.path.exists() else {}
            write_json(self.path, status | {"heartbeat": now()} | changes)

    @contextlib.contextmanager
    def running(self, phase: str) -> Iterator[None]:
        """Mark the run as running `phase`, keep its heartbeat; then done, failed or killed.

        Raises RunError where another process is at work on the run.
        """
        with self._alone(), self._alive(phase):
            yield

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
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _alive(self, phase: str) -> Iterator[None]:
        self.change(
            state="running",
            phase=phase,
            done=None,
            total=None,
            reason=None,
            started=self.read().get("started") or now(),
            finished=None,
            pid=os.getpid(),
            by=os.environ.get(BATCH_VARIABLE),
            host=socket.gethostname(),
        )
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
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            state = "killed" if interrupted else "failed"
            reason = (
                "interrupted by the user" if interrupted else f"{type(error).__name__}: {error}"
            )
            raise
        finally:
            stop.set()
            thread.join()
            # Where even this cannot be written, the error under way says more.
            with contextlib.suppress(RunError):
                self.change(state=state, reason=reason, finished=now())


def now() -> str:
    """The time in UTC, to the second, as run files hold it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _is_gone(status: Mapping[str, Any]) -> bool:
    try:
        heartbeat = datetime.fromisoformat(str(status.get("heartbeat")))
        if (datetime.now(UTC) - heartbeat).total_seconds() > STALE_SECONDS:
            return True
        return status.get("host") == socket.gethostname() and _is_dead(int(status["pid"]))
    except (TypeError, ValueError, KeyError):
        return True


def _has_ended(status: Mapping[str, Any]) -> bool:
    # A report has no heartbeat; of one that a batch began on this machine the process is known.
    pid = status.get("pid")
    here = status.get("host") == socket.gethostname()
    return here and isinstance(pid, int) and _is_dead(pid)


def _is_dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return False
