"""What a person sees of jobs: a bar while one runs, a line when it has ended.

In the kernel of a notebook nothing is written: JupyterLab has one bar for all jobs, and a batch
shows what the notebook's run says in its status.json.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Sequence

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
        self._warned: set[str] = set()
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

    def warn(self, alerts: Sequence[str]) -> None:
        """Write each kind of a run's alerts once, whenever it comes."""
        for sentence in alerts:
            kind = sentence.partition(":")[0]
            if kind not in self._warned and not in_kernel():
                self._warned.add(kind)
                tqdm.write(f"  {self._name}: {sentence}", file=sys.stderr)

    def close(self) -> None:
        """End the bar."""
        self._bar.close()


class Tally:
    """A line for each of several jobs that has ended: its state, its time and what remains.

    `workers`: jobs at a time; None where it is not known, as on a cluster.
    """

    def __init__(self, jobs: int, workers: int | None = None) -> None:
        self.jobs = jobs
        self._workers = workers
        self._took: list[float] = []
        self._started = time.monotonic()

    def add(self, name: str, state: str, started: float, others: Sequence[float] = ()) -> None:
        """Count a job that has ended and say so.

        Args:
            name, state: the job's, and how it ended.
            started: when it began, by the monotonic clock.
            others: when those began that still run.
        """
        now = time.monotonic()
        self._took.append(now - started)
        if self.jobs == 1 or in_kernel():
            return
        left = self.jobs - len(self._took)
        about = clock(self._remaining(left, [now - began for began in others], now))
        rest = f"{left} left, about {about}" if left else "none is left"
        place = f"{len(self._took):{len(str(self.jobs))}}/{self.jobs}"
        tqdm.write(
            f"{place}  {name:44} {state:6} in {clock(now - started)}; "
            f"{clock(now - self._started)} so far, {rest}",
            file=sys.stderr,
        )

    def _remaining(self, left: int, running: Sequence[float], now: float) -> float:
        """Seconds until the `left` jobs have ended, of which some have run for `running` seconds.

        Each takes as long as those before did on average; a worker that is free takes the next.
        """
        if self._workers is None:
            return (now - self._started) / len(self._took) * left
        mean = sum(self._took) / len(self._took)
        busy = [max(mean - ran, 0.0) for ran in running]
        busy += [0.0] * (self._workers - len(busy))
        heapq.heapify(busy)
        for _ in range(left - len(running)):
            heapq.heapreplace(busy, busy[0] + mean)
        return max(busy)


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    return str(tqdm.format_interval(seconds))
