"""Public datasets of the Hugging Face hub, at pinned revisions, or local copies of their files."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plc_core.data.folders import SourceFile, given_path, shown_path
from plc_core.data.pairs import DataError
from plc_core.data.world import WORLD


@dataclass(frozen=True)
class PublicDataset:
    """A dataset of the Hugging Face hub, and its files with pairs; data/README.md has more.

    Attributes:
        repository: its name on the hub.
        revision: the commit that is read unless another is asked for.
        files: patterns of the files of each split.
        sample: a fixed number of pairs, the same for everybody; None keeps all.
        ties: whether its rows are several scored answers, of which the exact ties are read.
        tie_pool: the dataset that has exact ties of its prompts, if there is one.
    """

    repository: str
    revision: str
    files: Mapping[str, tuple[str, ...]]
    sample: int | None = None
    ties: bool = False
    tie_pool: str | None = None


_HH = ("harmless-base", "helpful-base", "helpful-online", "helpful-rejection-sampled")
_NECTAR = PublicDataset(
    "berkeley-nest/Nectar",
    "3c6b4c47fa1cc38869f9f32dce1699f7abad8b06",
    {"train": ("data/*.parquet",)},
)
DATASETS: dict[str, PublicDataset] = {
    "ultrafeedback": PublicDataset(
        "HuggingFaceH4/ultrafeedback_binarized",
        "3949bf5f8c17c394422ccfab0c31ea9c20bdeb85",
        {"train": ("data/train_prefs-*.parquet",), "test": ("data/test_prefs-*.parquet",)},
        tie_pool="ultrafeedback-ties",
    ),
    # The source of the one above, at the revision that it was made from, and without the file that
    # it leaves out, as it is TruthfulQA's questions.
    "ultrafeedback-ties": PublicDataset(
        "openbmb/UltraFeedback",
        "40b436560ca83a8dba36114c22ab3c66e43f6d5e",
        {
            "train": tuple(
                f"{part}.jsonl*"
                for part in ("evol_instruct", "false_qa", "flan", "sharegpt", "ultrachat")
            )
        },
        ties=True,
    ),
    "hh-rlhf": PublicDataset(
        "Anthropic/hh-rlhf",
        "09be8c5bbc57cb3887f3a9732ad6aa7ec602a1fa",
        {split: tuple(f"{part}/{split}.jsonl*" for part in _HH) for split in ("train", "test")},
    ),
    "hh-golden": PublicDataset(
        "Unified-Language-Model-Alignment/Anthropic_HH_Golden",
        "main",
        {split: (f"hh_golden/{split}.jsonl*",) for split in ("train", "test")},
    ),
    "nectar": _NECTAR,
    "nectar-60k": PublicDataset(_NECTAR.repository, _NECTAR.revision, _NECTAR.files, 60_000),
    "orpo-mix-40k": PublicDataset(
        "mlabonne/orpo-dpo-mix-40k",
        "0f72511202b8f093e9be60e1683d84b046062e36",
        {"train": ("data/train-*.parquet",)},
    ),
    "multipref": PublicDataset(
        "allenai/multipref",
        "12910233a0238a997ebe425656e9dfed7b0ff031",
        {"train": ("data/train-*.parquet",)},
    ),
}


def has_ties(name: str) -> bool:
    """Whether a source is known to have exact ties: the embedded world's are sampled."""
    return name == WORLD or (name in DATASETS and DATASETS[name].tie_pool is not None)


def public_files(
    name: str, public: PublicDataset, split: str, files: Path | str | None, revision: str | None
) -> tuple[list[SourceFile], dict[str, Any]]:
    """The files of a split of a public dataset, or of "all", and the record of where they are from.

    Raises:
        DataError: where the dataset has no such split, or the files are not to be had.
    """
    splits = list(public.files) if split == "all" else [split]
    if unknown := [name for name in splits if name not in public.files]:
        raise DataError(f"{name!r} has the splits {', '.join(public.files)}, not {unknown[0]!r}.")
    origin: dict[str, Any] = {"repository": public.repository}
    patterns = [pattern for name in splits for pattern in public.files[name]]
    if files is None:
        folder = _downloaded(public, revision or public.revision, patterns)
        origin["revision"] = folder.name
    else:
        folder = given_path(files)
        origin["revision"] = revision or "a local copy"
        if folder.is_file():
            return [SourceFile(folder, shown_path(folder.name), splits[0])], origin
        if not folder.is_dir():
            raise DataError(f"There is no file or folder of {name!r} at {folder}.")
    inside = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    found = [
        SourceFile(path, shown_path(place), part)
        for part in splits
        for place, path in inside.items()
        if any(fnmatch.fnmatch(place, pattern) for pattern in public.files[part])
    ]
    if not found:
        raise DataError(f"{folder} has none of {', '.join(patterns)}, the files of {name!r}.")
    return found, origin


def _downloaded(public: PublicDataset, revision: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(
            snapshot_download(
                public.repository,
                repo_type="dataset",
                revision=revision,
                allow_patterns=patterns,
            )
        )
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        raise DataError(
            f"{public.repository} at revision {revision} could not be read from the hub "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). Where "
            "the hub cannot be reached, give a local copy of its files with files=…"
        ) from None
