"""Ctrl-C and SIGTERM as one sentence and a status, from the first import on.

Nothing is imported here but what costs no time. A command passes two phases: while it imports,
`leave_at_once` ends it (an exception would end in a traceback of whatever was being imported, or be
swallowed by it); once it works, within `stopping`, it is interrupted and cleans up behind itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_first: int | None = None


class Stopped(KeyboardInterrupt):
    """A command that is asked to stop otherwise than by Ctrl-C; the message says by what."""


def leave_at_once() -> None:
    """End the process with a sentence and 130 or 143 at a signal; for commands that import."""
    for number in SIGNALS:
        # Where it is ignored, as in the background of a shell, it stays so.
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, leave)


def leave(number: int, _: object = None) -> None:
    """End the process now."""
    with contextlib.suppress(OSError):
        os.write(2, b"Interrupted.\n")
    os._exit(128 + number)


def exit_status() -> int:
    """That of a process which a signal stopped: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (_first or signal.SIGINT)


@contextlib.contextmanager
def stopping(reason: Callable[[int], str] | None = None) -> Iterator[None]:
    """Within, Ctrl-C raises KeyboardInterrupt and SIGTERM `Stopped`, with `reason` as its message.

    The first one counts: later ones are ignored, so that nothing interrupts the cleaning up. A
    command, which ends after this, ignores them to its end.
    """
    stopped = False

    def stop(number: int, _: object) -> None:
        global _first
        nonlocal stopped
        if stopped:  # signal.signal lets one in that came meanwhile
            return
        stopped, _first = True, number
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        name = signal.Signals(number).name
        raise Stopped(reason(number) if reason else f"stopped from outside ({name})")

    with handling(stop):
        yield


@contextlib.contextmanager
def handling(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Within, `handler` takes Ctrl-C, unless it is ignored, and SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number in SIGNALS:
            if number == signal.SIGTERM or before[number] != signal.SIG_IGN:
                signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_IGN if old is leave else old)
