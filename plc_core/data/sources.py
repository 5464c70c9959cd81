"""Where pairs come from: public datasets by name, local files and folders."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset

from plc_core.data.bounds import Bounds
from plc_core.data.contamination import EvaluationPrompts, evaluation_texts
from plc_core.data.exact_ties import exact_ties, has_answers
from plc_core.data.folders import SourceFile, local_files, shown_path
from plc_core.data.formats import rows_of_file
from plc_core.data.pairs import DataError, Pairs, mapped_table
from plc_core.data.public import DATASETS, public_files
from plc_core.data.rows import FIELDS, renamed
from plc_core.data.rules import RowError
from plc_core.data.shapes import FIELDS as SHAPE_FIELDS
from plc_core.data.validation import Options, RawRow, validated
from plc_core.data.world import WORLD
from plc_core.progress import Progress
from plc_core.storage.cache import cached_folder, content_hash
from plc_core.storage.files import RunError, read_json, write_json
from plc_core.storage.paths import cache_dir


def load_pairs(
    source: Path | str,
    limit: int | None = None,
    *,
    split: str | None = None,
    files: Path | str | None = None,
    revision: str | None = None,
    sample: int | None = None,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    actions: Mapping[str, str] | None = None,
    evaluation_prompts: Path | str | Iterable[str] = (),
    encoding: str = "utf-8",
    ties: bool = False,
    bounds: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Pairs:
    """The validated preference pairs of a public dataset, or of a local file or folder.

    Rows that are read: chosen and rejected (text, a dialogue in HH-RLHF's form or as a chat
    template writes it, or messages ending with the answer, as JSON text too), prompt unless the
    answers hold it, and if there are any system, score_chosen, score_rejected (or chosen-rating,
    score_w and the like), ratings_chosen, ratings_rejected, votes, source, split; the rankings of
    Nectar, the annotations of MultiPref, OpenAI's preferred_output and non_preferred_output, and
    response_a and response_b with votes. Other fields are kept as metadata. What was read is kept
    in the cache by content and settings.

    Args:
        source: a name of `DATASETS`, or a file (JSON lines, JSON, CSV, Parquet or Arrow;
            plain, gzip or zstd) or a folder of such files or of `datasets.save_to_disk`.
        limit: read the first `limit` rows, of the split, only; rows that are left out count.
        split: the split to keep. Of local files the default is "all". Of a public dataset it is
            train, and the others are not read; "all" reads them too, which shows `split-leak`.
        files: a local copy of the public dataset `source`: its folder, or one of its files.
        revision: of the public dataset, instead of the pinned one.
        sample, seed: keep this many pairs, chosen by a hash of their ids and the seed.
        columns: the rows' names of fields, as {"prompt": "input"}; a field that gives way to
            another one is kept as metadata.
        actions: changes of what rules do, as {"prefix": "drop"}; `rules.RULES` has all rules.
        evaluation_prompts: texts, or a file of rows with a prompt, to find among the prompts.
        ties: read the exact ties of rows that are several scored answers to one prompt, as those
            of UltraFeedback (`instruction`, `completions`); each tie then counts as a row.
        bounds: changes of how much the source may hold, as {"row_mb": 64}; `Bounds` has all.

    Raises:
        DataError: naming file, row and field and what to do, where it cannot be read as asked.
    """
    check_arguments(limit, sample, seed, columns, actions)
    most = Bounds.of(bounds)
    name = str(source)
    if name == WORLD:
        raise DataError("The world's pairs are sampled: plc_core.load_pairs gives them.")
    public = DATASETS.get(name)
    if public is None and files is not None:
        raise DataError(f"There is no dataset {name!r}; the names are {', '.join(DATASETS)}.")
    if public is not None:
        sample = public.sample if sample is None else sample
        ties = ties or public.ties
        found, origin = public_files(name, public, split or "train", files, revision)
        split = None if split == "all" else split or "train"
    else:
        if revision is not None:
            raise DataError("A revision is of a public dataset; local files have none.")
        split = None if split == "all" else split
        found, origin = local_files(source, split or "train", [*DATASETS, WORLD]), {}
        name = shown_path(Path(source).name)
    check_columns(columns or {}, found, encoding, most)
    texts = evaluation_texts(evaluation_prompts, encoding, most)
    settings = {
        "limit": limit,
        "split": split,
        "sample": sample,
        "seed": seed if sample is not None else None,
        "columns": dict(columns or {}),
        "actions": dict(actions or {}),
        "evaluation_prompts": hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16],
        "encoding": encoding,
        "ties": ties,
    }
    origin |= {"name": name, "settings": settings}
    evaluation = EvaluationPrompts(texts) if texts else None
    options = Options(actions or {}, evaluation, columns or {}, split, sample, seed, most)

    def read(folder: Path) -> Pairs:
        size = sum(file.path.stat().st_size for file in found)
        with (progress or Progress()).phase("reading pairs", size) as advance:
            rows = _limited(_rows(found, encoding, advance, ties, most), limit, options)
            return validated(rows, name, options, folder)

    pairs = _cached_pairs(found, origin, read)
    if not len(pairs):
        raise DataError(nothing_usable(source, pairs, found, encoding, columns or {}, most))
    return pairs


def _cached_pairs(
    files: list[SourceFile], origin: dict[str, Any], make: Callable[[Path], Pairs]
) -> Pairs:
    """The pairs that `make` reads from the files into a folder, or what it read there before.

    They are kept by the content of the files, by `origin`, which holds the settings, and by the
    code of this room. Files that are damaged, or were cut off, are made again.

    Raises:
        DataError: where a file changes while it is read.
    """
    before = _states(files)
    origin["files"] = [{"name": f.name, "split": f.split, "sha256": f.digest()} for f in files]

    def write(folder: Path) -> None:
        pairs = make(folder)
        _check_unchanged(files, before)
        write_json(folder / "pairs.json", {"rows_read": pairs.rows_read, "origin": origin})

    folder = cached_folder(cache_dir() / "pairs" / content_hash([_code(), origin])[:16], write)
    try:
        record = read_json(folder / "pairs.json")
        return Pairs(
            Dataset.from_file(str(folder / "pairs.arrow")),
            mapped_table(folder / "findings.arrow"),
            record["rows_read"],
            record["origin"],
            folder / "pairs.arrow",
        )
    except (RunError, OSError, pa.ArrowException):
        raise DataError(f"The cache folder {folder} cannot be read back.") from None


def _states(files: list[SourceFile]) -> list[tuple[int, int]]:
    """Size and time of each file, which change when it is written."""
    try:
        states = [file.path.stat() for file in files]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}.") from None
    return [(state.st_size, state.st_mtime_ns) for state in states]


def _check_unchanged(files: list[SourceFile], before: list[tuple[int, int]]) -> None:
    for file, old, new in zip(files, before, _states(files), strict=True):
        if old != new:
            raise DataError(f"{file.path} changed while it was read. Read it again.")


def _code() -> str:
    """What was read by other code is read again."""
    sources = (path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]


def check_arguments(
    limit: Any, sample: Any = None, seed: Any = 0, columns: Any = None, actions: Any = None
) -> None:
    """DataError for arguments of `load_pairs` that cannot be meant."""
    for name, value in (("limit", limit), ("sample", sample)):
        if value is not None and (type(value) is not int or value < 1):
            raise DataError(f"{name} is a number of rows, 1 or more; it is {value!r}.")
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise DataError(f"The seed is a whole number from 0 on; it is {seed!r}.")
    for name, value in (("columns", columns), ("actions", actions)):
        texts = isinstance(value, Mapping) and all(
            isinstance(text, str) for pair in value.items() for text in pair
        )
        if value is not None and not texts:
            raise DataError(f"{name} says names by names, as in a dict; it is {value!r}.")


def _rows(
    files: list[SourceFile], encoding: str, advance: Any, ties: bool, bounds: Bounds
) -> Iterator[RawRow]:
    for file in files:
        for number, value in rows_of_file(file.path, encoding, advance, bounds):
            if not ties:
                yield RawRow(file.name, number, value, file.split)
                continue
            for row in _ties_of(value) if has_answers(value) else [value]:
                yield RawRow(file.name, number, row, file.split)


def _ties_of(row: Mapping[str, Any]) -> list[Any]:
    """The exact ties of a row of answers; itself where it has none, which validation will list."""
    try:
        return exact_ties(row)
    except RowError:
        return [row]


def _limited(rows: Iterator[RawRow], limit: int | None, options: Options) -> Iterator[RawRow]:
    if limit is None:
        yield from rows
        return
    field, count = options.columns.get("split", "split"), 0
    for row in rows:
        yield row
        own = row.value.get(field) if isinstance(row.value, dict) else None
        count += options.split is None or str(own or row.split) == options.split
        if count == limit:
            return


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
        told = f"columns={whole} (on the command line -p data_columns '{whole}')"
        hint = f"; is it {near[0]!r}? Then say {told}." if near else "."
        if near[:1] == ["instruction"] and "input" in first:
            hint += " Its field 'input' would not be part of the prompt: join the two first."
        hints.append(f"The first row has no field {name!r}, only {', '.join(first)}{hint}")
    shown = [f"The first row: {json.dumps(first, default=str)[:300]}"] if first else []
    return "\n".join([f"No row of {source} can be used as a pair.", *hints, *shown, str(report)])
