"""Reference log-probs: computed once, kept on disk by content, shared by every run; and margins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plc_core.data import Pairs
from plc_core.data.corruption.flips import reverse
from plc_core.engine.checkpoints import load_trained
from plc_core.engine.forward.logprobs import autocast, numerics, pair_logps
from plc_core.engine.forward.packing import PairCollator, StepCollator, pair_sizes, response_lengths
from plc_core.engine.models.load import load_policy
from plc_core.engine.models.model_files import check_start
from plc_core.engine.tokens.tokenized import content_keys, tokenize_pairs
from plc_core.progress import Progress
from plc_core.runs import LENGTH_COLUMNS, Run
from plc_core.storage.cache import ContentStore, content_hash
from plc_core.storage.files import RunError
from plc_core.storage.paths import cache_dir, exclusive

_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("first", pa.float32()),
        ("second", pa.float32()),
        ("grouping", pa.string()),
    ]
)
"""Of the cache. The folder's name follows from the model, the precision and the attention; `key`
from the tokens of the pair. `first` and `second` belong to the two responses in the order of their
tokens, so that one row serves both directions of a flip. The last bits of a log-prob depend on
what shares its forward, which `grouping` names: rows of one grouping were made alike."""

_PAIRS_A_PART = 1024


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
    settings = numerics(model, bf16, collator.collator.row_tokens)
    settings |= {"layout": "packed prompt|first|second"}
    # Another process that needs the same waits here, and then finds it on disk.
    with exclusive(cache_root / "reference" / content_hash(settings)):
        store = ContentStore("reference", settings, _SCHEMA, cache_root)
        missing = {key: i for i, key in enumerate(keys) if key not in store}
        with autocast(model.device, bf16):
            _fill(store, missing, dataset, model, collator, progress)
    columns: dict[str, list[float]] = {"reference_chosen": [], "reference_rejected": []}
    groupings = set()
    for row, key in zip(dataset, keys, strict=True):
        known = store[key]
        chosen, rejected = ("first", "second") if in_token_order(row) else ("second", "first")
        columns["reference_chosen"].append(known[chosen])
        columns["reference_rejected"].append(known[rejected])
        groupings.add(known["grouping"])
    for name, values in columns.items():
        dataset = dataset.add_column(name, values)
    counts = {"computed": len(missing), "reused": len(keys) - len(missing)}
    return dataset, settings | counts | {"grouping": content_hash(sorted(groupings))[:16]}


def in_token_order(row: Mapping[str, Any]) -> bool:
    """Whether the chosen response comes first in the order of tokens, which no flip changes.

    What a cache keeps of a pair is kept in that order, and so serves both of its labels.
    """
    return bool(row["chosen_ids"] <= row["rejected_ids"])


def _ordered(row: Mapping[str, Any]) -> dict[str, Any]:
    """The pair with the response that is first in the order of tokens as the chosen one.

    Which of them stands first in its row decides the last bits of both log-probs: they may not
    depend on which of two runs, whose labels differ, came first.
    """
    sides = ("chosen_ids", "rejected_ids")
    order = sides if in_token_order(row) else sides[::-1]
    return {**row, **{side: row[name] for side, name in zip(sides, order, strict=True)}}


@torch.no_grad()
def _fill(
    store: ContentStore,
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
    threads = torch.get_num_threads() if model.device.type == "cpu" else None
    forward = [collator.collator.row_tokens, collator.pairs_per_forward,
               collator.tokens_per_forward, threads]  # fmt: skip
    with progress.phase("reference log-probs", len(order)) as advance:
        for start in range(0, len(order), _PAIRS_A_PART):
            members = order[start : start + _PAIRS_A_PART]
            part = [_ordered(rows[i]) for i in members]
            values = _pair_values(model, collator, part)
            for row, pair in zip(part, values, strict=True):
                if not all(map(math.isfinite, pair)):
                    raise RunError(
                        f"The reference gives pair {row['pair_id']} a log-probability that is not "
                        "finite; look at its weights and at that pair."
                    )
            grouping = content_hash([forward, [keys[i] for i in members]])[:16]
            store.add(
                {"key": keys[i], "first": first, "second": second, "grouping": grouping}
                for i, (first, second) in zip(members, values, strict=True)
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
        logps = pair_logps(model, on_device, collator.collator.row_tokens)
        values.append(torch.stack(logps, 1))
    by_place = dict(zip(places, torch.cat(values).tolist(), strict=True))
    return [(by_place[i][0], by_place[i][1]) for i in range(len(rows))]


def final_margins(
    run: Run, pairs: Pairs, tokenizer: PreTrainedTokenizerBase, progress: Progress
) -> pd.Series:
    """`policy_margins` of the answer that was read as chosen, whichever is observed as chosen now.

    Raises:
        RunError: where the run has no trained policy.
    """
    as_read = pairs.map(lambda batch, _: reverse(batch, batch["flipped"].to_numpy()))
    return policy_margins(run, as_read, tokenizer, progress)["margin"]


@torch.no_grad()
def policy_margins(
    run: Run, pairs: Pairs, tokenizer: PreTrainedTokenizerBase, progress: Progress
) -> pd.DataFrame:
    """The margin of each pair under a run's trained policy against its own start, by pair id.

    Columns: margin, in nats, as beta [log pi/pi_ref(chosen) - log pi/pi_ref(rejected)] (eq. mseq),
    and chosen_tokens and rejected_tokens. Pairs that the chat template refuses have no row.

    Raises:
        RunError: where the run has no trained policy, or began from another model than is there.
    """
    config = run.info["config"]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained: Any = load_trained(run)
    reference: Any = load_policy(config["model"])[0]
    check_start(run, reference)
    trained.to(device).eval()
    reference.to(device)
    bf16 = config["precision"] == "bf16"
    size = config["pairs_per_forward"]
    collator = StepCollator(
        PairCollator(config["row_tokens"]), size, config.get("tokens_per_forward", 0)
    )
    tokens = tokenize_pairs(pairs, tokenizer, config["max_length"], progress=progress).dataset
    tokens, _ = with_reference(tokens, reference, cache_dir(), collator, bf16, progress)
    margins = torch.empty(len(tokens))
    with progress.phase("margins", len(tokens)) as advance, autocast(device, bf16):
        for start in range(0, len(tokens), size):
            rows = [tokens[i] for i in range(start, min(start + size, len(tokens)))]
            for batch in collator(rows)["forwards"]:
                on_device = {name: value.to(device) for name, value in batch.items()}
                logps = pair_logps(trained, on_device, config["row_tokens"])
                ratio = torch.stack(logps, 1) - on_device["reference"]
                margin = config["beta"] * (ratio[:, 0] - ratio[:, 1])
                margins[start + batch["place"]] = margin.float().cpu()
            advance(len(rows))
    table = pd.DataFrame(
        response_lengths(tokens), index=tokens["pair_id"][:], columns=list(LENGTH_COLUMNS)
    )
    return table.assign(margin=margins.tolist())
