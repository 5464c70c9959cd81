"""How far a long piece of work is: a bar for a person, status.json for everybody else."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from tqdm.auto import tqdm

from plc_core.runs import Run

BATCH_VARIABLE = "PLC_BATCH"
"""Set where notebooks are executed in a batch: the runner shows the progress, the notebook none."""

_SECONDS_BETWEEN_WRITES = 1.0


def in_batch() -> bool:
    """Whether this process is a notebook that is executed in a batch."""
    return os.environ.get(BATCH_VARIABLE) == "1"


class Progress:
    """Reports phases of work on a bar and, for a run, in its status.json."""

    def __init__(self, run: Run | None = None) -> None:
        self.run = run

    @contextlib.contextmanager
    def phase(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes how many more of `total` are done."""
        written, done = 0.0, 0
        with tqdm(total=total, desc=name, disable=in_batch() or not total) as bar:

            def advance(amount: int) -> None:
                nonlocal written, done
                done += amount
                bar.update(amount)
                if self.run is not None and time.monotonic() - written > _SECONDS_BETWEEN_WRITES:
                    written = time.monotonic()
                    self.run.set_status(phase=name, done=done, total=total)

            advance(0)
            yield advance
