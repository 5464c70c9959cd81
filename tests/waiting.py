"""Waiting for what other processes do, however busy the machine is."""

import subprocess
import time
from collections.abc import Callable

import psutil


def wait_for(condition: Callable[[], object], process: subprocess.Popen | None = None) -> None:
    """Wait until `condition` holds; an error where `process`, which should bring it, has ended.

    There is no time limit here, which a busy machine would miss: pytest's own ends what hangs.
    """
    while not condition():
        ended = process is not None and process.poll() is not None
        assert not ended or condition(), f"the process ended with status {process.returncode}"
        time.sleep(0.05)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs; one that has ended and is not yet waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
