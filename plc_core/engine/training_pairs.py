"""The pairs that a run trains on: read, with held-out pairs split off, and corrupted."""

from __future__ import annotations

import json
import math

import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plc_core.data import DataError, Pairs, flip_labels, mark_oracle_states, split_held_out
from plc_core.data.corruption import flip_hardest, inject_ties, label_by_annotator, warm_start
from plc_core.data.slices import of_prompts, prompt_digests
from plc_core.engine.config import TrainConfig
from plc_core.engine.reference import final_margins
from plc_core.engine.row_sources import Source, load_ties, source_of
from plc_core.progress import Progress
from plc_core.runs import open_run, resolve


def training_pairs(
    config: TrainConfig,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    progress: Progress,
) -> Pairs:
    """The pairs that `config` asks for, the same for every objective.

    Held-out pairs are removed first, by whole prompts: no exact tie of such a prompt is injected.
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

    NaN where a row lacks the value.

    Raises:
        DataError: where no row has a p_flip, or one is not a probability.
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
