"""Where pairs come from: public datasets by name, local files and folders, the embedded world."""

from __future__ import annotations

import difflib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset

from plc_core.data.contamination import EvaluationPrompts
from plc_core.data.folders import SourceFile, local_files
from plc_core.data.formats import rows_of_file
from plc_core.data.pairs import DataError, Pairs
from plc_core.data.public import DATASETS, public_files
from plc_core.data.rows import FIELDS
from plc_core.data.storage import mapped_table
from plc_core.data.validation import Options, RawRow, validated
from plc_core.files import RunError, cache_dir, exclusive, read_json, write_json
from plc_core.progress import Progress

# What people call the fields that are looked for here.
_ALIASES = {
    "prompt": ("instruction", "question", "input", "query", "context", "conversations", "text"),
    "chosen": ("chosen_response", "preferred", "response_chosen", "answer_chosen", "best"),
    "rejected": ("rejected_response", "dispreferred", "response_rejected", "answer_rejected"),
}


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
    progress: Progress | None = None,
) -> Pairs:
    """The validated preference pairs of a public dataset, a local file or folder, or the world.

    Rows that are read: chosen and rejected (text, a dialogue in HH-RLHF's form, or messages ending
    with the answer), prompt unless the answers hold it, and if there are any system, score_chosen,
    score_rejected, ratings_chosen, ratings_rejected, votes, source, split; the rankings of Nectar,
    the annotations of MultiPref, and response_a and response_b with votes. Other fields are kept
    as metadata. What was read is kept in the cache by content and settings.

    Args:
        source: a name of `DATASETS`, "world", or a file (JSON lines, JSON, CSV, Parquet or Arrow;
            plain, gzip or zstd) or a folder of such files or of `datasets.save_to_disk`.
        limit: read the first `limit` rows only.
        split: the split to keep. Of a public dataset the default is train; of local files, all.
        files: a local copy of the public dataset `source`: its folder, or one of its files.
        revision: of the public dataset, instead of the pinned one.
        sample: keep this many pairs, chosen by a hash of their ids and `seed`.
        seed: of the sample, and of the world's pairs.
        columns: the rows' names of fields, as {"prompt": "input"}.
        actions: changes of what rules do, as {"prefix": "drop"}; `rules.RULES` has all rules.
        evaluation_prompts: texts, or a file of rows with a prompt, to find among the prompts.
        encoding: of text files.
        progress: shows how far the reading is.

    Raises:
        DataError: naming file, row and field and what to do, where it cannot be read as asked.
    """
    if source == "world":
        return _world(limit, seed)
    name = str(source)
    public = DATASETS.get(name)
    if public is None and files is not None:
        raise DataError(f"There is no dataset {name!r}; the names are {', '.join(DATASETS)}.")
    if public is not None:
        split = split or "train"
        sample = public.sample if sample is None else sample
        found, origin = public_files(name, public, split, files, revision)
    else:
        found, origin = local_files(source, [*DATASETS, "world"]), {}
        name = Path(source).name
    _check_columns(columns or {}, found, encoding)
    prompts, digest = _evaluation_prompts(evaluation_prompts, encoding)
    settings = {
        "limit": limit,
        "split": split,
        "sample": sample,
        "seed": seed if sample is not None else None,
        "columns": dict(columns or {}),
        "actions": dict(actions or {}),
        "evaluation_prompts": digest,
        "encoding": encoding,
    }
    origin |= {"name": name, "settings": settings}
    options = Options(actions or {}, prompts, columns or {}, split, sample, seed)
    pairs = _cached(found, origin, options, limit, encoding, progress or Progress())
    if not len(pairs):
        raise DataError(_nothing(source, pairs, found, encoding))
    return pairs


# ---- reading, once -------------------------------------------------------------------------------


