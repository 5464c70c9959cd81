"""How far a long piece of work is: a bar for a person, status.json for everybody else."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from tqdm.auto import tqdm

BATCH_VARIABLE = "PLC_BATCH"
"""Set where notebooks are executed in a batch, to a token of that execution."""

BATCH_RUN_VARIABLE = "PLC_BATCH_RUN"
"""Set beside it, to the folder of the run that the notebook makes."""

SECONDS_BETWEEN_STATUS = 1.0
"""How often status.json is rewritten at most, while work goes on."""


def in_batch() -> bool:
    """Whether this process is a notebook in a batch: the runner shows the progress then."""
    return bool(os.environ.get(BATCH_VARIABLE))


def batch_of(folder: Path) -> str | None:
    """The token of the batch where this process is the notebook that makes the run in `folder`."""
    if os.environ.get(BATCH_RUN_VARIABLE) != str(folder.resolve()):
        return None
    return os.environ.get(BATCH_VARIABLE)


class TakesStatus(Protocol):
    """What keeps a status, as a run does; `set_status` takes the fields to replace."""

    def set_status(self, **changes: Any) -> None:
        """Replace some fields of the status."""


class Progress:
    """Reports phases of work on a bar and, for a run, in its status.json."""

    def __init__(self, run: TakesStatus | None = None) -> None:
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
                now = time.monotonic()
                late = now - written > SECONDS_BETWEEN_STATUS
                if self.run is not None and (late or done >= total):
                    written = now
                    self.run.set_status(phase=name, done=done, total=total)

            advance(0)
            yield advance
