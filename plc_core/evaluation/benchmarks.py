"""Prompts to evaluate on: the paper's benchmarks by name, the world, or any file of prompts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from plc_core.data.folders import SourceFile, given_path, local_files
from plc_core.data.formats import rows_of_file
from plc_core.data.pairs import DataError
from plc_core.data.public import DATASETS, PublicDataset, public_files
from plc_core.data.world import RESPONSE_TOKENS
from plc_core.data.world.prompts import held_out_prompts
from plc_core.evaluation.prompts import Prompt, prompt_of_row
from plc_core.storage.checksums import said_digest, sha256
from plc_core.storage.files import replacing_digested
from plc_core.storage.paths import cache_dir, exclusive

WORLD, GOLD = "world", "gold"
"""The embedded world's prompts, and the judge that knows the truth about answers to them alone."""
WORLD_PROMPTS = 805
FIRST = 200
"""Prompts of the fixed subset for commercial judges (the paper's evaluation protocol)."""


GITHUB = "https://raw.githubusercontent.com"
_COPY = "Where it cannot be reached, give a local copy of the file with files=…"


@dataclass(frozen=True)
class Published:
    """A published benchmark.

    Attributes:
        prompts: how many it has, or, by place, how many of its rows are used.
        hub: the dataset of the Hugging Face hub that has its rows; its files are of split test.
        github: or repository, commit and path of a file on GitHub.
        by_place: its rows have no ids, or ids that repeat: their place in the file is the id.
        called: what collections of several benchmarks call it.
    """

    prompts: int
    hub: PublicDataset | None = None
    github: tuple[str, str, str] | None = None
    by_place: bool = False
    called: tuple[str, ...] = ()


_FASTCHAT = ("lm-sys/FastChat", "589532dcfa83700f950b9aa3983416c543afabc0")
# AlpacaEval 2 asks the same 805 instructions and differs in judge and baseline. The dataset has a
# loading script, which is never run: its JSON file is read.
_ALPACA = PublicDataset(
    "tatsu-lab/alpaca_eval",
    "0cd24d711fe90d0c1aae5bde03fe98ee48ae52f8",
    {"test": ("alpaca_eval.json",)},
)

PUBLISHED: dict[str, Published] = {
    "ultrafeedback-test": Published(
        2000, DATASETS["ultrafeedback"], by_place=True, called=("ultrafeedback-test",)
    ),
    "alpaca-eval": Published(805, _ALPACA, by_place=True, called=("alpaca-eval", "alpaca_eval")),
    "alpaca-eval-2": Published(
        805, _ALPACA, by_place=True, called=("alpaca-eval-2", "alpaca_eval")
    ),
    "mt-bench": Published(
        80,
        github=(*_FASTCHAT, "fastchat/llm_judge/data/mt_bench/question.jsonl"),
        called=("mt-bench", "mt_bench"),
    ),
    "vicuna": Published(
        80,
        github=(*_FASTCHAT, "fastchat/llm_judge/data/vicuna_bench/question.jsonl"),
        called=("vicuna", "vicuna_bench"),
    ),
    "evol-instruct": Published(
        218,
        github=(
            "nlpxucan/WizardLM",
            "ce0d433589335d419aa8101abd71685ae7d187f3",
            "WizardLM/data/WizardLM_testset.jsonl",
        ),
        called=("evol-instruct", "evol_instruct"),
    ),
    # The test split in its published order, harmless-base first.
    "hh-rlhf": Published(805, DATASETS["hh-rlhf"], by_place=True, called=("hh-rlhf",)),
}


