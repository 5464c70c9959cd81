"""The benchmarks of the paper: where their prompts are published, and how many there are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from plc_core.data.folders import SourceFile, given_path, local_files
from plc_core.data.pairs import DataError
from plc_core.data.public import DATASETS, PublicDataset, public_files
from plc_core.files import cache_dir, exclusive, replacing

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
        if path.exists():
            return path
        try:
            reply = httpx.get(url, timeout=60, follow_redirects=True)
            reply.raise_for_status()
        except httpx.HTTPError as error:
            raise DataError(f"{url} could not be read ({error}). {_COPY}") from None
        with replacing(path) as temporary:
            temporary.write_bytes(reply.content)
    return path
