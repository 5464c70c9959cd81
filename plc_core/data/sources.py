"""Where pairs come from: a reader for local files of JSON lines, plain or gzip."""

from __future__ import annotations

import difflib
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from plc_core.data.pairs import DataError, Pairs, pairs_from_rows

_GZIP = b"\x1f\x8b"


def load_pairs(path: Path | str, limit: int | None = None) -> Pairs:
    """The preference pairs of a file of JSON lines, `*.jsonl` or `*.jsonl.gz`, one object a line.

    Fields: chosen and rejected (text, or a list of messages ending with the answer); prompt (text
    or messages) unless the messages hold it; optional score_chosen, score_rejected, source, split.

    Args:
        path: the file.
        limit: read the first `limit` rows only.

    Raises:
        DataError: naming file, row and what to do, where the file is no such file.
    """
    path = Path(path)
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a path that is too long
        raise DataError(f"There is no file of pairs at {path}.")
    first: dict[str, Any] = {}

    def rows() -> Iterator[dict[str, Any] | None]:
        for row in _json_lines(path):
            first.update(row if row and not first else {})
            yield row

    pairs = pairs_from_rows(islice(rows(), limit), source=path.name)
    if not len(pairs) and not pairs.dropped:
        raise DataError(f"{path} has no rows.")
    if not len(pairs):
        hint = _missing_fields(first)
        raise DataError(f"No row of {path} can be used as a pair. {hint}\n{pairs.report()}")
    return pairs


def _json_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    with path.open("rb") as probe:
        zipped = probe.read(2) == _GZIP
    number, line = 0, ""
    try:
        with gzip.open(path) if zipped else path.open("rb") as lines:
            for number, raw in enumerate(lines, start=1):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                if not line.strip():
                    yield None
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise DataError(
                        f"{path}, row {number}: expected a JSON object, found a "
                        f"{type(row).__name__}. Write one object a line."
                    )
                yield row
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, row {number}, byte {error.start}: not UTF-8. Convert the file first."
        ) from None
    except json.JSONDecodeError as error:
        whole = number == 1 and line.lstrip().startswith("[")
        hint = " This looks like one JSON array over several lines." if whole else ""
        raise DataError(
            f"{path}, row {number}, character {error.pos + 1}: no JSON object ({error.msg}). "
            f"Write one object a line.{hint}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}, row {number}: not to be read as JSON ({error}).") from None
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}, after row {number}: the file is damaged ({error}).") from None


def _missing_fields(row: dict[str, Any]) -> str:
    hints = []
    for name in ("prompt", "chosen", "rejected"):
        if name not in row:
            near = difflib.get_close_matches(name, row, n=1)
            hint = f"; is it {near[0]!r}?" if near else "."
            hints.append(f"Row 1 has no field {name!r}, only {', '.join(row)}{hint}")
    return " ".join(hints)
