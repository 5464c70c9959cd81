"""What an audit changes in the pairs: labels turned, left out, weighted, or with a prior each."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from plc_core.data import DataError, Pairs
from plc_core.data.corruption.flips import reverse
from plc_core.data.pairs import SCHEMA, set_column
from plc_core.label_audit.config import ENDINGS, POLICIES, Policy
from plc_core.runs.cleaned import conversational, exporting
from plc_core.runs.own_columns import own_columns
from plc_core.storage.files import RunError

_COLUMNS = ("prompt", "chosen", "rejected", "score_chosen", "score_rejected", "votes", "source",
            "split")  # fmt: skip


def cleaned(
    pairs: Pairs,
    p_flip: NDArray[np.float64],
    p_tie: NDArray[np.float64],
    policy: Policy,
    above: float = 0.5,
) -> Pairs:
    """The pairs as a policy leaves them; see `POLICIES`.

    Under every policy but drop a row gets the columns p_flip and p_tie of its label as it stands
    there, which `pair_priors` of a training run reads; under flip also `turned`, whether its label
    was turned round.

    Args:
        p_flip, p_tie: [pairs].
        above: flip and drop act on pairs with a larger p_flip.

    Raises:
        DataError: for another policy.
    """
    return pairs.map(change_by(policy, p_flip, p_tie, above))


def change_by(
    policy: Policy, p_flip: NDArray[np.float64], p_tie: NDArray[np.float64], above: float = 0.5
) -> Callable[[pa.Table, int], pa.Table]:
    """What `cleaned` does to a batch of pairs, given the place of its first one."""
    if policy not in POLICIES:
        raise DataError(f"There is no policy {policy!r}; known are {', '.join(POLICIES)}.")
    suspicious = p_flip > above

    def change(batch: pa.Table, start: int) -> pa.Table:
        here = slice(start, start + len(batch))
        turned = suspicious[here]
        if policy == "drop":
            return batch.filter(pa.array(~turned))
        told = p_flip[here]
        if policy == "flip":
            # The marker turns with the sides: tokens are found by the order as it was read.
            batch = reverse(batch, turned)
            told = np.where(turned, 1 - told, told)
        elif policy == "weight":
            told = np.minimum(told, 0.5)
        return _with_told(batch, told, p_tie[here], turned if policy == "flip" else None)

    return change


def _with_told(
    batch: pa.Table,
    p_flip: NDArray[np.float64],
    p_tie: NDArray[np.float64],
    turned: NDArray[np.bool_] | None,
) -> pa.Table:
    texts = []
    for place, text in enumerate(batch["metadata"].to_pylist()):
        row = json.loads(text or "{}") | {"p_flip": round(float(p_flip[place]), 6)}
        row["p_tie"] = None if np.isnan(p_tie[place]) else round(float(p_tie[place]), 6)
        if turned is not None:
            row["turned"] = bool(turned[place])
        texts.append(json.dumps(row, ensure_ascii=False))
    return set_column(batch, "metadata", pa.array(texts, SCHEMA.field("metadata").type))


def export_pairs(batches: Iterable[pa.Table], path: Path) -> None:
    """Write pairs as TRL's `DPOTrainer` and `load_pairs` read them, with the user's own columns.

    Beside JSON lines lies their checksum, `<name>.sha256`.

    Args:
        batches: of pairs in the schema `FEATURES`.
        path: ends in .jsonl or .parquet.

    Raises:
        RunError: for another ending, or where it cannot be written.
    """
    if path.suffix not in ENDINGS:
        raise RunError(f"{path} should end in {' or '.join(ENDINGS)}.")
    with tempfile.TemporaryDirectory() as scratch:
        # The types of the user's columns follow from all rows, so those are laid down first.
        source = Path(scratch) / "pairs.parquet"
        with pq.ParquetWriter(source, SCHEMA) as writer:
            for batch in batches:
                writer.write_table(batch.cast(SCHEMA))
        with pq.ParquetFile(source) as file, exporting(path, ENDINGS[path.suffix]) as write:
            own = own_columns(file)
            for batch in file.iter_batches(1000):
                table = pa.Table.from_batches([batch])
                result = conversational(table.select(list(_COLUMNS)))
                if pc.all(pc.is_null(table["votes"])).as_py():
                    result = result.drop_columns("votes")
                users = own.table(table["metadata"])
                for name in users.column_names:
                    result = result.append_column(own.name(name), users[name])
                write(result)
