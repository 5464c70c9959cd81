"""What the rules over all pairs need of each: hashes of its texts, its split and its row."""

from __future__ import annotations

import hashlib
from array import array
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from plc_core.data.dialogues import plain_text
from plc_core.data.votes import is_level

Numbers: TypeAlias = NDArray[Any]
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Facts:
    """What the rules need of every pair: 64-bit hashes of its texts, its split and its row."""

    def __init__(self) -> None:
        self._columns = {
            name: array("Q") for name in ("pair", "votes", "prompt", "chosen", "rejected", "row")
        }
        self._split, self._file = array("L"), array("L")
        self._tied = array("b")
        self._splits: dict[str, int] = {}
        self._files: dict[str, int] = {}

    def add(self, pair: dict[str, Any], file: str, row: int) -> None:
        """Take the facts of one pair."""
        turns = [(turn["role"], plain_text(turn["content"])) for turn in pair["prompt"]]
        self._columns["pair"].append(int(pair["pair_id"], 16))
        self._columns["prompt"].append(_hash(repr(turns)))
        for side, reasoning in zip(("chosen", "rejected"), pair["reasoning"], strict=True):
            text = plain_text(pair[side])
            self._columns[side].append(_hash(f"{reasoning}\0{text}" if reasoning else text))
        votes = pair["votes"] or []
        self._columns["votes"].append(_hash(repr(sorted(votes))))
        self._columns["row"].append(row)
        self._tied.append(is_level(votes))
        self._split.append(self._splits.setdefault(pair["split"], len(self._splits)))
        self._file.append(self._files.setdefault(file, len(self._files)))

    def __len__(self) -> int:
        return len(self._split)

    @cached_property
    def splits(self) -> list[str]:
        """The names of the splits, by their numbers."""
        return list(self._splits)

    @cached_property
    def files(self) -> list[str]:
        """The names of the files, by their numbers."""
        return list(self._files)

    def __getitem__(self, name: str) -> Numbers:
        return np.frombuffer(self._columns[name], np.uint64) if len(self) else np.empty(0, "u8")

    @property
    def voted(self) -> Numbers:
        """Whether each pair has votes."""
        return self["votes"] != np.uint64(_hash(repr([])))

    @property
    def tied(self) -> Numbers:
        """Whether each pair's votes are level, so that its orientation says nothing."""
        return np.array(self._tied, dtype=bool)

    @property
    def split(self) -> Numbers:
        """Number of each pair's split in `splits`."""
        return np.array(self._split, np.int64)

    def split_of(self, number: int) -> int:
        """The number of a pair's split in `splits`."""
        return self._split[number]

    def place(self, number: int) -> str:
        """Where a pair was read, for a person."""
        file = f" of {self.files[self._file[number]]}" if len(self.files) > 1 else ""
        return f"row {self._columns['row'][number]:,}{file}"


def splitmix64(values: Numbers, seed: int) -> Numbers:
    """A 64-bit hash of each value under a seed, by the finaliser of splitmix64 (Steele 2014)."""
    with np.errstate(over="ignore"):
        x = values.astype(np.uint64) + np.uint64(seed + 1) * _MULTIPLIER
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def mixed(*columns: Numbers) -> Numbers:
    """One hash for each row of several columns of hashes."""
    result = np.zeros_like(columns[0])
    for column in columns:
        result = splitmix64(result ^ column, 0)
    return result


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
