"""The supervised stage: a model that answers, from conversations, with TRL's SFTTrainer.

The paper starts from models that were trained on UltraChat-200k; this makes such a model, as a
folder that `load_policy` takes. Only answers are learnt. By default it trains a fresh model of the
embedded world's shape on answers of the world's imperfect writer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from trl import SFTConfig, SFTTrainer

from plc_core.engine.checkpoints import KnowsTiedWeights
from plc_core.engine.config import FRESH_WORLD, SftConfig
from plc_core.engine.models.adapters import add_lora
from plc_core.engine.models.load import describe, load_policy
from plc_core.engine.row_sources import source_of
from plc_core.engine.stages.common import (
    check_same_data,
    fit,
    open_stage,
    save_model,
    stage_arguments,
)
from plc_core.engine.stages.conversations import IGNORED, tokenize_conversations
from plc_core.engine.world_sft import build_model, build_tokenizer
from plc_core.progress import Progress
from plc_core.runs import Run
from plc_core.runs.provenance import provenance


def train_sft(config: SftConfig) -> Run:
    """Train a model on conversations and return its run; the model lies in `<run>/model`.

    The run holds run.json (what was read, held-out loss before and after), metrics.parquet (a row
    a step: loss, token_accuracy, learning_rate, seconds) and findings.parquet (rows left out or
    cut). The same config gives the same weights on the same machine. With `resume` the run of this
    name goes on from its last checkpoint; a finished one is returned.

    Raises:
        RunError, DataError, ModelError: a sentence; no run is ever overwritten.
    """
    run, checkpoint = open_stage(config, "sft")
    if run.is_trained:
        return run
    with run.running("preparing"):
        progress = Progress(run)
        set_seed(config.seed)
        model, tokenizer = _model(config)
        source = source_of(config.data, config.data_revision)
        rows, count = source.load_conversations(config)
        conversations = tokenize_conversations(
            rows, tokenizer, config.max_length, config.held_out_share, progress, count
        )
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
            SFTConfig(
                **stage_arguments(config, run, len(conversations.train)),
                train_sampling_strategy="sequential" if source.in_order else "random",
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            train_dataset=conversations.train,
            eval_dataset=held_out,
            processing_class=tokenizer,
        )
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
