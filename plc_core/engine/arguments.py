"""From a run's parameters to transformers' training arguments."""

from __future__ import annotations

import math
from typing import Any

import torch
from accelerate import PartialState
from transformers import TrainingArguments

from plc_core.engine.config import TrainConfig
from plc_core.files import RunError
from plc_core.runs import Run

_LOADERS = 2


def check_processes(config: TrainConfig, processes: PartialState) -> None:
    """RunError where the batch cannot be split over the processes, or a launcher is missing."""
    if processes.num_processes == 1 and torch.cuda.device_count() > 1:
        raise RunError(
            f"{torch.cuda.device_count()} GPUs are visible to one process. Start one process a "
            "GPU with `accelerate launch`, or set CUDA_VISIBLE_DEVICES to one of them."
        )
    if config.batch_pairs % processes.num_processes:
        raise RunError(
            f"batch_pairs ({config.batch_pairs}) must be a multiple of the number of processes "
            f"({processes.num_processes})."
        )


def training_steps(config: TrainConfig, pairs: int) -> int:
    """Optimizer steps of the whole run; the last batch of an epoch may be smaller."""
    return math.ceil(math.ceil(pairs / config.batch_pairs) * config.epochs)


def training_arguments(
    config: TrainConfig, run: Run, pairs: int, processes: PartialState
) -> TrainingArguments:
    """AdamW with cosine decay and, by default, 10 % warm-up: the paper's training surface."""
    steps = training_steps(config, pairs)
    cuda = torch.cuda.is_available()
    # transformers 5.24 gives it another name, and warns of this one wherever it is said.
    memory: dict[str, Any] = (
        {"gradient_checkpointing": True} if config.gradient_checkpointing else {}
    )
    return TrainingArguments(
        output_dir=str(run.path / "checkpoints"),
        # The trainer splits a rank's share of the step into forwards itself.
        per_device_train_batch_size=config.batch_pairs // processes.num_processes,
        num_train_epochs=config.epochs,
        learning_rate=config.learning_rate,
        lr_scheduler_type="cosine",
        # The first step of a warm-up has rate 0: a run of one step would not move.
        warmup_steps=min(math.ceil(config.learning_rate_warmup * steps), steps - 1),
        weight_decay=0.0,
        max_grad_norm=1.0,
        optim="adamw_torch_fused" if cuda else "adamw_torch",
        bf16=config.autocast,
        save_strategy="steps",
        save_steps=config.save_steps or steps,
        seed=config.seed,
        data_seed=config.seed,
        report_to=[],
        disable_tqdm=True,
        log_level="warning",
        use_cpu=not cuda,
        # Rows are packed in other processes, one step ahead, and copied while the GPU computes.
        dataloader_num_workers=_LOADERS if cuda else 0,
        dataloader_prefetch_factor=2 if cuda else None,
        dataloader_pin_memory=cuda,
        accelerator_config={"non_blocking": cuda},
        **memory,
    )
