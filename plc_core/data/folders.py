"""Local files and folders: which files hold pairs, and of which split."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plc_core.data.formats import SUFFIXES
from plc_core.data.pairs import DataError
from plc_core.storage.checksums import digest_file, said_digest, sha256
from plc_core.storage.files import RunError, read_json
from plc_core.storage.identity import misfit
from plc_core.storage.seals import Seal, parquet_seal

_SPLIT = re.compile(
    r"(?:^|[^a-z])(train|training|test|testing|validation|valid|val|dev|eval|evaluation|held-?out)"
    r"(?=[^a-z]|$)"
)
_SPLITS = {
    "training": "train",
    "testing": "test",
    "evaluation": "eval",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
}
_ANEW = "Write it anew (an export: from the inspector, or by plc audit --export)"


@dataclass(frozen=True)
class SourceFile:
    """A file that holds rows of a source."""

    path: Path
    name: str  # as the report and the run's record call it
    split: str

    def digest(self) -> str:
        """The SHA-256 of its bytes.

        Raises:
            DataError: where it cannot be read, or its checksum says that it is not what was written
                (`plc_core.runs.cleaned.exporting`).
        """
        try:
            found, said = sha256(self.path), said_digest(self.path)
        except OSError as error:
            where = error.filename or self.path
            raise DataError(f"{where} cannot be read: {error.strerror}.") from None
        if said not in (None, found):
            beside = digest_file(self.path)
            raise DataError(
                f"{self.path} is not what {beside.name} beside it says: it is damaged, or was "
                f"edited. {_ANEW}; if it is meant to be so, delete {beside.name}."
            )
        seal = Seal()
        with contextlib.suppress(OSError, ValueError):  # no Parquet, or cut short: its reader says
            seal = parquet_seal(self.path)
        if seal.whole is False:
            raise DataError(
                f"{self.path} is damaged: its content is not what was written. {_ANEW}."
            )
        if seal.whole and (why := misfit(self.path, seal.origin)) is not None:
            raise DataError(f"{self.path} {why}. {_ANEW}; or read it from another folder.")
        return found


def given_path(path: Path | str) -> Path:
    """A path as it was given, of the home folder where it begins so; DataError if it is none."""
    try:
        found = Path(path).expanduser()
        found.is_file()
    except (RuntimeError, ValueError, TypeError, OSError) as error:  # no user, NUL, too long
        raise DataError(f"The path {str(path)[:200]!r} cannot be used: {error}.") from None
    return found


def shown_path(path: Path | str) -> str:
    """A path as text that UTF-8 can hold; file names are bytes."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def local_files(
    source: Path | str, split: str = "train", known: Iterable[str] = ()
) -> list[SourceFile]:
    """The files of pairs at a path.

    Args:
        source: a file or folder.
        split: of a single file's rows that do not name their own.
        known: names that the path may be a misspelling of.

    Raises:
        DataError: where there are none.
    """
    path = given_path(source)
    if path.is_file():
        return [SourceFile(path, shown_path(path.name), split)]
    if not path.is_dir() or not str(source):
        near = difflib.get_close_matches(str(source), [*known], n=1)
        hint = f" Is it the dataset {near[0]!r}?" if near else ""
        raise DataError(f"There is no file or folder of pairs at {str(source)!r}.{hint}")
    return _files_of_folder(path)


def _files_of_folder(folder: Path) -> list[SourceFile]:
    if (folder / "dataset_dict.json").is_file():
        names = _saved(folder / "dataset_dict.json").get("splits")
        if not isinstance(names, list):
            raise DataError(f"{folder / 'dataset_dict.json'} does not list the splits.")
        return [
            file
            for name in map(str, names)
            for file in _saved_files(folder / name, _split_of(Path(name)))
        ]
    if (folder / "state.json").is_file():
        state = _saved(folder / "state.json")
        return _saved_files(folder, str(state.get("_split") or "train"))
    inside = [path for path in sorted(folder.rglob("*")) if _is_data(path.relative_to(folder))]
    if gone := [path for path in inside if path.is_symlink() and not path.exists()]:
        raise DataError(f"{gone[0]} is a link to a file that is not there.")
    found = [path for path in inside if path.is_file()]
    if not found:
        raise DataError(
            f"The folder {folder} has no file of pairs. Their names end with "
            f"{', '.join(SUFFIXES)}, or one of these and .gz, .zst or .zstd."
        )
    return [
        SourceFile(
            path,
            shown_path(path.relative_to(folder).as_posix()),
            _split_of(path.relative_to(folder)),
        )
        for path in found
    ]


def _saved_files(folder: Path, split: str) -> list[SourceFile]:
    """The Arrow files of a dataset that `datasets` saved to disk."""
    if not (folder / "state.json").is_file():
        raise DataError(f"The dataset saved in {folder.parent} is not whole: no {folder.name}.")
    state = _saved(folder / "state.json")
    if state.get("_indices_data_files"):
        raise DataError(f"The dataset in {folder} was saved with indices: save it again, flat.")
    listed = state.get("_data_files")
    entries = listed if isinstance(listed, list) else []
    names = [entry.get("filename") for entry in entries if isinstance(entry, dict)]
    paths = [folder / str(name) for name in names]
    missing = [path for path in paths if path.parent != folder or not path.is_file()]
    if not paths or missing:
        gone = ", ".join(map(str, missing)) or "its files"
        raise DataError(f"The dataset saved in {folder} is not whole: it lacks {gone}.")
    return [SourceFile(path, f"{folder.name}/{path.name}", split) for path in paths]


def _saved(path: Path) -> dict[str, Any]:
    try:
        return read_json(path, sealed=False)  # of `datasets`, wherever it lies
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
