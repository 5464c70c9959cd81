"""Pairs for the public face: those that are read, and those that a model has to sample first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plc_core import data
from plc_core.data import DataError, Pairs
from plc_core.data.sources import check_arguments
from plc_core.data.world import WORLD
from plc_core.progress import Progress


def load_pairs(
    source: Path | str,
    limit: int | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    **reading: Any,
) -> Pairs:
    """The pairs of a public dataset or of local files, or of the embedded world ("world").

    The world's pairs are samples of its policy; they take a limit and a seed only. All other
    arguments are those of `plc_core.data.load_pairs`.

    Raises:
        DataError: naming file, row and field and what to do, where they cannot be read as asked.
    """
    if str(source) != WORLD:
        return data.load_pairs(source, limit, seed=seed, progress=progress, **reading)
    if any(reading.values()):
        raise DataError("The world's pairs are sampled: they take a limit and a seed only.")
    check_arguments(limit, seed=seed)
    # Here alone, as it loads torch, which no other source needs.
    from plc_core.engine.row_sources import WorldSource

    return WorldSource().pairs(limit, seed, progress or Progress())
