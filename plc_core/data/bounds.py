"""How much a source may hold, so that reading it stays within 2 GB of memory."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from plc_core.data.pairs import DataError


@dataclass(frozen=True)
class Bounds:
    """What is refused as too much; every bound can be raised by name, as {"row_mb": 64}.

    Memory grows with the largest row and the number of pairs, by up to forty times the former (a
    row of many small objects) and by about 200 bytes for each of the latter; with the defaults it
    stays below 2 GB whatever the file holds.

    Attributes:
        unpacked_gb: GiB that a compressed file, or a table, may unpack to. Text that is not
            compressed is as large as it is.
        row_mb: MiB of text in one row.
        pairs: pairs of a source, before the rules over all pairs leave some out.
        rows: rows of a source that become a pair or are listed; the list is kept on disk.
    """

    unpacked_gb: float = 32
    row_mb: float = 16
    pairs: int = 4_000_000
    rows: int = 40_000_000

    @classmethod
    def of(cls, changes: Mapping[str, Any] | None) -> Bounds:
        """The defaults with some changed; DataError for an unknown name or no positive number."""
        known = [field.name for field in fields(cls)]
        if changes is not None and not isinstance(changes, Mapping):
            raise DataError(f"bounds says numbers by names, as in a dict; it is {changes!r}.")
        for name, value in (changes or {}).items():
            if name not in known:
                raise DataError(f"There is no bound {name!r}; the bounds are {', '.join(known)}.")
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 < value < 2**40:
                raise DataError(f"The bound {name!r} is a number above 0; it is {value!r}.")
        return cls(**(changes or {}))

    @property
    def row_bytes(self) -> int:
        """The bound on a row, in bytes or characters."""
        return int(self.row_mb * 2**20)

    @property
    def unpacked_bytes(self) -> int:
        """The bound on what a file unpacks to, in bytes."""
        return int(self.unpacked_gb * 2**30)

    def row_too_large(self, where: str) -> DataError:
        """The refusal of a row; `where` names it and its file."""
        return DataError(
            f"{where}: the row holds more than {self.row_mb:g} MiB of text, the bound row_mb. "
            f"If it is meant to, {_raise('row_mb', self.row_mb)}."
        )

    def file_too_large(self, path: Path) -> DataError:
        """The refusal of a file that unpacks to too much."""
        return DataError(
            f"{path} unpacks to more than {self.unpacked_gb:g} GiB, the bound unpacked_gb. If it "
            f"is meant to, {_raise('unpacked_gb', self.unpacked_gb)}, or give it in several files."
        )

    def too_many(self, path: Path, name: str) -> DataError:
        """The refusal of a source with too many rows or pairs."""
        bound = getattr(self, name)
        return DataError(
            f"{path}: with it the source has more than {bound:,} {name}, the bound {name}. Read "
            f"its first ones with a limit (num_pairs of a run), or {_raise(name, bound)}: that "
            "takes more memory and disk."
        )


def _raise(name: str, value: float) -> str:
    more = value * 4 if isinstance(value, int) else f"{value * 4:g}"
    return f'raise the bound: bounds={{"{name}": {more}}} (data_bounds of a run)'


class Bounded(io.RawIOBase):
    """A decompressed stream that stops with a DataError where it holds more than its bound."""

    def __init__(self, stream: Any, path: Path, bounds: Bounds) -> None:
        self._stream, self._path, self._bounds = stream, path, bounds
        self._left = bounds.unpacked_bytes

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the stream; how many bytes that were."""
        data = self._stream.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise self._bounds.file_too_large(self._path)
        buffer[: len(data)] = data
        return len(data)
