"""Local files and folders: which files hold pairs, and of which split."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plc_core.data.formats import SUFFIXES
from plc_core.data.pairs import DataError
from plc_core.files import RunError, read_json

_SPLIT = re.compile(
    r"(?:^|[^a-z])(train|training|test|validation|valid|val|dev|eval|heldout)(?=[^a-z]|$)"
)
_SPLITS = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation"}


@dataclass(frozen=True)
class SourceFile:
    """A file that holds rows of a source."""

    path: Path
    name: str  # as the report and the run's record call it
    split: str

    def digest(self) -> str:
        """The SHA-256 of its bytes."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def local_files(source: Path | str, known: Iterable[str] = ()) -> list[SourceFile]:
    """The files of pairs at a path; `known` are names that it may be a misspelling of.

    Raises:
        DataError: where there are none.
    """
    path = Path(source).expanduser()
    # Path.is_file raises for a path that is too long.
    if os.path.isfile(path):  # noqa: PTH113
        return [SourceFile(path, path.name, "train")]
    if not os.path.isdir(path):  # noqa: PTH112
        near = difflib.get_close_matches(str(source), [*known], n=1)
        hint = f" Is it the dataset {near[0]!r}?" if near else ""
        raise DataError(f"There is no file or folder of pairs at {source}.{hint}")
    return _files_of_folder(path)


def _files_of_folder(folder: Path) -> list[SourceFile]:
    if (folder / "dataset_dict.json").is_file():
        names = _saved(folder / "dataset_dict.json").get("splits", [])
        return [file for name in names for file in _saved_files(folder / str(name), str(name))]
    if (folder / "state.json").is_file():
        state = _saved(folder / "state.json")
        return _saved_files(folder, str(state.get("_split") or "train"))
    found = [
        SourceFile(path, path.relative_to(folder).as_posix(), _split_of(path.relative_to(folder)))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and _is_data(path.relative_to(folder))
    ]
    if not found:
        raise DataError(
            f"The folder {folder} has no file of pairs; their names end with "
            f"{', '.join(SUFFIXES)}, .gz and .zst behind it allowed."
        )
    return found


def _saved_files(folder: Path, split: str) -> list[SourceFile]:
    """The Arrow files of a dataset that `datasets` saved to disk."""
    listed = _saved(folder / "state.json").get("_data_files")
    names = [entry.get("filename") for entry in listed or [] if isinstance(entry, dict)]
    paths = [folder / str(name) for name in names]
    missing = [path for path in paths if path.parent != folder or not path.is_file()]
    if not paths or missing:
        raise DataError(f"The dataset saved in {folder} is not whole: {missing or 'no files'}.")
    return [SourceFile(path, f"{folder.name}/{path.name}", split) for path in paths]


def _saved(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except RunError as error:
        raise DataError(str(error)) from None


def _is_data(path: Path) -> bool:
    name = re.sub(r"\.(gz|zst|zstd)$", "", path.name.lower())
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    described = name in ("dataset_info.json", "dataset_infos.json", "state.json", "readme.json")
    return name.endswith(SUFFIXES) and not hidden and not described


def _split_of(path: Path) -> str:
    """The split that the names of a file and its folders say; train where they say none."""
    found = _SPLIT.findall(path.as_posix().lower())
    return _SPLITS.get(found[-1], found[-1]) if found else "train"
