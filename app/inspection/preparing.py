"""A digest made in a process of its own, so that pages answer while a large run is read.

Started here as `python -m inspection.preparing RUN`; it tells in lines of JSON
how far it is, and its memory is given back when it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from inspection.digest import digest
from inspection.run_files import RunFiles, run_files
from plc_core.runs import Run, open_run
from plc_core.storage.files import RunError

AGAIN_SECONDS = 30.0
"""What failed is tried again after so long, or at once where the files have changed."""

_started: dict[Path, Preparation] = {}
_lock = threading.Lock()


class Preparation:
    """The making of one run's digest.

    Attributes:
        done, total: visit files read so far, and all that are to be read; 0 before that is known.
        problem: the sentence that says why it failed; None where it did not.
    """

    def __init__(self, run: Run, files: RunFiles) -> None:
        self.files, self.done, self.total = files, 0, 0
        self.problem: str | None = None
        self.ended = threading.Event()
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(run.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        threading.Thread(target=self._follow, args=(run.name,), daemon=True).start()

    def _follow(self, name: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError, AttributeError, TypeError):
                said = json.loads(line)
                self.problem = said.get("problem")
                self.done, self.total = said.get("done", self.done), said.get("total", self.total)
        code = self._process.wait()
        if code and not self.problem:
            self.problem = (
                f"Reading the visits of {name!r} ended without a result (exit code {code}); the "
                "server's log says more. Load the page again to try again."
            )
        self.ended.set()


def prepare(run: Run) -> Preparation:
    """The making of the digest of `run` as its files are now, begun where it does not go on yet.

    Raises:
        RunError: where it has no pairs yet, or a file leads elsewhere.
    """
    files = run_files(run)
    with _lock:
        task = _started.get(run.path)
        going_on = task is not None and not task.ended.is_set()
        failed_lately = (
            task is not None
            and task.problem is not None
            and task.files == files
            and time.monotonic() - task.began < AGAIN_SECONDS
        )
        if task is None or not (going_on or failed_lately):
            task = _started[run.path] = Preparation(run, files)
        return task


def is_busy() -> bool:
    """Whether any run is being read now."""
    with _lock:
        return any(not task.ended.is_set() for task in _started.values())


def main() -> int:
    """Make the digest of the run in the folder that is named on the command line."""

    def say(**said: object) -> None:
        print(json.dumps(said), flush=True)  # noqa: T201

    os.nice(5)
    try:
        digest(open_run(Path(sys.argv[1])), lambda done, total: say(done=done, total=total))
    except RunError as error:
        say(problem=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
