"""Files written so that a reader, or a kill, never meets half of one."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock


class RunError(Exception):
    """A run folder, or a file of one, that cannot be used as asked; a sentence for the user."""


def cache_dir() -> Path:
    """Where reusable results are kept: $PLC_CACHE, or plc_core in the user's cache folder."""
    chosen = os.environ.get("PLC_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "plc_core"


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold `path` against other processes, so that what it is made of is made once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(path.name + ".lock")):
        yield


def project_path(path: str) -> Path:
    """An absolute path as it is; a relative one below the checkout, wherever the caller stands.

    Without a checkout around the package it is below the working directory.
    """
    given = Path(path).expanduser()
    checkout = Path(__file__).resolve().parent.parent
    base = checkout if (checkout / "pyproject.toml").exists() else Path.cwd()
    return given if given.is_absolute() else base / given


def write_json(path: Path, content: Any) -> None:
    """Replace `path` atomically with `content` as JSON."""
    text = json.dumps(content, indent=1, ensure_ascii=False, default=str)
    with _replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def write_table(path: Path, table: pa.Table) -> None:
    """Replace `path` atomically with `table` as Parquet."""
    with _replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    # A random name, as two threads of one process may replace the same file.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; RunError where it is missing, broken or no object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path.parent} is not a run folder: it has no {path.name}.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} should hold a JSON object but holds a {type(content).__name__}.")
    return content


def read_table(path: Path, columns: list[str] | None = None, filters: Any = None) -> pa.Table:
    """The Parquet file `path`; RunError where it cannot be read."""
    try:
        return pq.read_table(path, columns=columns, filters=filters)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} cannot be read: {error}") from None


def table_names(path: Path) -> list[str]:
    """The column names of the Parquet file `path`; RunError where it cannot be read."""
    try:
        return pq.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