def _cached(
    files: list[SourceFile],
    origin: dict[str, Any],
    options: Options,
    limit: int | None,
    encoding: str,
    progress: Progress,
) -> Pairs:
    origin["files"] = [{"name": f.name, "split": f.split, "sha256": f.digest()} for f in files]
    key = hashlib.sha256(json.dumps([_code(), origin], sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_dir() / "pairs" / key
    with exclusive(folder):
        kept = _read_cache(folder)
        if kept is not None:
            return kept
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{key}.") as temporary:
            new = Path(temporary)
            size = sum(file.path.stat().st_size for file in files)
            with progress.phase("reading pairs", size) as advance:
                rows = _limited(_rows(files, encoding, advance), limit)
                pairs = validated(rows, str(origin["name"]), options, new)
            sizes = {name: (new / name).stat().st_size for name in _ARROW}
            record = {"rows_read": pairs.rows_read, "origin": origin, "sizes": sizes}
            write_json(new / "pairs.json", record)
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
            new.mkdir()  # for the temporary folder's own removal
        made = _read_cache(folder)
        if made is None:
            raise DataError(f"The cache folder {folder} cannot be read back.")
        return made


_ARROW = ("pairs.arrow", "findings.arrow")


def _read_cache(folder: Path) -> Pairs | None:
    """What was read before; None where there is nothing, or it is not whole."""
    try:
        record = read_json(folder / "pairs.json")
        if any((folder / name).stat().st_size != record["sizes"][name] for name in _ARROW):
            return None
        dataset = Dataset.from_file(str(folder / "pairs.arrow"))
        findings = mapped_table(folder / "findings.arrow")
    except (RunError, OSError, KeyError, TypeError, pa.ArrowException):
        return None
    return Pairs(dataset, findings, record["rows_read"], record["origin"], folder / "pairs.arrow")


def _rows(files: list[SourceFile], encoding: str, advance: Any) -> Iterator[RawRow]:
    for file in files:
        for number, value in rows_of_file(file.path, encoding, advance):
            if value is not None:
                yield RawRow(file.name, number, value, file.split)


def _limited(rows: Iterator[RawRow], limit: int | None) -> Iterator[RawRow]:
    for count, row in enumerate(rows, start=1):
        yield row
        if count == limit:
            return


def _code() -> str:
    """What was read by other code is read again."""
    names = (
        "rows",
        "shapes",
        "formats",
        "checks",
        "contamination",
        "report",
        "validation",
        "pairs",
    )
    sources = (Path(__file__).with_name(f"{name}.py").read_bytes() for name in names)
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]


def _evaluation_prompts(
    given: Path | str | Iterable[str], encoding: str
) -> tuple[EvaluationPrompts | None, str | None]:
    if isinstance(given, (str, Path)):
        path = Path(given).expanduser()
        if not path.is_file():
            raise DataError(f"There is no file of evaluation prompts at {path}.")
        texts = [text for row in rows_of_file(path, encoding) for text in _prompts_of(path, row)]
    else:
        texts = list(given)
    if not texts:
        return None, None
    return EvaluationPrompts(texts), hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _prompts_of(path: Path, row: tuple[int, Any]) -> Iterator[str]:
    number, value = row
    if value is None:
        return
    prompt = value.get("prompt") if isinstance(value, dict) else value
    turns = prompt if isinstance(prompt, list) else [prompt]
    for turn in turns:
        text = turn.get("content") if isinstance(turn, dict) else turn
        if not isinstance(text, str):
            raise DataError(f"{path}, row {number}: an evaluation prompt is a text or its turns.")
        yield text


# ---- what to say where nothing can be read -------------------------------------------------------


def _first_row(files: list[SourceFile], encoding: str) -> dict[str, Any]:
    for file in files:
        for _, value in rows_of_file(file.path, encoding):
            if value is not None:
                # A table's row with more cells than its header has them under no name.
                return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}
    return {}


def _check_columns(columns: Mapping[str, str], files: list[SourceFile], encoding: str) -> None:
    if unknown := [name for name in columns if name not in FIELDS]:
        raise DataError(f"columns names {unknown[0]!r}; the fields are {', '.join(FIELDS)}.")
    if not columns:
        return
    first = _first_row(files, encoding)
    for theirs in columns.values():
        if theirs not in first:
            near = difflib.get_close_matches(theirs, first, n=1)
            hint = f"; is it {near[0]!r}?" if near else "."
            raise DataError(f"The first row has no field {theirs!r}, only {', '.join(first)}{hint}")


def _nothing(source: Path | str, pairs: Pairs, files: list[SourceFile], encoding: str) -> str:
    if not pairs.rows_read:
        return f"{source} has no rows."
    first = _first_row(files, encoding)
    hints = []
    for name in ("prompt", "chosen", "rejected"):
        if name in first:
            continue
        near = [alias for alias in _ALIASES[name] if alias in first]
        near += difflib.get_close_matches(name, first, n=1)
        hint = f'; is it {near[0]!r}? Then say columns={{"{name}": "{near[0]}"}}.' if near else "."
        hints.append(
            f"The first row has no field {name!r}, only {', '.join(map(str, first))}{hint}"
        )
    shown = json.dumps(first, default=str)[:300]
    return "\n".join(
        [f"No row of {source} can be used as a pair.", *hints, f"The first row: {shown}",
         str(pairs.report())]
    )  # fmt: skip


def _world(limit: int | None, seed: int) -> Pairs:
    # Pairs of the world are samples of its policy: the one source that needs a model, and so the
    # engine, which is not loaded for any other.
    from plc_core.engine.models import load_policy
    from plc_core.engine.world_pairs import WORLD_PAIRS, world_pairs

    return world_pairs(*load_policy("world"), limit or WORLD_PAIRS, seed, Progress())
