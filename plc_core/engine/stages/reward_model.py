"""A reward model of one's own, from preference pairs, with TRL's RewardTrainer.

For those without an 8B judge: a Bradley-Terry model on top of any small language model, trained on
clean pairs and independent of the policies that it judges. It is an ordinary model for sequence
classification with one label, so whatever takes such a judge by its folder takes this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from pydantic import Field
from scipy.stats import binomtest
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.utils import logging
from trl import RewardConfig, RewardTrainer

from plc_core.data import DataError, Pairs
from plc_core.engine.config import DataConfig, StageConfig
from plc_core.engine.models.adapters import add_lora
from plc_core.engine.models.load import (
    ModelError,
    describe,
    disable_dropout,
    load_classifier,
    tokenizer_and_path,
)
from plc_core.engine.row_sources import source_of
from plc_core.engine.stages.common import (
    check_same_data,
    fit,
    open_stage,
    save_model,
    stage_arguments,
)
from plc_core.engine.stages.conversations import is_held_out
from plc_core.engine.stages.reward_scoring import (
    RewardModel,
    dialogue_ids,
    load_reward_model,
    score_ids,
)
from plc_core.engine.tokens.templates import Turns
from plc_core.engine.tokens.tokenized import tokenize_pairs
from plc_core.progress import Progress
from plc_core.runs import Run
from plc_core.runs.provenance import provenance

_BATCH_TOKENS = 16_384 if torch.cuda.is_available() else 1024  # larger ones leave a CPU's caches


class RewardModelConfig(StageConfig):
    """How a reward model is trained; real models use about 1e-5 as rate."""

    model: str = "world"  # the language model to begin with: "world", a folder, a name on the hub
    learning_rate: float = Field(5e-4, gt=0)
    held_out_share: float = Field(0.1, ge=0, lt=1)
    data_split: str | None = "train"
    num_pairs: int | None = Field(None, gt=0)  # first rows to read; None: all; 6144 of the world


def train_reward_model(config: RewardModelConfig, pairs: Pairs | None = None) -> Run:
    """Train a reward model and return its run; the model lies in `<run>/model`.

    Args:
        pairs: clean pairs to learn from; None reads `config.data`. Those with equal scores prefer
            nothing and are left out.

    Returns:
        The run: run.json has held_out = {accuracy, low, high, n}, Wilson's 95 % interval, over
        pairs whose prompts were not trained on; metrics.parquet has a row a step.

    Raises:
        RunError, DataError, ModelError: a sentence; no run is ever overwritten.
    """
    run, checkpoint = open_stage(config, "reward-model")
    if run.is_trained:
        return run
    with run.running("preparing"):
        progress = Progress(run)
        set_seed(config.seed)
        reward = _fresh(config)
        if pairs is None:
            shared = ("model", "data", "data_split", "num_pairs", "max_length", "seed")
            reading = DataConfig(**{name: getattr(config, name) for name in shared})
            pairs = source_of(config.data).load(reading, progress)
        check_same_data(run, pairs.fingerprint)
        train, held_out, equal = _split(pairs, reward.tokenizer, config, progress)
        run.update_info(
            data={
                "source": config.data,
                "fingerprint": pairs.fingerprint,
                "train": len(train),
                "held_out": len(held_out),
                "equal_scores": equal,
            },
            model={"name": config.model, **describe(reward.model)},
            **provenance(),
        )
        set_seed(config.seed)
        trained: Any = reward.model
        if config.lora_rank:
            trained = add_lora(reward.model, config.lora_rank, config.lora_alpha, task="SEQ_CLS")
        trainer = RewardTrainer(
            trained,
            RewardConfig(**stage_arguments(config, run, len(train)), disable_dropout=True),
            train_dataset=train,
            processing_class=reward.tokenizer,
        )
        fit(trainer, run, progress, checkpoint)
        save_model(trained, reward.tokenizer, run, config.precision)
        model = load_reward_model(str(run.path / "model"))
        run.update_info(
            trained_steps=trainer.state.global_step, held_out=_accuracy(model, held_out)
        )
    return run


def score(
    model: RewardModel,
    prompts: Sequence[str | Turns],
    responses: Sequence[str],
    max_length: int | None = None,
) -> np.ndarray:
    """The reward of each response to its prompt, [len(prompts)] float64.

    Args:
        prompts: the user's text, or the turns before the answer.
        max_length: longer dialogues lose their start; None keeps all tokens.

    Raises:
        DataError: where the counts differ, the template refuses a dialogue, or a reward is no
            finite number.
    """
    if len(prompts) != len(responses):
        raise DataError(f"There are {len(prompts)} prompts and {len(responses)} responses.")
    dialogues = [
        [
            *([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt),
            {"role": "assistant", "content": response},
        ]
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    names = [f"Response {number}" for number in range(1, len(dialogues) + 1)]
    rows = dialogue_ids(model.tokenizer, dialogues, names)
    return _scores(model, [row[-max_length:] if max_length else row for row in rows])


def _scores(reward: RewardModel, rows: Sequence[Sequence[int]]) -> np.ndarray:
    rewards = np.empty(len(rows))
    for places, values in score_ids(reward, rows, _BATCH_TOKENS):
        rewards[places] = values
    if wrong := int((~np.isfinite(rewards)).sum()):
        raise DataError(f"{wrong} of {len(rewards)} rewards are no finite numbers.")
    return rewards


def _accuracy(model: RewardModel, held_out: Dataset) -> dict[str, Any]:
    better = np.empty(0)
    if len(held_out):
        better = _scores(model, held_out["chosen_ids"]) - _scores(model, held_out["rejected_ids"])
    right, count = int((better > 0).sum()), len(better)
    if not count:
        return {"accuracy": None, "low": math.nan, "high": math.nan, "n": 0}
    low, high = binomtest(right, count).proportion_ci(0.95, method="wilson")
    return {"accuracy": right / count, "low": float(low), "high": float(high), "n": count}


def _fresh(config: RewardModelConfig) -> RewardModel:
    tokenizer, path = tokenizer_and_path(config.model)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    dtype = "bf16" if config.precision == "bf16" and config.lora_rank else "fp32"
    # That the head is new is meant here; transformers would warn of it with a table.
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        model, missing = load_classifier(config.model, path, dtype, num_labels=1)
    finally:
        logging.set_verbosity(verbosity)
    if other := [name for name in missing if name != "score.weight"]:
        raise ModelError(f"The weights of {config.model!r} lack {other[0]!r}.")
    # The reward is read at the last token that is no padding.
    model.config.pad_token_id = tokenizer.pad_token_id
    disable_dropout(model)
    return RewardModel(model, tokenizer)


def _split(
    pairs: Pairs, tokenizer: PreTrainedTokenizerBase, config: RewardModelConfig, progress: Progress
) -> tuple[Dataset, Dataset, int]:
    """Token ids of the training and held-out pairs, and how many prefer nothing."""
    tokens = tokenize_pairs(pairs, tokenizer, config.max_length, progress=progress)
    parts: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    equal = 0
    columns = tokens.pairs.dataset.select_columns(["prompt", "score_chosen", "score_rejected"])
    for pair, ids in zip(columns, tokens.dataset, strict=True):
        if pair["score_chosen"] is not None and pair["score_chosen"] == pair["score_rejected"]:
            equal += 1
            continue
        row = {side: [*ids["prompt_ids"], *ids[side]] for side in ("chosen_ids", "rejected_ids")}
        parts[is_held_out(pair["prompt"], config.held_out_share)].append(row)
    if not parts[0]:
        raise DataError(f"None of {len(pairs)} pairs is left to train on ({equal} prefer nothing).")
    empty: dict[str, list[list[int]]] = {"chosen_ids": [], "rejected_ids": []}
    held_out = Dataset.from_list(parts[1]) if parts[1] else Dataset.from_dict(empty)
    return Dataset.from_list(parts[0]), held_out, equal
