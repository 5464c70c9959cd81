"""Token ids of pairs on disk: made once, whole, as the pairs were read; then cut to a length."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tokenizers
import transformers
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from plc_core.data import Pairs
from plc_core.data.pairs import dataset_from_batches, read_batches, write_batches
from plc_core.engine.tokens.encoding import Conversation, Encoded, PairIds, encode_all
from plc_core.engine.tokens.templates import ChatFormat, chat_format, probe
from plc_core.progress import Progress
from plc_core.storage.cache import cached_folder
from plc_core.storage.paths import cache_dir

TOKENS = Features(
    {"pair_id": Value("string")}
    | {name: List(Value("int32")) for name in ("prompt_ids", "chosen_ids", "rejected_ids")}
)
"""Columns of tokenised pairs; an answer's ids end with its terminator."""

_NOTES = {
    "common": Value("int32"),  # tokens with which both answers begin
    "folded": Value("bool"),
    "rewritten": Value("bool"),
    "own": Value("bool"),
    "refused": Value("string"),  # why there are no tokens, else null
}
_SCHEMA: pa.Schema = Features(dict(TOKENS) | _NOTES).arrow_schema
_TOKENS_FILE = "tokens.arrow"
_CODE = ("encoding", "templates", "token_cache")
"""Of this code: to be raised with every change of the tokens that it gives."""


@dataclass(frozen=True)
class TokenFile:
    """An Arrow stream with one row for each pair: `TOKENS`, and notes on how they were made.

    The rows are in the order of the pairs and in the orientation in which these were read.
    """

    path: Path

    @cached_property
    def _notes(self) -> pa.Table:
        # Read, not mapped into memory, where every page that is touched counts as resident; and
        # copied, as a column of a batch keeps the whole batch.
        tables = []
        for batch in read_batches(self.path):
            columns = {name: batch[name] for name in ["pair_id", *_NOTES]}
            for name in ("prompt_ids", "chosen_ids", "rejected_ids"):
                columns[name] = pc.fill_null(pc.list_value_length(batch[name]), 0)
            tables.append(pa.table(columns).take(np.arange(batch.num_rows)))
        return pa.concat_tables(tables) if tables else _SCHEMA.empty_table()

    def note(self, name: str) -> pa.ChunkedArray:
        """One of the notes, or the pairs' ids."""
        return self._notes[name]

    @cached_property
    def refused(self) -> npt.NDArray[np.bool_]:
        """[pairs] whether the template or the tokenizer refused the pair."""
        return pc.is_valid(self.note("refused")).to_numpy()

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """[3, pairs] tokens of prompt, chosen and rejected; 0 for a refused pair."""
        names = [f"{part}_ids" for part in ("prompt", "chosen", "rejected")]
        if not len(self._notes):
            return np.zeros((3, 0), dtype=np.int64)
        return np.stack([self.note(name).to_numpy() for name in names]).astype(np.int64)

    def dataset(self) -> Dataset:
        """All rows as they are, mapped."""
        return Dataset.from_file(str(self.path)).select_columns(list(TOKENS))


def token_file(
    pairs: Pairs, tokenizer: PreTrainedTokenizerBase, progress: Progress | None = None
) -> TokenFile:
    """The tokens of `pairs`, from the cache folder or made now.

    They are kept by the ids of the pairs, which name what was read, by all that the tokenizer is,
    and by the version of this code. A file that is damaged, or was cut off, is made again.
    """
    chat = chat_format(tokenizer)

    def write(folder: Path) -> None:
        batches = _batches(pairs, chat, progress or Progress())
        write_batches(folder / _TOKENS_FILE, _SCHEMA, batches)

    folder = cached_folder(cache_dir() / "tokens" / _key(pairs, chat), write)
    return TokenFile(folder / _TOKENS_FILE)


def _batches(pairs: Pairs, chat: ChatFormat, progress: Progress) -> Iterator[pa.RecordBatch]:
    ids: list[list[str]] = []
    folded: list[list[bool]] = []

    def conversations() -> Iterator[list[Conversation]]:
        for batch in pairs.batches(["pair_id", "prompt", "chosen", "rejected", "flipped"]):
            ids.append(batch["pair_id"].to_pylist())
            flips, one, other = batch["flipped"], batch["chosen"], batch["rejected"]
            rows = zip(
                batch["prompt"].to_pylist(),
                pc.if_else(flips, other, one).to_pylist(),
                pc.if_else(flips, one, other).to_pylist(),
                strict=True,
            )
            read = [Conversation(*row) for row in rows]
            folded.append([chat.folds(pair.turns) for pair in read])
            yield read

    with progress.phase("tokens", len(pairs)) as advance:
        for encoded in encode_all(chat, conversations()):
            yield _batch(ids.pop(0), folded.pop(0), encoded)
            advance(len(encoded))


def _batch(ids: list[str], folded: list[bool], encoded: list[Encoded]) -> pa.RecordBatch:
    made = [pair if isinstance(pair, PairIds) else None for pair in encoded]
    columns = {
        "pair_id": ids,
        "prompt_ids": [pair and pair.prompt for pair in made],
        "chosen_ids": [pair and pair.chosen for pair in made],
        "rejected_ids": [pair and pair.rejected for pair in made],
        "common": [pair and _common(pair.chosen, pair.rejected) for pair in made],
        "folded": [pair is not None and fold for pair, fold in zip(made, folded, strict=True)],
        "rewritten": [pair is not None and pair.rewritten for pair in made],
        "own": [pair is not None and pair.own for pair in made],
        "refused": [None if isinstance(pair, PairIds) else str(pair) for pair in encoded],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _key(pairs: Pairs, chat: ChatFormat) -> str:
    digest = hashlib.sha256()
    tokenizer = chat.tokenizer
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()  # left over from the last call, and without a bearing on these
        backend.no_padding()
        digest.update(backend.to_str().encode())
    else:
        digest.update(json.dumps(sorted(tokenizer.get_vocab().items())).encode())
    parts = [
        *(Path(__file__).with_name(f"{name}.py").read_text() for name in _CODE),
        tokenizers.__version__, transformers.__version__, type(tokenizer).__qualname__,
        str(tokenizer.special_tokens_map), tokenizer.get_chat_template(),
        tokenizer.split_special_tokens, chat.special.pattern,
        probe(tokenizer),  # some templates write the date
    ]  # fmt: skip
    digest.update(json.dumps(parts).encode())
    for batch in pairs.batches(["pair_id", "injected_tie", "chosen"]):
        digest.update("\n".join(batch["pair_id"].to_pylist()).encode() + b"\n")
        # The orientation of an injected tie is drawn anew: its id does not say which answer is
        # which, as that of a pair that was read, flipped or not, does.
        for text in batch.filter(batch["injected_tie"])["chosen"].to_pylist():
            digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()[:32]


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
