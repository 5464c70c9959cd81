"""Reference log-probs: computed once, kept on disk by content, shared by every run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import secrets
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from datasets import Dataset
from transformers import PreTrainedModel

from plc_core.engine.logprobs import autocast, numerics, pair_logps
from plc_core.engine.packing import StepCollator, pair_sizes
from plc_core.engine.tokens import content_keys
from plc_core.files import RunError, checksum, exclusive, read_table, replacing
from plc_core.progress import Progress

_SCHEMA = pa.schema([("key", pa.string()), ("first", pa.float32()), ("second", pa.float32())])
_PAIRS_A_PART = 1024


class ReferenceCache:
    """Log-probs of pairs under one reference, on disk.

    The folder's name follows from the model, the precision and the attention; a row's from the
    tokens of the pair. `first` and `second` belong to the two responses in the order of their
    tokens, so that one row serves both directions of a flip. The name of a part begins with the
    CRC-32 of its bytes; a part that has others is removed and its pairs are computed again.
    """

    def __init__(self, root: Path, settings: dict[str, Any]) -> None:
        name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = root / "reference" / name
        self._rows: dict[str, tuple[float, float]] = {}

    def read(self) -> None:
        """Take in what is on disk."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.folder} cannot be made: {error.strerror}.") from None
        for part in sorted(self.folder.glob("[0-9a-f]*.parquet")):
            table = _whole_part(part)
            if table is None:
                continue
            values = zip(table["first"].to_pylist(), table["second"].to_pylist(), strict=True)
            self._rows.update(zip(table["key"].to_pylist(), values, strict=True))

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __getitem__(self, key: str) -> tuple[float, float]:
        return self._rows[key]

    def add(self, rows: Iterable[tuple[str, float, float]]) -> None:
        """Keep some pairs' values, on disk at once."""
        keys, first, second = zip(*rows, strict=True)
        table = pa.table({"key": keys, "first": first, "second": second}, schema=_SCHEMA)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        raw = sink.getvalue().to_pybytes()
        name = f"{zlib.crc32(raw):08x}{secrets.token_hex(4)}.parquet"
        with replacing(self.folder / name) as temporary:
            temporary.write_bytes(raw)
        self._rows.update(zip(keys, zip(first, second, strict=True), strict=True))


def _whole_part(part: Path) -> pa.Table | None:
    try:
        # A value may be changed in a file that can still be read.
        table = (
            read_table(part) if f"{checksum(part):08x}" == part.name[:8] else _SCHEMA.empty_table()
        )
        if (
            table.num_rows
            and table.schema == _SCHEMA
            and all(
                not column.null_count and (column.type == pa.string() or _all_finite(column))
                for column in table.columns
            )
        ):
            return table
    except (OSError, RunError):
        pass
    with contextlib.suppress(OSError):
        part.unlink()
    return None


def _all_finite(column: pa.ChunkedArray) -> bool:
    return bool(pc.all(pc.is_finite(column)).as_py() in (True, None))


def with_reference(
    dataset: Dataset,
    model: PreTrainedModel,
    cache_root: Path,
    collator: StepCollator,
    bf16: bool,
    progress: Progress,
) -> tuple[Dataset, dict[str, Any]]:
    """Add the columns reference_chosen and reference_rejected, in nats, to tokenised pairs.

    `model` is the reference itself: the policy as it is before its first step, with adapters that
    it started with and without fresh ones. Only pairs that the cache lacks are computed, longest
    first; the global random state is not touched. Also returns what the run's record says about
    the reference.
    """
    keys = content_keys(dataset)
    settings = numerics(model, bf16) | {"layout": "packed prompt|chosen|rejected"}
    cache = ReferenceCache(cache_root, settings)
    # Another process that needs the same waits here, and then finds it on disk.
    with exclusive(cache.folder):
        cache.read()
        missing = {key: i for i, key in enumerate(keys) if key not in cache}
        with autocast(model.device, bf16):
            _fill(cache, missing, dataset, model, collator, progress)
    columns: dict[str, list[float]] = {"reference_chosen": [], "reference_rejected": []}
    for row, key in zip(dataset, keys, strict=True):
        chosen, rejected = _in_token_order(row, *cache[key])
        columns["reference_chosen"].append(chosen)
        columns["reference_rejected"].append(rejected)
    for name, values in columns.items():
        dataset = dataset.add_column(name, values)
    record = settings | {"computed": len(missing), "reused": len(keys) - len(missing)}
    return dataset, record


def in_token_order(row: Mapping[str, Any]) -> bool:
    """Whether the chosen response comes first in the order of tokens, which no flip changes.

    What a cache keeps of a pair is kept in that order, and so serves both of its labels.
    """
    return bool(row["chosen_ids"] <= row["rejected_ids"])


def _in_token_order(row: dict[str, Any], a: float, b: float) -> tuple[float, float]:
    # From (chosen, rejected) to the cache's order, and back: a swap undoes itself.
    return (a, b) if in_token_order(row) else (b, a)


@torch.no_grad()
def _fill(
    cache: ReferenceCache,
    missing: dict[str, int],
    dataset: Dataset,
    model: PreTrainedModel,
    collator: StepCollator,
    progress: Progress,
) -> None:
    was_training = model.training
    model.eval()
    rows = dataset.select(missing.values())
    order = np.argsort(-pair_sizes(rows), kind="stable").tolist()
    keys = list(missing)
    with progress.phase("reference log-probs", len(order)) as advance:
        for start in range(0, len(order), _PAIRS_A_PART):
            members = order[start : start + _PAIRS_A_PART]
            part = [rows[i] for i in members]
            values = _pair_values(model, collator, part)
            for row, pair in zip(part, values, strict=True):
                if not all(map(math.isfinite, pair)):
                    raise RunError(
                        f"The reference gives pair {row['pair_id']} a log-probability that is not "
                        "finite; look at its weights and at that pair."
                    )
            cache.add(
                (keys[i], *_in_token_order(row, *pair))
                for i, row, pair in zip(members, part, values, strict=True)
            )
            advance(len(part))
    model.train(was_training)


def _pair_values(
    model: PreTrainedModel, collator: StepCollator, rows: list[dict[str, Any]]
) -> list[tuple[float, float]]:
    """(chosen, rejected) of every pair; the device is waited for once."""
    places, values = [], []
    for batch in collator(rows)["forwards"]:
        on_device = {name: tensor.to(model.device) for name, tensor in batch.items()}
        places.extend(batch["place"].tolist())
        values.append(torch.stack(pair_logps(model, on_device), 1))
    by_place = dict(zip(places, torch.cat(values).tolist(), strict=True))
    return [(by_place[i][0], by_place[i][1]) for i in range(len(rows))]
