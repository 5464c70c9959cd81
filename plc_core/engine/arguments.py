"""From a run's parameters to transformers' training arguments."""

from __future__ import annotations

import math

import torch
from accelerate import PartialState
from transformers import TrainingArguments

from plc_core.engine.config import TrainConfig
from plc_core.files import RunError
from plc_core.runs import Run


def check_processes(config: TrainConfig, processes: PartialState) -> None:
    """RunError where the batch cannot be split over the processes, or a launcher is missing."""
    if processes.num_processes == 1 and torch.cuda.device_count() > 1:
        raise RunError(
            f"{torch.cuda.device_count()} GPUs are visible to one process. Start one process a "
            "GPU with `accelerate launch`, or set CUDA_VISIBLE_DEVICES to one of them."
        )
    together = config.pairs_per_forward * processes.num_processes
    if config.batch_pairs % together:
        raise RunError(
            f"batch_pairs ({config.batch_pairs}) must be a multiple of pairs_per_forward times the "
            f"processes ({config.pairs_per_forward} × {processes.num_processes})."
        )


def training_steps(config: TrainConfig, pairs: int) -> int:
    """Optimizer steps of the whole run; the last batch of an epoch may be smaller."""
    return math.ceil(math.ceil(pairs / config.batch_pairs) * config.epochs)


def training_arguments(
    config: TrainConfig, run: Run, pairs: int, processes: PartialState
) -> TrainingArguments:
    """AdamW with cosine decay and 10 % warm-up, as in the paper's training surface."""
    steps = training_steps(config, pairs)
    together = config.pairs_per_forward * processes.num_processes
    return TrainingArguments(
        output_dir=str(run.path / "checkpoints"),
        per_device_train_batch_size=config.pairs_per_forward,
        gradient_accumulation_steps=config.batch_pairs // together,
        num_train_epochs=config.epochs,
        learning_rate=config.learning_rate,
        lr_scheduler_type="cosine",
        # The first step of a warm-up has rate 0: a run of one step would not move.
        warmup_steps=min(math.ceil(0.1 * steps), steps - 1),
        weight_decay=0.0,
        max_grad_norm=1.0,
        optim="adamw_torch",
        bf16=config.autocast,
        save_strategy="steps",
        save_steps=config.save_steps or steps,
        seed=config.seed,
        data_seed=config.seed,
        report_to=[],
        disable_tqdm=True,
        log_level="warning",
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
    )
