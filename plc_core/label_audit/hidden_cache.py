"""Hidden-state differences of pairs on disk, by the content of model and pair, part by part."""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plc_core.storage.checksums import checksum
from plc_core.storage.files import RunError, read_json, replacing, write_json

POOLS = 2  # last token, mean
_ROWS = 8192
"""Read from disk together."""


class HiddenDifferences:
    """[pairs, depths, 2, width] differences chosen − rejected, float16, in parts on disk.

    Attributes:
        layers: the number of the layer at each depth, from 1.
        width: of a hidden state.
    """

    def __init__(self, folder: Path, layers: Sequence[int], width: int) -> None:
        self.folder = folder
        self.layers = tuple(layers)
        self.width = width
        self._places: dict[str, tuple[Path, int]] = {}

    def rows(
        self, depth: int, keys: list[str], signs: NDArray[np.float32]
    ) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Both poolings at one depth, [rows, 2 · width], of the pairs of these keys in this order,
        some at a time; a sign of −1 turns a pair round."""
        opened: dict[Path, NDArray[np.float16]] = {}
        for start in range(0, len(keys), _ROWS):
            here = slice(start, start + _ROWS)
            block = np.empty((len(keys[here]), POOLS * self.width), np.float32)
            for row, key in enumerate(keys[here]):
                path, place = self._places[key]
                if path not in opened:
                    opened[path] = np.load(path, mmap_mode="r")
                block[row] = opened[path][place, depth].reshape(-1)
            yield slice(start, start + len(block)), block * signs[here, None]

    def read(self) -> None:
        """Take in the parts that are on disk and whole; others are removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for note in sorted(self.folder.glob("*-*.json")):
            part = note.with_suffix(".npy")
            try:
                said = read_json(note, sealed=True)
                whole = said["crc32"] == checksum(part)
            except (RunError, OSError, KeyError):
                whole = False
            if whole:
                self._places |= {key: (part, row) for row, key in enumerate(said["keys"])}
            else:
                for path in (note, part):
                    with contextlib.suppress(OSError):
                        path.unlink()

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def add(self, keys: list[str], values: NDArray[np.float16]) -> None:
        """Keep some pairs' differences, on disk at once."""
        first = hashlib.sha256(keys[0].encode()).hexdigest()[:8]
        name = f"{zlib.crc32(values.tobytes()):08x}-{first}"
        part = self.folder / f"{name}.npy"
        with replacing(part) as temporary, temporary.open("wb") as file:
            np.save(file, values)
        write_json(part.with_suffix(".json"), {"keys": keys, "crc32": checksum(part)})
        self._places |= {key: (part, row) for row, key in enumerate(keys)}
