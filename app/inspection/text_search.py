"""A search in all texts of a run, part by part: what was found so far can be shown at once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from inspection.database import frame, query
from inspection.queries import Rows
from plc_core.storage.files import RunError

FIRST_PAIRS, PAIRS_A_PART = 10_000, 50_000
"""Pairs whose texts are read before the first result, and between later ones."""

_KEPT = 8
_searches: OrderedDict[tuple[Any, ...], Search] = OrderedDict()
_lock = threading.Lock()

# Quicker than lower(), which copies every text.
_FOUND = "regexp_matches({}, regexp_escape($2), 'i')"


class Search:
    """A search for a text in a turn of the prompt or in an answer, in any case.

    It goes on in a thread of its own, from the first pair to the last. All texts of the run are
    read for it, and none is kept.

    Attributes:
        read, total: pairs whose texts were read so far, and all of the run.
        problem: the sentence that says why it ended early; None while nothing is wrong.
    """

    def __init__(self, run: Path, text: str) -> None:
        self.read = self.total = 0
        self.problem: str | None = None
        self._path, self._text = str(run / "pairs.parquet"), text
        self._parts: list[np.ndarray] = []
        self._first, self._ended = threading.Event(), threading.Event()
        self._stopped = threading.Event()
        threading.Thread(target=self._go, daemon=True).start()

    @property
    def ended(self) -> bool:
        """Whether all texts were read, or a problem ended it."""
        return self._ended.is_set()

    @property
    def found(self) -> int:
        """Pairs found so far."""
        return sum(map(len, list(self._parts)))

    def wait(self, seconds: float, whole: bool = False) -> None:
        """Wait for the first pair that is found, or with `whole` for the end; not for longer."""
        (self._ended if whole else self._first).wait(seconds)

    def stop(self) -> None:
        """Read no further part: nobody waits for it any more."""
        self._stopped.set()

    def rows(self) -> Rows:
        """The places of the pairs found so far, in the run's order.

        Raises:
            RunError: where the pairs have no texts, or cannot be read.
        """
        if self.problem:
            raise RunError(self.problem)
        parts = list(self._parts)
        places = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return Rows(f"{self._path} {len(parts)} {self._text}", places)

    def _go(self) -> None:
        try:
            condition = self._condition()
            self.total = pq.read_metadata(self._path).num_rows
            while self.read < self.total:
                if self._stopped.is_set():
                    raise RunError("Newer searches stopped this one; search again.")
                end = min(self.read + (PAIRS_A_PART if self.read else FIRST_PAIRS), self.total)
                sql = (
                    "SELECT file_row_number AS row FROM read_parquet($1, file_row_number = true) "
                    f"WHERE file_row_number >= {self.read} AND file_row_number < {end} "
                    f"AND ({condition}) ORDER BY row"
                )
                self._parts.append(query(sql, [self._path, self._text])["row"].to_numpy())
                self.read = end
                if self.found:
                    self._first.set()
        except RunError as error:
            self.problem = str(error)
        except Exception as error:  # a file that is replaced while it is read may hold anything
            self.problem = f"{self._path} cannot be searched ({type(error).__name__})."
        finally:
            self._ended.set()
            self._first.set()

    def _condition(self) -> str:
        described = frame("DESCRIBE SELECT * FROM read_parquet($1)", [self._path])
        types = dict(zip(described["column_name"], described["column_type"], strict=True))
        texts = [n for n in ("chosen", "rejected") if types.get(n) == "VARCHAR"]
        found = [_FOUND.format(name) for name in texts]
        if str(types.get("prompt", "")).startswith("STRUCT"):
            inside = _FOUND.format("turn.content")
            found.append(f"len(list_filter(prompt, lambda turn: {inside})) > 0")
        if not found:
            raise RunError(f"{self._path} has no texts to search in.")
        return " OR ".join(found)


def search(run: Path, text: str) -> Search:
    """The search for `text` in the run's texts as they are now: begun, going on, or ended.

    One that met a problem is begun again.
    """
    state = (run / "pairs.parquet").stat()
    key = str(run), state.st_mtime_ns, state.st_size, text
    with _lock:
        if key not in _searches or _searches[key].problem is not None:
            _searches[key] = Search(run, text)
        _searches.move_to_end(key)
        while len(_searches) > _KEPT:
            _searches.popitem(last=False)[1].stop()
        return _searches[key]
