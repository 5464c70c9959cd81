"""The run folder of a training in TRL: where it lies, and the user's rows as its pairs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from plc_core.data.pairs import SCHEMA, pair_id, repeated_id
from plc_core.data.rows import normalised
from plc_core.data.rules import RowError
from plc_core.engine.checkpoints import check_record
from plc_core.engine.forward.packing import with_lengths
from plc_core.runs import Run, create_run, open_run
from plc_core.runs.provenance import provenance
from plc_core.storage.files import RunError

_TOKENS = ("prompt_ids", "chosen_ids", "rejected_ids")


def begun(output_dir: Path, done: int, pairs: pa.Table, about: Mapping[str, Any]) -> Run:
    """The run folder `<output_dir>/runs/training-<number>` of a training that goes on after `done`
    steps: the newest one that holds these steps, and else a new one. Collective.

    Args:
        pairs: of `pairs_table`.
        about: fields of run.json.
    """
    found: list[str | None] = [None]
    if PartialState().is_main_process:
        root = output_dir / "runs"
        run = _last_of(root, done) if done else None
        if run is None:
            number = max(_numbers(root), default=0) + 1
            # Without parameters: no notebook of this package makes such a run again.
            info = {"kind": "training", "config": {}, **about, **provenance()}
            run = create_run(root, f"training-{number}", info)
        elif run.is_trained:
            run.update_info(trained_steps=None)  # until it is again
        run.truncate_after(done)
        run.write_pairs(pairs)
        found = [str(run.path)]
    broadcast_object_list(found)
    return open_run(str(found[0]))


def _last_of(root: Path, done: int) -> Run | None:
    for number in sorted(_numbers(root), reverse=True):
        try:
            run = open_run(root / f"training-{number}")
            check_record(run, done)
        except RunError:
            continue
        return run
    return None


def _numbers(root: Path) -> list[int]:
    names = [re.fullmatch(r"training-(\d+)", path.name) for path in root.glob("training-*")]
    return [int(name[1]) for name in names if name]


def pairs_table(tokens: Dataset, tokenizer: PreTrainedTokenizerBase) -> pa.Table:
    """A tokenised training set of TRL as pairs.parquet holds it, row by row the same.

    A pair's id is that of `load_pairs`, of its texts, so it has one name in both; columns that TRL
    does not read are in its metadata. What this package would leave out (an empty answer, tools) is
    trained on by TRL, and is told by its tokens.
    """
    texts = tokens.remove_columns(
        [name for name in tokens.column_names if name in _TOKENS or name.startswith("ref_")]
    )
    seen: dict[str, int] = {}
    pairs = []
    for place, row in enumerate(texts):
        try:
            pair, marks = normalised(_unended(row, tokenizer.eos_token), "trl", "train")
        except RowError:
            pair, marks = _decoded(tokens[place], tokenizer), []
        first = pair["pair_id"]
        seen[first] = seen.get(first, 0) + 1
        marked = {"pair_id": repeated_id(first, seen[first] - 1), "marks": [r for r, _ in marks]}
        pairs.append(pair | marked)
    return with_lengths(pa.Table.from_pylist(pairs, schema=SCHEMA), tokens)


def _unended(row: Mapping[str, Any], eos: str) -> dict[str, Any]:
    # TRL writes the terminator behind answers that are text.
    sides = ("chosen", "rejected")
    ended = {side: row[side].removesuffix(eos) for side in sides if isinstance(row[side], str)}
    return {**row, **ended}


def _decoded(row: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    prompt, chosen, rejected = (str(tokenizer.decode(row[name])) for name in _TOKENS)
    turns = [{"role": "user", "content": prompt}]
    pair = {"pair_id": pair_id(turns, chosen, rejected), "prompt": turns, "chosen": chosen}
    marks = dict.fromkeys(("flipped", "injected_tie", "warm"), False)
    return {**pair, "rejected": rejected, **marks, "source": "trl", "metadata": "{}"}
