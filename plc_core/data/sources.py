"""Where pairs come from: public datasets by name, local files and folders, the embedded world."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from plc_core.data.answers import exact_ties, has_answers
from plc_core.data.bounds import Bounds
from plc_core.data.contamination import EvaluationPrompts, evaluation_texts
from plc_core.data.folders import SourceFile, local_files, shown_path
from plc_core.data.formats import rows_of_file
from plc_core.data.hints import check_columns, nothing_usable
from plc_core.data.pairs import DataError, Pairs
from plc_core.data.pairs_cache import cached_pairs
from plc_core.data.public import DATASETS, public_files
from plc_core.data.rules import RowError
from plc_core.data.validation import Options, RawRow, validated
from plc_core.progress import Progress


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
    """The validated preference pairs of a public dataset, a local file or folder, or the world.

    Rows that are read: chosen and rejected (text, a dialogue in HH-RLHF's form or as a chat
    template writes it, or messages ending with the answer, as JSON text too), prompt unless the
    answers hold it, and if there are any system, score_chosen, score_rejected (or chosen-rating,
    score_w and the like), ratings_chosen, ratings_rejected, votes, source, split; the rankings of
    Nectar, the annotations of MultiPref, OpenAI's preferred_output and non_preferred_output, and
    response_a and response_b with votes. Other fields are kept as metadata. What was read is kept
    in the cache by content and settings.

    Args:
        source: a name of `DATASETS`, "world", or a file (JSON lines, JSON, CSV, Parquet or Arrow;
            plain, gzip or zstd) or a folder of such files or of `datasets.save_to_disk`.
        limit: read the first `limit` rows, of the split, only; rows that are left out count.
        split: the split to keep. Of local files the default is "all". Of a public dataset it is
            train, and the others are not read; "all" reads them too, which shows `split-leak`.
        files: a local copy of the public dataset `source`: its folder, or one of its files.
        revision: of the public dataset, instead of the pinned one.
        sample: keep this many pairs, chosen by a hash of their ids and `seed`.
        seed: of the sample, and of the world's pairs.
        columns: the rows' names of fields, as {"prompt": "input"}; a field that gives way to
            another one is kept as metadata.
        actions: changes of what rules do, as {"prefix": "drop"}; `rules.RULES` has all rules.
        evaluation_prompts: texts, or a file of rows with a prompt, to find among the prompts.
        encoding: of text files.
        ties: read the exact ties of rows that are several scored answers to one prompt, as those
            of UltraFeedback (`instruction`, `completions`); each tie then counts as a row.
        bounds: changes of how much the source may hold, as {"row_mb": 64}; `Bounds` has all.
        progress: shows how far the reading is.

    Raises:
        DataError: naming file, row and field and what to do, where it cannot be read as asked.
    """
    _check_arguments(limit, sample, seed, columns, actions)
    most = Bounds.of(bounds)
    name = str(source)
    if name == "world":
        if split or files or revision or sample or columns or actions:
            raise DataError("The world's pairs are sampled: they take a limit and a seed only.")
        return _world(limit, seed, progress or Progress())
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
        found, origin = local_files(source, split or "train", [*DATASETS, "world"]), {}
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

    pairs = cached_pairs(found, origin, read)
    if not len(pairs):
        raise DataError(nothing_usable(source, pairs, found, encoding, columns or {}, most))
    return pairs


def _check_arguments(limit: Any, sample: Any, seed: Any, columns: Any, actions: Any) -> None:
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


def _world(limit: int | None, seed: int, progress: Progress) -> Pairs:
    # Pairs of the world are samples of its policy: the one source that needs a model, and so the
    # engine, which is not loaded for any other.
    from plc_core.engine.models import load_policy
    from plc_core.engine.world_pairs import WORLD_PAIRS, world_pairs

    return world_pairs(*load_policy("world"), limit or WORLD_PAIRS, seed, progress)
