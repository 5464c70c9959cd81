"""From a run's parameters to transformers' arguments, and what cannot work on this machine."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from torch.distributed.fsdp import MixedPrecisionPolicy
from tqdm import tqdm
from transformers import PreTrainedModel, TrainingArguments

from plc_core.engine.config import TrainConfig
from plc_core.runs import Run
from plc_core.storage.files import RunError

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


def keep_precision(state: AcceleratorState) -> None:
    """Have FSDP2 leave numbers as they are: precision is autocast's, as in the reference pass.

    accelerate would round log-probs to bfloat16 on their way out of the model, which made the
    margins' spread at step 0 sixty times as large, and add up gradients in bfloat16.

    Raises:
        RunError: for the first version of FSDP, whose flattened weights cannot be mixed.
    """
    plugin = getattr(state, "fsdp_plugin", None)
    if plugin is None:
        return
    if plugin.fsdp_version != 2:
        raise RunError(
            "Sharded training needs FSDP2: set fsdp_version to 2, as in "
            "notebooks/recipes/accelerate/fsdp2.yaml."
        )
    plugin.mixed_precision_policy = MixedPrecisionPolicy()


_LONG_STEP, _LONG_RUN = 120.0, 6 * 3600.0
"""Seconds of an optimizer step, and of a run, that a person is told of."""

_BYTES_A_TOKEN = 60
"""Of activations for a backward, a layer and a unit of the hidden state, in 16 bits.

From 27 GiB for 9,216 tokens of a model of 1.5 B (28 layers of 1,536 units) with adapters.
"""

_GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """What a run computes on.

    `memory` is what is free, in bytes. `bf16`: whether bfloat16 is computed rather than emulated.
    """

    gpu: bool
    memory: int
    bf16: bool

    @classmethod
    def here(cls) -> Machine:
        """This machine, and its current GPU where it has one."""
        if torch.cuda.is_available():
            return cls(True, torch.cuda.mem_get_info()[0], torch.cuda.is_bf16_supported())
        flags = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        own = any(value for name, value in flags.items() if "bf16" in name)
        own = own or platform.machine() in ("arm64", "aarch64")
        return cls(False, psutil.virtual_memory().available, own)


def check_machine(config: TrainConfig, machine: Machine) -> None:
    """Refuse what is for a GPU where there is none.

    Raises:
        RunError: naming the parameter and what to set it to.
    """
    if config.compile and not machine.gpu:
        raise RunError(
            "compile is true, and this machine has no GPU, where compiling takes longer than it "
            "saves: set compile to false. notebooks/recipes/own-data.yaml is a setting for a CPU."
        )


def machine_warnings(
    config: TrainConfig,
    machine: Machine,
    model: PreTrainedModel,
    sizes: np.ndarray,
    steps: int,
    seconds_a_token: float,
) -> list[str]:
    """Sentences about settings that would crawl or run out of memory here, with the remedy.

    Args:
        sizes: [pairs], tokens of each pair.
        steps: optimizer steps of the run.
        seconds_a_token: of one forward pass, measured; of use on a CPU only.
    """
    found = []
    longest = int(sizes.max())
    if config.autocast and not machine.bf16:
        found.append(
            "precision is bf16, which this machine emulates, several times slower: set precision "
            "to fp32."
        )
    tokens = _tokens_a_forward(config, sizes)
    needed = _bytes_needed(config, model, tokens)
    if needed > machine.memory:
        limit = max(longest, int(tokens * machine.memory / needed / 2))
        found.append(
            f"A forward pass of {tokens:,} tokens needs about {needed / _GIB:.0f} GiB of memory to "
            f"train on, and {machine.memory / _GIB:.0f} GiB are free: set tokens_per_forward to "
            f"{limit:,} or less"
            + ("." if config.gradient_checkpointing else ", or gradient_checkpointing to true.")
        )
    if not machine.gpu:
        # A backward takes twice a forward, and checkpoints one forward more.
        passes = 4 if config.gradient_checkpointing else 3
        step = seconds_a_token * float(sizes.mean()) * min(config.batch_pairs, len(sizes)) * passes
        if step > _LONG_STEP or steps * step > _LONG_RUN:
            found.append(
                f"An optimizer step will take about {_clock(step)} on this machine, and the run of "
                f"{steps:,} steps about {_clock(steps * step)}, by one forward pass. Set "
                "num_pairs, max_length or batch_pairs lower, take a smaller model, or a GPU."
            )
    return found


def _tokens_a_forward(config: TrainConfig, sizes: np.ndarray) -> int:
    pairs = min(config.pairs_per_forward, config.batch_pairs, len(sizes))
    tokens = int(np.sort(sizes)[-pairs:].sum())
    return min(tokens, config.tokens_per_forward) if config.tokens_per_forward else tokens


def _bytes_needed(config: TrainConfig, model: PreTrainedModel, tokens: int) -> float:
    text: Any = model.config.get_text_config()
    layers, hidden = int(text.num_hidden_layers), int(text.hidden_size)
    wide = 1 if config.autocast else 2
    kept = 4 if config.gradient_checkpointing else _BYTES_A_TOKEN
    weights = sum(p.numel() for p in model.parameters())
    # Weights are there already. Of all weights trained there are gradients and Adam's two averages.
    return tokens * layers * hidden * kept * wide + (0 if config.lora_rank else 12 * weights)


def _clock(seconds: float) -> str:
    days = seconds / 86400
    return f"{days:,.0f} days" if days >= 2 else str(tqdm.format_interval(seconds))
