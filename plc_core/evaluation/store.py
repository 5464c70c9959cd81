"""Results kept by content in the cache, shared by all runs: asked once, never again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from plc_core.files import RunError, cache_dir, read_table, write_json, write_table

_SECONDS_BETWEEN_PARTS = 0.5
_MANY = 64  # parts; more are joined into one when they are read


def content_hash(content: Any) -> str:
    """32 hex digits of anything that JSON can write."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class ContentStore:
    """Rows by key, in whole Parquet parts below the cache folder, one folder for like settings.

    A part is written at once and in one piece, so a kill loses what was under way and no more. A
    damaged part is dropped, and what it held is made again. Processes may add side by side: at
    worst one makes what another is making.

    Args:
        kind: of results, as "generations".
        settings: all that decides a result beside its key; settings.json says it to a person.
        schema: of the rows, with the column `key`.
    """

    def __init__(self, kind: str, settings: Mapping[str, Any], schema: pa.Schema) -> None:
        self.folder: Path = cache_dir() / kind / content_hash(settings)
        self.schema = schema
        self._rows: dict[str, dict[str, Any]] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"The cache folder {self.folder} cannot be written ({error.strerror}). Set "
                "PLC_CACHE to a folder that can."
            ) from None
        if not (self.folder / "settings.json").exists():
            write_json(self.folder / "settings.json", settings)
        self._read()

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._rows[key]

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep some rows, on disk at once."""
        new = [dict(row) for row in rows]
        if not new:
            return
        self._write(new)
        self._rows |= {row["key"]: row for row in new}

    @contextlib.contextmanager
    def adding(self) -> Iterator[Callable[[Iterable[Mapping[str, Any]]], None]]:
        """Yield a function that keeps rows; they go to the disk twice a second, and at the end.

        So a kill loses half a second of results beside those under way, and results that come
        faster than files are written do not wait for them.
        """
        waiting: list[Mapping[str, Any]] = []
        lock, stop = threading.Lock(), threading.Event()
        problems: list[RunError] = []

        def flush() -> None:
            with lock:
                rows = waiting.copy()
                waiting.clear()
            self.add(rows)

        def write() -> None:
            try:
                while not stop.wait(_SECONDS_BETWEEN_PARTS):
                    flush()
            except RunError as error:  # the disk is full
                problems.append(error)

        def add(rows: Iterable[Mapping[str, Any]]) -> None:
            if problems:
                raise problems[0]
            with lock:
                waiting.extend(rows)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        try:
            yield add
        finally:
            stop.set()
            writer.join()
            flush()

    def _write(self, rows: list[dict[str, Any]]) -> None:
        table = pa.Table.from_pylist(rows, schema=self.schema)
        write_table(self.folder / f"{secrets.token_hex(8)}.parquet", table)

    def _read(self) -> None:
        # The later of two rows of one key counts.
        parts = sorted(self.folder.glob("[0-9a-f]*.parquet"), key=_written)
        for part in parts:
            try:
                table = read_table(part)
                whole = table.schema == self.schema and not table["key"].null_count
            except RunError:
                whole = False
            if whole:
                self._rows |= {row["key"]: row for row in table.to_pylist()}
            elif part.exists():  # not joined into another by a process beside this one
                with contextlib.suppress(OSError):
                    part.unlink()
        if len(parts) > _MANY:
            self._write(list(self._rows.values()))
            for part in parts:
                part.unlink(missing_ok=True)


def _written(part: Path) -> int:
    try:
        return part.stat().st_mtime_ns
    except FileNotFoundError:  # joined into another by a process beside this one
        return 0
