"""What processes find around them: environment variables, and streams that cannot write all."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Within, these variables are set, for child processes too; after, they are as before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def plain_streams() -> None:
    """Let output survive a locale without Unicode: what it cannot write becomes a question mark.

    Without this a table with a dash ends in a UnicodeEncodeError under LC_ALL=C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
