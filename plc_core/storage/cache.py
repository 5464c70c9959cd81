"""The cache: what was made once is kept by its content.

An entry is made under a lock, verified whenever it is used, and made anew where it is damaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from plc_core.storage.files import (
    RunError,
    read_json,
    read_table,
    write_json,
    write_table,
)
from plc_core.storage.manifest import MANIFEST, first_damaged, list_checksums
from plc_core.storage.paths import cache_dir, exclusive, unwritable_cache

_SECONDS_BETWEEN_PARTS = 0.5
_MANY = 64  # parts; more are joined into one when they are read
_ENTRY, _ENTRY_FILE = "entry", "entry.json"
"""Where an entry of the cache says which it is: in a table's metadata, and in a folder's file."""


def content_hash(content: Any) -> str:
    """32 hex digits of anything that JSON can write."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def cached_folder(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, an entry of the cache: there and whole, or filled now by `make`.

    Another process that needs the same waits, and then finds it.

    Raises:
        RunError: where it cannot be written; and whatever `make` raises, which leaves nothing.
    """
    with exclusive(folder):
        if is_whole(folder):
            return folder
        try:
            scratch = tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.")
        except OSError as error:
            raise unwritable_cache(folder.parent, error) from None
        with scratch as temporary:
            new = Path(temporary) / "new"
            new.mkdir()
            make(new)
            write_json(new / _ENTRY_FILE, {_ENTRY: folder.name})
            list_checksums(new)
            try:
                if folder.is_file():
                    folder.unlink()
                shutil.rmtree(folder, ignore_errors=True)
                new.rename(folder)
            except OSError as error:  # what is there may neither be read nor removed
                raise unwritable_cache(folder, error) from None
    return folder


def is_whole(folder: Path) -> bool:
    """Whether an entry of the cache is there with all its files undamaged, and no other's."""
    said = folder / _ENTRY_FILE
    try:
        whole = (folder / MANIFEST).is_file() and first_damaged(folder) is None
        # Entries of older versions do not say which they are.
        return whole and (not said.exists() or read_json(said).get(_ENTRY) == folder.name)
    except (RunError, OSError):  # not to be read, or of another run that the cache lay in
        return False


def cached_table(kind: str, settings: Any, make: Callable[[], pa.Table]) -> pa.Table:
    """The table of these settings from the cache, or made now.

    Args:
        kind: of table, the folder's name.
        settings: all that decides its content, as JSON can write it.
    """
    path = cache_dir() / kind / f"{content_hash(settings)}.parquet"
    with exclusive(path):
        with contextlib.suppress(RunError):
            table = read_table(path, sealed=True)
            if _is_of(table, path.stem):
                return table
        table = make()
        write_table(path, _marked(table, path.stem))
    return table


def _marked(table: pa.Table, entry: str) -> pa.Table:
    """The table with the name of its entry of the cache, so that it is not taken for another's."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _ENTRY: entry})


def _is_of(table: pa.Table, entry: str) -> bool:
    """Whether a table is of this entry; those of older versions do not say it."""
    said = (table.schema.metadata or {}).get(_ENTRY.encode())
    return said is None or bool(said == entry.encode())


class ContentStore:
    """Rows by key, in whole Parquet parts below the cache folder, one folder for like settings.

    A part is written at once and in one piece, so a kill loses what was under way and no more. A
    damaged part is dropped, and what it held is made again. Processes may add side by side: at
    worst one makes what another is making.

    Args:
        kind: of results, as "generations".
        settings: all that decides a result beside its key; settings.json says it to a person.
        schema: of the rows, with the column `key` first.
        root: of the cache.
    """

    def __init__(
        self,
        kind: str,
        settings: Mapping[str, Any],
        schema: pa.Schema,
        root: Path | None = None,
    ) -> None:
        self.folder: Path = (root or cache_dir()) / kind / content_hash(settings)
        self.schema = schema
        self._rows: dict[str, tuple[Any, ...]] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            known = (self.folder / "settings.json").exists()
        except OSError as error:
            raise unwritable_cache(self.folder, error) from None
        if not known:
            write_json(self.folder / "settings.json", settings)
        self.read()

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __getitem__(self, key: str) -> dict[str, Any]:
        return dict(zip(self.schema.names, (key, *self._rows[key]), strict=True))

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep some rows, on disk at once."""
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=self.schema)
        if table.num_rows:
            part = self.folder / f"{secrets.token_hex(8)}.parquet"
            write_table(part, _marked(table, self.folder.name))
            self._take(table)

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

    def read(self) -> None:
        """Take in what is on disk, and remove what is damaged or another store's.

        The later row of a key counts.
        """
        parts = sorted(self.folder.glob("[0-9a-f]*.parquet"), key=_written)
        for part in parts:
            try:
                table = read_table(part, sealed=True)
            except RunError:
                table = None
            own = table is not None and _is_of(table, self.folder.name)
            if own and table.schema == self.schema:
                self._take(table)
            else:
                with contextlib.suppress(OSError):  # gone, or in a cache that is only read
                    part.unlink()
        if len(parts) > _MANY:
            self.add(self[key] for key in self._rows)
            for part in parts:
                part.unlink(missing_ok=True)

    def _take(self, table: pa.Table) -> None:
        keys, *columns = (column.to_pylist() for column in table.columns)
        values = zip(*columns, strict=True) if columns else ((),) * len(keys)
        self._rows.update(zip(keys, values, strict=True))


def _written(part: Path) -> int:
    try:
        return part.stat().st_mtime_ns
    except FileNotFoundError:  # joined into another by a process beside this one
        return 0
