"""What to say where rows cannot be read as pairs: which field is missing, and what is like it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from plc_core.data.bounds import Bounds
from plc_core.data.folders import SourceFile
from plc_core.data.formats import rows_of_file
from plc_core.data.pairs import DataError, Pairs
from plc_core.data.rows import FIELDS
from plc_core.data.shapes import FIELDS as SHAPE_FIELDS
from plc_core.data.staging import renamed

_LOOKED_AT = 1000

# What people call the fields that are looked for here.
_ALIASES = {
    "prompt": (
        "instruction", "question", "input", "query", "context", "conversations", "messages", "text",
        "history", "user",
    ),
    "chosen": (
        "chosen_response", "preferred", "response_chosen", "answer_chosen", "best", "response_j",
        "response_w", "preferred_output", "preferred_response", "winner", "accepted", "positive",
        "pos", "better",
    ),
    "rejected": (
        "rejected_response", "dispreferred", "response_rejected", "answer_rejected", "response_k",
        "response_l", "non_preferred_output", "dispreferred_response", "loser", "negative", "neg",
        "worse",
    ),
}  # fmt: skip


def _first_row(files: list[SourceFile], encoding: str, bounds: Bounds) -> dict[str, Any]:
    for file in files:
        for _, value in rows_of_file(file.path, encoding, bounds=bounds):
            if value is not None:
                # A table's row with more cells than its header has them under no name.
                return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}
    return {}


def check_columns(
    columns: Mapping[str, str], files: list[SourceFile], encoding: str, bounds: Bounds
) -> None:
    """DataError unless `columns` maps fields that are read to fields that the rows have."""
    known = (*FIELDS, *SHAPE_FIELDS)
    if unknown := [name for name in columns if name not in known]:
        raise DataError(f"columns names {unknown[0]!r}; the fields are {', '.join(known)}.")
    if not columns:
        return
    found = _names(files, encoding, bounds)
    for theirs in columns.values():
        if theirs not in found:
            near = difflib.get_close_matches(theirs, found, n=1)
            hint = f"; is it {near[0]!r}?" if near else "."
            raise DataError(
                f"The first {_LOOKED_AT:,} rows have no field {theirs!r}, only "
                f"{', '.join(found)}{hint}"
            )


def _names(files: list[SourceFile], encoding: str, bounds: Bounds) -> list[str]:
    """The names of fields in the first rows: not every row need have each."""
    found: dict[str, None] = {}
    for file in files:
        for _, value in islice(rows_of_file(file.path, encoding, bounds=bounds), _LOOKED_AT):
            found |= dict.fromkeys(map(str, value) if isinstance(value, dict) else ())
    return list(found)


def nothing_usable(
    source: Path | str,
    pairs: Pairs,
    files: list[SourceFile],
    encoding: str,
    columns: Mapping[str, str],
    bounds: Bounds,
) -> str:
    """Why no pair is left, what the first row holds, and what to do that was not done yet."""
    if not pairs.rows_read:
        return f"{source} has no rows."
    report = pairs.report()
    if report.count("other-split") == pairs.rows_read:
        found = ", ".join(sorted(set(report.of_rule("other-split")["reason"])))
        return f"{source} has no row of the split that was asked for: {found}."
    first = _first_row(files, encoding, bounds)
    read = renamed(first, columns)
    if {"answers", "completion_a", "response_a", "preferred_output"} & set(read):
        return f"No row of {source} can be used as a pair.\n{report}"
    hints = []
    for name in ("prompt", "chosen", "rejected"):
        if name in read or not first:
            continue
        free = [theirs for theirs in first if theirs in read]  # not mapped to another field
        near = [alias for alias in _ALIASES[name] if alias in free]
        near += difflib.get_close_matches(name, free, n=1)
        whole = json.dumps(dict(columns) | {name: near[0]}) if near else ""
        hint = f"; is it {near[0]!r}? Then say columns={whole}." if near else "."
        if near[:1] == ["instruction"] and "input" in first:
            hint += " Its field 'input' would not be part of the prompt: join the two first."
        hints.append(f"The first row has no field {name!r}, only {', '.join(first)}{hint}")
    shown = [f"The first row: {json.dumps(first, default=str)[:300]}"] if first else []
    return "\n".join([f"No row of {source} can be used as a pair.", *hints, *shown, str(report)])