@dataclass(frozen=True)
class Benchmark:
    """Prompts in a fixed order.

    Attributes:
        name: of the files that answers to it are kept in.
        prompts: at least one, with different ids.
        origin: where they come from, for the record: repository, revision, files by SHA-256.
        max_new_tokens: of an answer, where the benchmark sets it; None leaves it to the evaluation.
        one_stream: whether the prompts share one stream of random numbers when they are sampled,
            so that the same seed gives the same answers to the same set of prompts alone.
    """

    name: str
    prompts: tuple[Prompt, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    one_stream: bool = False

    def __post_init__(self) -> None:
        if not self.prompts:
            raise DataError(f"The benchmark {self.name!r} has no prompts.")
        counts = Counter(prompt.prompt_id for prompt in self.prompts)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise DataError(
                f"The benchmark {self.name!r} has {len(twice)} ids more than once, as {twice[0]!r} "
                f"{counts[twice[0]]} times; every prompt needs an id of its own."
            )

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def fingerprint(self) -> str:
        """16 hex digits of ids, histories and turns, in their order."""
        content = [[p.prompt_id, p.history, p.turns] for p in self.prompts]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def first(self, count: int = FIRST) -> Benchmark:
        """The benchmark of the first `count` prompts, under a name of its own."""
        if not 1 <= count <= len(self):
            raise DataError(f"{self.name!r} has {len(self)} prompts; asked for were {count}.")
        name = f"{self.name}-first-{count}"
        return replace(self, name=name, prompts=self.prompts[:count])


def load_benchmark(
    source: Path | str,
    *,
    files: Path | str | None = None,
    revision: str | None = None,
    part: str | None = None,
    limit: int | None = None,
    encoding: str = "utf-8",
) -> Benchmark:
    """The benchmark of a name, or of a file of prompts.

    A row of a file holds one prompt, as a text, as turns (texts, each asked after the answer to
    the one before) or as messages that end with the user's, in one of the fields turns, messages,
    prompt, instruction, question or text; or `chosen`, whose last turn is then left out. Its id is
    prompt_id, question_id, id or idx, or else a hash of its content. Of UltraFeedback, AlpacaEval
    and HH-RLHF the id is the row's place in the published file, from 0, as that is the order which
    the paper's "first 200" and "earliest ids" go by and their own ids are missing or repeat.

    Args:
        source: a name of `PUBLISHED`, "world", or a file or folder of JSON lines, JSON, CSV,
            Parquet or Arrow.
        files: a local copy of a published benchmark, in place of the hub.
        revision: of a published benchmark, in place of the pinned one.
        part: of a file with several benchmarks, the one whose rows say so in `benchmark`.
        limit: only the first prompts; "world" has 805 unless told otherwise.

    Raises:
        DataError: naming file and row, where there is no such benchmark, a row has no prompt, ids
            repeat, or a published benchmark does not have the number of prompts it should.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise DataError(f"limit is a number of prompts, 1 or more; it is {limit!r}.")
    name = str(source)
    published = PUBLISHED.get(name)
    if part is not None and is_named(name):
        raise DataError(
            f"{name!r} is one benchmark, and has no part {part!r}; its first prompts are had by a "
            "limit."
        )
    if name == WORLD:
        return world_benchmark(limit or WORLD_PROMPTS)
    if published is not None:
        found, origin = published_files(name, published, files, revision)
        prompts = _published_prompts(name, published, found, encoding)
    else:
        if files is not None or revision is not None:
            raise DataError(
                f"There is no benchmark {name!r}; the names are {', '.join([*PUBLISHED, WORLD])}."
            )
        found, origin = local_files(source, "test", [*PUBLISHED, WORLD]), {}
        rows = list(_rows(found, encoding))
        if part is not None:
            rows = _of_part(source, rows, part)
        prompts = [prompt_of_row(file, number, row) for file, number, row in rows]
        # It becomes part of file names.
        name = (
            re.sub(r"[^\w+-]+", "-", part or Path(name).name.split(".")[0]).strip("-") or "prompts"
        )
    origin = {**origin, "files": {file.name: file.digest() for file in found}}
    benchmark = Benchmark(name, tuple(prompts), origin)
    return benchmark.first(limit) if limit is not None and limit < len(benchmark) else benchmark


def world_benchmark(count: int) -> Benchmark:
    """The first `count` held-out prompts of the embedded world."""
    prompts = [
        Prompt(hashlib.sha256(p.text.encode()).hexdigest()[:16], (p.text,), category=p.family)
        for p in held_out_prompts(count)
    ]
    origin = {"world": "held-out prompts"}
    return Benchmark(WORLD, tuple(prompts), origin, RESPONSE_TOKENS, one_stream=True)


def open_benchmark(source: str, world_prompts: int, limit: int | None = None) -> Benchmark:
    """The benchmark of a notebook's parameter: a name or a file, a part of a file as file#part;
    the first `world_prompts` of the world, and the first `limit` of any other.
    """
    path, _, part = source.partition("#")
    return load_benchmark(path, part=part or None, limit=world_prompts if path == WORLD else limit)


def is_named(source: str) -> bool:
    """Whether it is the name of a benchmark, and no file."""
    return source in PUBLISHED or source == WORLD


def model_for(benchmark: str) -> str | None:
    """The one model whose policies a benchmark can be put to; None where any can answer."""
    return WORLD if benchmark == WORLD else None


def published_files(
    name: str, published: Published, files: Path | str | None, revision: str | None
) -> tuple[list[SourceFile], dict[str, Any]]:
    """The files of a published benchmark, and the record of where they are from.

    Raises:
        DataError: where they are not to be had.
    """
    if files is not None:
        repository = published.hub.repository if published.hub else _of_github(published)[0]
        origin = {"repository": repository, "revision": revision or "a local copy"}
        path = given_path(files)
        if path.is_dir() and published.hub:
            return public_files(name, published.hub, "test", files, revision)
        return local_files(path, "test"), origin
    if published.hub is not None:
        return public_files(name, published.hub, "test", None, revision)
    repository, pinned, path_inside = _of_github(published)
    commit = revision or pinned
    path = _downloaded(repository, commit, path_inside)
    return [SourceFile(path, path_inside, "test")], {"repository": repository, "revision": commit}


def _of_github(published: Published) -> tuple[str, str, str]:
    assert published.github is not None  # a published benchmark has one of the two
    return published.github


def _downloaded(repository: str, commit: str, inside: str) -> Path:
    """A file of a commit, which never changes, from the cache or else from GitHub."""
    url = f"{GITHUB}/{repository}/{commit}/{inside}"
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    path: Path = cache_dir() / "benchmarks" / f"{name}.jsonl"
    with exclusive(path):
        with contextlib.suppress(OSError):  # it is not there, or damaged
            if said_digest(path) in (None, sha256(path)):
                return path
        try:
            reply = httpx.get(url, timeout=60, follow_redirects=True)
            reply.raise_for_status()
        except httpx.HTTPError as error:
            raise DataError(f"{url} could not be read ({error}). {_COPY}") from None
        with replacing_digested(path) as temporary:
            temporary.write_bytes(reply.content)
    return path


def _published_prompts(
    name: str, published: Published, files: list[SourceFile], encoding: str
) -> list[Prompt]:
    rows = (
        place
        for place in _rows(files, encoding)
        if _benchmark_of(place[2]) in (None, *published.called)
    )
    prompts = [
        prompt_of_row(file, number, row, str(place) if published.by_place else None)
        for place, (file, number, row) in enumerate(rows)
        if not published.by_place or place < published.prompts
    ]
    if len(prompts) != published.prompts:
        raise DataError(
            f"The benchmark {name!r} has {published.prompts:,} prompts, and in "
            f"{', '.join(str(file.path) for file in files)} there are {len(prompts):,}. Is it a "
            "whole copy of the published file? As a benchmark of your own, give the file alone."
        )
    return prompts


def _rows(files: list[SourceFile], encoding: str) -> Iterator[tuple[Path, int, Any]]:
    for file in files:
        for number, value in rows_of_file(file.path, encoding):
            yield file.path, number, value


def _of_part(
    source: Path | str, rows: list[tuple[Path, int, Any]], part: str
) -> list[tuple[Path, int, Any]]:
    """The rows whose field `benchmark` is the part's name."""
    found = [place for place in rows if _benchmark_of(place[2]) == part]
    if not found:
        names = sorted({str(name) for _, _, row in rows if (name := _benchmark_of(row))})
        known = f"there are {', '.join(names)}" if names else "no row has the field benchmark"
        raise DataError(f"{source} has no part {part!r}: {known}.")
    return found


def _benchmark_of(row: Any) -> Any:
    return row.get("benchmark") if isinstance(row, dict) else None
