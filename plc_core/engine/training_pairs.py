"""The pairs of a training run: read, corrupted as asked for, marked where the truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plc_core.data import (
    DATASETS,
    DataError,
    Pairs,
    flip_labels,
    load_pairs,
    mark_oracle_states,
    split_held_out,
)
from plc_core.data.corruption import flip_hardest, inject_ties, label_by_annotator, warm_start
from plc_core.data.held_out import of_prompts, prompt_digests
from plc_core.engine.config import DataConfig, TrainConfig
from plc_core.engine.margins import final_margins
from plc_core.engine.models import load_policy
from plc_core.engine.world_pairs import WORLD_PAIRS, tie_prompts, world_pairs, world_ties
from plc_core.files import project_path
from plc_core.progress import Progress
from plc_core.runs import open_run, resolve

World: TypeAlias = tuple[PreTrainedModel, PreTrainedTokenizerBase]


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
    pairs, held_out = trained_and_held_out(config, progress, (policy, tokenizer))
    if config.warm_share:
        pairs = warm_start(pairs, config.warm_share, config.seed)
    if config.annotator:
        pairs = label_by_annotator(pairs, config.seed)
    if config.tie_rate:
        pool = _tie_pool(config, policy, tokenizer, progress)
        if held_out is not None:
            pool = of_prompts(pool, set(prompt_digests(held_out)), inside=False)
        pairs = inject_ties(pairs, pool, config.tie_rate, config.seed)
    if config.flips == "random":
        # Without flips the pairs stay the file that they were read into.
        pairs = flip_labels(pairs, config.flip_rate, config.seed) if config.flip_rate else pairs
    elif config.margins_run is not None:
        run = open_run(resolve(project_path(config.runs_dir), config.margins_run))
        margins = final_margins(run, pairs, tokenizer, progress)
        pairs = flip_hardest(pairs, config.flip_rate, "lowest-margin", margins)
    else:
        pairs = flip_hardest(pairs, config.flip_rate, config.flips)
    return mark_oracle_states(pairs) if config.data == "world" else pairs


def trained_and_held_out(
    config: TrainConfig, progress: Progress, world: World | None = None
) -> tuple[Pairs, Pairs | None]:
    """The pairs to train on before any corruption, and those that are held out, if any are.

    Raises:
        DataError: where they cannot be read, or none would be left to train on.
    """
    pairs = read_pairs(config, progress, world)
    return split_held_out(pairs, config.held_out) if config.held_out else (pairs, None)


def read_pairs(config: DataConfig, progress: Progress, world: World | None = None) -> Pairs:
    """The validated pairs of `config`, before any corruption.

    Args:
        world: policy and tokenizer of the embedded world, where they are loaded already.

    Raises:
        DataError: where they cannot be read.
    """
    if config.data == "world":
        count = config.num_pairs or WORLD_PAIRS
        policy, tokenizer = world or load_policy("world")
        return world_pairs(policy, tokenizer, count, config.seed, progress)
    return load_pairs(
        config.data if config.data in DATASETS else project_path(config.data),
        config.num_pairs,
        split=config.data_split,
        files=_path(config.data_files),
        revision=config.data_revision,
        columns=config.data_columns,
        actions=config.data_actions,
        bounds=config.data_bounds,
        evaluation_prompts=_path(config.evaluation_prompts) or (),
        progress=progress,
    )


def _tie_pool(
    config: TrainConfig,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    progress: Progress,
) -> Pairs:
    if config.data != "world" or config.tie_pool is not None:
        return read_tie_pool(config, progress)
    count = config.num_pairs or WORLD_PAIRS
    return world_ties(policy, tokenizer, tie_prompts(count), config.seed, progress, count)


def read_tie_pool(config: TrainConfig, progress: Progress) -> Pairs:
    """The exact ties of `tie_pool`, or of the dataset that the pairs are from.

    Of a public dataset, ties of two scores of 10 that may be 1, misread, are left out.

    Raises:
        DataError: where they cannot be read, or the dataset has none.
    """
    name = config.tie_pool
    if name is None and config.data in DATASETS:
        name = DATASETS[config.data].tie_pool
    if name is None:
        raise DataError(
            f"There are no exact ties for {config.data}: set tie_pool to a file of pairs with "
            "equal scores, or of several scored answers a prompt."
        )
    if name in DATASETS:
        return load_pairs(
            name,
            files=_path(config.tie_pool_files),
            actions={"ten-was-one": "drop"},
            ties=True,
            progress=progress,
        )
    return load_pairs(project_path(name), ties=True, progress=progress)


def _path(path: str | None) -> Path | None:
    return None if path is None else project_path(path)
