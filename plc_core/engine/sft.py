"""The supervised stage: a model that answers, from conversations, with TRL's SFTTrainer.

The paper starts from models that were trained on UltraChat-200k; this makes such a model, as a
folder that `load_policy` takes. Only answers are learnt. By default it trains a fresh model of the
embedded world's shape on answers of the world's imperfect writer.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch.nn.functional import cross_entropy
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

from plc_core.engine.adapters import add_lora
from plc_core.engine.conversations import (
    IGNORED,
    Conversations,
    source_rows,
    tokenize_conversations,
    world_rows,
)
from plc_core.engine.models import describe, load_policy
from plc_core.engine.stages import (
    StageConfig,
    check_same_data,
    fit,
    one_process,
    open_stage,
    save_model,
    stage_arguments,
)
from plc_core.engine.tied_weights import KnowsTiedWeights
from plc_core.engine.world_sft import build_model, build_tokenizer
from plc_core.progress import Progress
from plc_core.runs import Run
from plc_core.runs.provenance import provenance

FRESH_WORLD = "world-base"
"""The name of a model of the embedded world's shape with fresh weights."""

_WORLD_ROWS = 19_200


class SftConfig(StageConfig):
    """The parameters of `notebooks/00_sft.ipynb`; real models want a rate near 2e-5."""

    model: str = FRESH_WORLD  # "world-base", a local folder, or a name on the hub
    chat_template: str | None = None  # a file in Jinja, for a base model that has no template
    data_split: str = "train"  # of files that name theirs, or of the hub, as train_sft
    data_revision: str | None = None  # of the hub dataset
    num_rows: int | None = Field(None, gt=0)  # first rows to read; None: all; 19200 of the world
    eval_prompts: int = Field(200, ge=0)  # of the world, to answer greedily at the end


def train_sft(config: SftConfig) -> Run:
    """Train a model on conversations and return its run; the model lies in `<run>/model`.

    The run holds run.json (what was read, held-out loss before and after), metrics.parquet (a row
    a step: loss, token_accuracy, learning_rate, seconds) and findings.parquet (rows left out or
    cut). The same config gives the same weights on the same machine. With
    `resume` the run of this name goes on from its last checkpoint; a finished one is returned.

    Raises:
        RunError, DataError, ModelError: a sentence; no run is ever overwritten.
    """
    one_process()
    run, checkpoint = open_stage(config, "sft")
    if run.is_trained:
        run.take_up()
        return run
    with run.running("preparing"):
        progress = Progress(run)
        set_seed(config.seed)
        model, tokenizer = _model(config)
        conversations = _conversations(config, tokenizer, progress)
        fingerprint = conversations.fingerprint
        check_same_data(run, fingerprint)
        run.write_findings(conversations.findings)
        run.update_info(
            data={
                "source": config.data,
                "fingerprint": fingerprint,
                "rows_read": conversations.rows_read,
                "train": len(conversations.train),
                "held_out": len(conversations.held_out),
                "in_words": conversations.sentence(),
            },
            model={"name": config.model, **describe(model)},
            **provenance(),
        )
        set_seed(config.seed)
        trained = (
            add_lora(model, config.lora_rank, config.lora_alpha) if config.lora_rank else model
        )
        held_out = conversations.held_out if len(conversations.held_out) else None
        trainer = _Trainer(
            trained,
            _arguments(config, run, len(conversations.train)),
            train_dataset=conversations.train,
            eval_dataset=held_out,
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        before = held_out_loss(trainer) if held_out else None
        fit(trainer, run, progress, checkpoint)
        after = held_out_loss(trainer) if held_out else None
        save_model(trained, tokenizer, run, config.precision)
        run.update_info(
            trained_steps=trainer.state.global_step,
            held_out_loss={"before": before, "after": after, "unit": "nats a token of an answer"},
        )
    return run


class _Trainer(KnowsTiedWeights, SFTTrainer):
    pass


@torch.inference_mode()
def held_out_loss(trainer: SFTTrainer) -> float:
    """Mean loss over all tokens of held-out answers, in nats.

    The trainer's own evaluation averages the means of batches, which depends on their size.
    """
    model: Any = trainer.model
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    for batch in trainer.get_eval_dataloader():
        labels = batch["labels"][:, 1:]
        with trainer.compute_loss_context_manager():
            logits = model(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
            ).logits
        loss = cross_entropy(
            logits[:, :-1].float().flatten(0, 1), labels.flatten(), reduction="sum"
        )
        total += float(loss)
        count += int((labels != IGNORED).sum())
    model.train(was_training)
    return total / count


def _model(config: SftConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if config.model == FRESH_WORLD:
        return build_model(config.seed), build_tokenizer()
    dtype = "bf16" if config.precision == "bf16" and config.lora_rank else "fp32"
    return load_policy(config.model, dtype, config.chat_template)


def _conversations(
    config: SftConfig, tokenizer: PreTrainedTokenizerBase, progress: Progress
) -> Conversations:
    if config.data == "world":
        count = config.num_rows or _WORLD_ROWS
        rows = world_rows(count, config.seed, config.rows_per_forward)
    else:
        count = config.num_rows or 0
        rows = source_rows(config.data, config.data_split, config.data_revision)
        if config.num_rows:
            rows = (row for row, _ in zip(rows, range(config.num_rows), strict=False))
    return tokenize_conversations(
        rows, tokenizer, config.max_length, config.held_out_share, progress, count
    )


def _arguments(config: SftConfig, run: Run, rows: int) -> SFTConfig:
    # The world's rows are in the order in which they are to be learnt.
    order = "sequential" if config.data == "world" else "random"
    return SFTConfig(
        **stage_arguments(config, run, rows),
        train_sampling_strategy=order,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
