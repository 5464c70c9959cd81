"""What a person sees of jobs: a bar while one runs, a line when it has ended.

In the kernel of a notebook nothing is written: JupyterLab has one bar for all jobs, and a batch
shows what the notebook's run says in its status.json.
"""

from __future__ import annotations

import sys
import time

from tqdm import tqdm


def in_kernel() -> bool:
    """Whether this process is a notebook, of a person's or in a batch."""
    ipython = sys.modules.get("IPython")  # a kernel has loaded it; nobody else needs to
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class JobLine:
    """A job that runs: on a terminal a bar, in a log a line a phase if it is the only one."""

    def __init__(self, name: str, alone: bool) -> None:
        self._name, self._alone = name, alone and not in_kernel()
        self._bar = tqdm(
            total=1,
            bar_format="{desc:60}{bar:20} {elapsed}",
            leave=alone,
            disable=not sys.stderr.isatty() or in_kernel(),
        )
        self._phase = ""
        self.show("starting", 0, 1)

    def show(self, phase: str, done: int, total: int) -> None:
        """Bring it up to date: `done` of `total` of a phase."""
        text = f"{self._name}: {phase}"
        if not self._bar.disable:
            self._bar.total, self._bar.n = total, done
            self._bar.set_description_str(f"{text} {done}/{total}" if total > 1 else text)
        elif self._alone and phase != self._phase:
            sys.stderr.write(f"{text}\n")
        self._phase = phase

    def say(self, sentence: str) -> None:
        """Write a sentence below a job that is the only one."""
        if self._alone:
            tqdm.write(f"  {sentence}", file=sys.stderr)

    def close(self) -> None:
        """End the bar."""
        self._bar.close()


class Tally:
    """A line for each of several jobs that has ended: its state, its time and what remains."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._ended = 0
        self._started = time.monotonic()

    def add(self, name: str, state: str, started: float) -> None:
        """Count a job, started at a time of the monotonic clock, that has ended, and say so."""
        self._ended += 1
        if self.jobs == 1 or in_kernel():
            return
        now = time.monotonic()
        left = self.jobs - self._ended
        about = clock((now - self._started) / self._ended * left)
        rest = f"{left} left, about {about}" if left else "none is left"
        place = f"{self._ended:{len(str(self.jobs))}}/{self.jobs}"
        tqdm.write(
            f"{place}  {name:44} {state:6} in {clock(now - started)}; "
            f"{clock(now - self._started)} so far, {rest}",
            file=sys.stderr,
        )


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    return str(tqdm.format_interval(seconds))
