"""Truncation of tokenised pairs to a maximal length, and their orientation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from plc_core.data.storage import dataset_from_batches, read_batches
from plc_core.engine.token_cache import TOKENS, TokenFile


class Truncation:
    """What a maximal length leaves of tokenised pairs.

    The prompt loses its start down to half of max_length, then the longer answer its end.

    Attributes:
        sizes: [3, pairs] tokens of prompt, chosen and rejected that remain.
        shortened: [pairs] whether the pair lost any.
        identical: [pairs] whether both answers have the same tokens afterwards.
    """

    def __init__(self, file: TokenFile, max_length: int) -> None:
        self.file = file
        self.max_length = max_length
        prompt, longest = file.sizes[0], file.sizes[1:].max(0)
        room = np.maximum(max_length - longest, max_length // 2)
        prompt = np.where(prompt + longest > max_length, np.minimum(prompt, room), prompt)
        self.sizes = np.stack([prompt, *np.minimum(file.sizes[1:], max_length - prompt)])
        self.shortened = (self.sizes < file.sizes).any(0)
        _, chosen, rejected = self.sizes
        common = pc.fill_null(file.note("common"), 0).to_numpy()
        self.identical = (chosen == rejected) & (common >= chosen) & ~file.refused


def cut_tokens(
    cut: Truncation, flips: npt.NDArray[np.bool_], kept: npt.NDArray[np.bool_], first: int | None
) -> Dataset:
    """The kept pairs as they are observed, truncated; `first` is the tokenizer's BOS."""
    file, sizes = cut.file, cut.sizes
    if kept.all() and not flips.any() and not cut.shortened.any():
        return file.dataset()

    def batches() -> Iterator[pa.RecordBatch]:
        start = 0
        for batch in read_batches(file.path):
            rows = slice(start, start + len(batch))
            start += len(batch)
            yield _cut_batch(batch, flips[rows], kept[rows], sizes[:, rows], first)

    return dataset_from_batches(TOKENS.arrow_schema, batches())


def _cut_batch(
    batch: pa.RecordBatch,
    flips: npt.NDArray[np.bool_],
    kept: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
    first: int | None,
) -> pa.RecordBatch:
    if not kept.all():
        batch, flips, sizes = batch.filter(pa.array(kept)), flips[kept], sizes[:, kept]
    prompt = _shortened(batch["prompt_ids"], sizes[0], first, keep_end=True)
    one, other = (
        _shortened(batch[f"{side}_ids"], size, None, keep_end=False)
        for side, size in zip(("chosen", "rejected"), sizes[1:], strict=True)
    )
    if flips.any():
        swap = pa.array(flips)
        one, other = pc.if_else(swap, other, one), pc.if_else(swap, one, other)
    columns: list[Any] = [batch["pair_id"], prompt, one, other]
    return pa.RecordBatch.from_arrays(columns, schema=TOKENS.arrow_schema)


def _shortened(
    lists: pa.ListArray, sizes: npt.NDArray[np.int64], first: int | None, keep_end: bool
) -> pa.ListArray:
    offsets, values = lists.offsets.to_numpy().astype(np.int64), lists.values.to_numpy()
    starts, ends = offsets[:-1], offsets[1:]
    cut = sizes < ends - starts
    if not cut.any():
        return lists
    # A model that was trained with a first token is at a loss without it. In ChatML the same token
    # begins every turn, and would make a turn without a role of what is left.
    headed = cut & (values[starts] == first) if first is not None else None
    if headed is not None:
        often = np.add.reduceat(np.append(values, -1) == first, np.stack([starts, ends], 1).ravel())
        headed &= often[::2] == 1
    starts, ends = (ends - sizes, ends) if keep_end else (starts, starts + sizes)
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    shortened = np.concatenate([values[start:end] for start, end in bounds])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    if headed is not None:
        shortened[offsets[:-1][headed]] = first
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(shortened))
