"""The pairs of a training run: read, corrupted as asked for, marked where the truth is known.

Also the margins of a trained policy over any pairs, by which the hardest labels are flipped.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
import pyarrow as pa
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plc_core.data import DataError, Pairs, flip_labels, mark_oracle_states, split_held_out
from plc_core.data.corruption import flip_hardest, inject_ties, label_by_annotator, warm_start
from plc_core.data.corruption.flips import reverse
from plc_core.data.held_out import of_prompts, prompt_digests
from plc_core.engine.checkpoints import load_trained
from plc_core.engine.config import TrainConfig
from plc_core.engine.logprobs import autocast, pair_logps
from plc_core.engine.models import load_policy
from plc_core.engine.packing import PairCollator, StepCollator, response_lengths
from plc_core.engine.reference import with_reference
from plc_core.engine.sources import Source, load_ties, source_of
from plc_core.engine.tokens import tokenize_pairs
from plc_core.files import cache_dir
from plc_core.progress import Progress
from plc_core.runs import LENGTH_COLUMNS, Run, open_run, resolve


def training_pairs(
    config: TrainConfig,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    progress: Progress,
) -> Pairs:
    """The pairs that `config` asks for, the same for every objective.

    Held-out pairs leave first, with their prompts: no exact tie of such a prompt is injected.
    Corruption comes in this order: warm start, annotator, exact ties, flips. Warm pairs and
    injected ties are left alone by all that follows; a flip of a label that the annotator
    reversed turns it back.

    Raises:
        DataError, RunError: where data, tie pool or the run of the margins cannot be used.
    """
    source = source_of(config.data, config.data_revision, (policy, tokenizer))
    pairs, held_out = trained_and_held_out(config, progress, source)
    if config.warm_share:
        pairs = warm_start(pairs, config.warm_share, config.seed)
    if config.annotator:
        pairs = label_by_annotator(pairs, config.seed)
    if config.tie_rate:
        pool = load_ties(source, config, progress)
        if held_out is not None:
            pool = of_prompts(pool, set(prompt_digests(held_out)), inside=False)
        pairs = inject_ties(pairs, pool, config.tie_rate, config.seed)
    if config.flips == "random":
        # Without flips the pairs stay the file that they were read into.
        pairs = flip_labels(pairs, config.flip_rate, config.seed) if config.flip_rate else pairs
    elif config.margins_run is not None:
        run = open_run(resolve(config.runs_folder, config.margins_run))
        margins = final_margins(run, pairs, tokenizer, progress)
        pairs = flip_hardest(pairs, config.flip_rate, "lowest-margin", margins)
    else:
        pairs = flip_hardest(pairs, config.flip_rate, config.flips)
    return mark_oracle_states(pairs) if source.scores_are_true else pairs


def trained_and_held_out(
    config: TrainConfig, progress: Progress, source: Source | None = None
) -> tuple[Pairs, Pairs | None]:
    """The pairs to train on before any corruption, and those that are held out, if any are.

    Raises:
        DataError: where they cannot be read, or none would be left to train on.
    """
    source = source or source_of(config.data, config.data_revision)
    pairs = source.load(config, progress)
    return split_held_out(pairs, config.held_out) if config.held_out else (pairs, None)


def with_pair_priors(dataset: Dataset, pairs: Pairs) -> Dataset:
    """Add the columns p_flip and p_tie to tokenised pairs, from the columns of their rows.

    NaN is where a row does not say it.

    Raises:
        DataError: where no row has a p_flip, or one is no probability.
    """
    columns: dict[str, list[float]] = {"p_flip": [], "p_tie": []}
    for text in pairs.dataset["metadata"]:
        row = json.loads(text or "{}")
        for name, values in columns.items():
            value = row.get(name)
            known = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (known and (0 <= value <= 1 or value != value)):
                raise DataError(f"A row has the {name} {value!r}, which is not a probability.")
            values.append(float(value) if known else math.nan)
    if not any(value == value for value in columns["p_flip"]):
        raise DataError(
            "pair_priors needs the column p_flip, which an audit adds to an export: plc audit FILE "
            "--policy prior."
        )
    for name, values in columns.items():
        dataset = dataset.add_column(name, pa.array(values, pa.float32()))
    return dataset


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
        RunError: where the run has no trained policy.
    """
    config = run.info["config"]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained: Any = load_trained(run)
    reference: Any = load_policy(config["model"])[0]
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
                ratio = torch.stack(pair_logps(trained, on_device), 1) - on_device["reference"]
                margin = config["beta"] * (ratio[:, 0] - ratio[:, 1])
                margins[start + batch["place"]] = margin.float().cpu()
            advance(len(rows))
    table = pd.DataFrame(
        response_lengths(tokens), index=tokens["pair_id"][:], columns=list(LENGTH_COLUMNS)
    )
    return table.assign(margin=margins.tolist())
