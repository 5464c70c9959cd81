"""CRC-32 checksums of a file's content, kept in the file itself where its format is this project's.

A JSON object ends with the checksum of the text before it as `checksum`, and so does every line of
a JSONL file. `seals` has those of Parquet files; of files of other libraries `manifest` keeps a
list. JSON lines for others to read have no room for one: beside such an export lies its SHA-256.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import stat
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

_JSON_SEAL = re.compile(rb',\n "([^"\n]{8})": "([0-9a-f]{8})"\n}\n\Z')
_SETTLED_NS = 2_000_000_000
"""Of a file written so short a time ago another change may have the same time."""


def checksum(path: Path) -> int:
    """The CRC-32 of a file's bytes; OSError where it cannot be read.

    Read once by a process, and again when its size or time of change is another.
    """
    return int(remembered(_crc_of_file, path))


def remembered(read: Callable[..., Any], path: Path) -> Any:
    """What `read(path, *stamp)` returns, from its `lru_cache` while the file is unchanged.

    Raises OSError for what is not a regular file, and whatever `read` raises.
    """
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):  # a pipe or a device would never come to an end
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    stamp = (state.st_size, state.st_mtime_ns, state.st_ino)
    settled = time.time_ns() - state.st_mtime_ns > _SETTLED_NS
    return (read if settled else read.__wrapped__)(path, *stamp)  # type: ignore[attr-defined]


def sealed_json(text: str) -> str:
    """A JSON object of one field or more, indented by 1, with its checksum as the last field."""
    body = text.removesuffix("\n}")
    return f'{body},\n "checksum": "{zlib.crc32(body.encode()):08x}"\n}}'


def json_is_whole(raw: bytes) -> bool | None:
    """Whether an object of `sealed_json` is what was written; None where it has no checksum."""
    seal = _JSON_SEAL.search(raw)
    if seal is None:
        return None
    same, named = int(seal[2], 16) == zlib.crc32(raw[: seal.start()]), seal[1] == b"checksum"
    # Its name may be what was damaged; any other field may be last in a file of older versions.
    return same and named if same or named else None


def sealed_line(entry: dict[str, Any]) -> str:
    """A line of a JSONL file with its checksum, in ASCII: any text of any user can be written."""
    return json.dumps(entry | {"checksum": _of_entry(entry)}) + "\n"


def opened_line(line: str) -> tuple[Any, bool]:
    """What `sealed_line` wrote, and whether it has a checksum.

    Raises ValueError where it is no JSON, or was changed since.
    """
    entry = json.loads(line)
    found = entry.pop("checksum", None) if isinstance(entry, dict) else None
    if found not in (None, _of_entry(entry)):
        raise ValueError("its checksum is of something else: it is damaged, or was edited")
    return entry, found is not None


def _of_entry(entry: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(entry).encode()):08x}"


def digest_file(path: Path) -> Path:
    """Where the SHA-256 of a file of another format lies that this project writes, as exports.

    As the program sha256sum writes it, which checks it too: `sha256sum -c pairs.jsonl.sha256`.
    """
    return path.with_name(f"{path.name}.sha256")


def digest_line(path: Path, digest: str) -> bytes:
    """What `digest_file` of `path` holds; the name of a file is bytes."""
    return b"%s  %s\n" % (digest.encode(), os.fsencode(path.name))


def said_digest(path: Path) -> str | None:
    """The SHA-256 that `path` should have; None where nothing beside it says so.

    Others write files of that name too: it counts where it is as sha256sum writes it, and of this
    file. Raises OSError where it cannot be read.
    """
    beside = digest_file(path)
    raw = beside.read_bytes()[: 2**12] if beside.is_file() else b""
    found = re.fullmatch(rb"([0-9a-f]{64}) [ *](.+)\n?", raw)
    return found[1].decode() if found and found[2] == os.fsencode(path.name) else None


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes; OSError where it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=2**16)
def _crc_of_file(path: Path, *stamp: int) -> int:
    with path.open("rb") as file:
        return crc_of(file)


def crc_of(file: BinaryIO, leave_out: tuple[int, int] = (0, 0)) -> int:
    """The CRC-32 of a file but for the bytes from one place up to another."""
    value = 0
    for start, length in ((0, leave_out[0]), (leave_out[1], sys.maxsize)):
        file.seek(start)
        while block := file.read(min(length, 2**22)):
            value = zlib.crc32(block, value)
            length -= len(block)
    return value
