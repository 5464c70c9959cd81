"""One training run from its parameters to its folder: the straight line of the design."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from peft import PeftModel
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from plc_core.data import Pairs, flip_labels, load_pairs, mark_oracle_states
from plc_core.engine.config import TrainConfig
from plc_core.engine.models import add_lora, describe, load_policy
from plc_core.engine.packing import PairCollator
from plc_core.engine.reference import with_reference
from plc_core.engine.tokens import tokenize_pairs
from plc_core.engine.trainer import PreferenceTrainer
from plc_core.engine.visits import VisitRecorder
from plc_core.engine.world_pairs import WORLD_PAIRS, world_pairs
from plc_core.files import RunError, cache_dir, project_path
from plc_core.objective import Objective, Router, build_objective
from plc_core.progress import Progress
from plc_core.provenance import provenance
from plc_core.runs import Run, create_run, open_run, resolve

_RESUMABLE = {"resume", "runs_dir"}


def train(config: TrainConfig) -> Run:
    """Train as `config` says and return the run; its folder holds everything that is known of it.

    A new run needs a new name. With `resume`, the run of that name goes on from its last
    checkpoint, and ends as if it had not been interrupted.

    Raises:
        RunError, DataError, ModelError: a sentence; an existing run is never overwritten.
    """
    objective, shadow = _objectives(config)  # wrong options are refused before a folder is made
    run = _open(config)
    with run.running("preparing"):
        progress = Progress(run)
        set_seed(config.seed)
        policy, tokenizer = load_policy(config.model, config.precision)
        pairs = _pairs(config, policy, tokenizer, progress)
        tokens, truncation = tokenize_pairs(pairs, tokenizer, config.max_length)
        collator = PairCollator(config.row_tokens)
        policy.to(PartialState().device)
        tokens, reference = with_reference(
            tokens, policy, cache_dir(), collator, config.pairs_per_forward, progress
        )
        # Fresh adapters draw from the seed alone, whatever was computed or cached before.
        set_seed(config.seed)
        model = (
            add_lora(policy, config.lora_rank, config.lora_alpha) if config.lora_rank else policy
        )
        trainer = PreferenceTrainer(
            model,
            _arguments(config, run, len(tokens)),
            tokens,
            collator,
            objective,
            shadow,
            VisitRecorder(run, pairs.dataset["pair_id"], config.beta),
        )
        trainer.processing_class = tokenizer
        trainer.remove_callback(PrinterCallback)
        if not config.resume:
            _record(run, config, pairs, truncation, reference, trainer, model)
        _fit(trainer, run, config, len(tokens))
    return run


def _open(config: TrainConfig) -> Run:
    parameters = config.model_dump()
    if not config.resume:
        return create_run(
            project_path(config.runs_dir), config.name, {"kind": "training", "config": parameters}
        )
    run = open_run(resolve(project_path(config.runs_dir), config.name))
    before = run.info.get("config", {})
    changed = [k for k, v in parameters.items() if k not in _RESUMABLE and before.get(k) != v]
    if changed:
        raise RunError(
            f"The run {run.name!r} cannot go on with other parameters: {', '.join(changed)} "
            "changed. Give it the parameters in its run.json, or another name."
        )
    return run


def _pairs(
    config: TrainConfig,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    progress: Progress,
) -> Pairs:
    if config.data == "world":
        count = config.num_pairs or WORLD_PAIRS
        pairs = world_pairs(policy, tokenizer, count, config.seed, progress)
    else:
        pairs = load_pairs(project_path(config.data), config.num_pairs)
    pairs = flip_labels(pairs, config.flip_rate, config.seed)
    return mark_oracle_states(pairs) if config.data == "world" else pairs


def _objectives(config: TrainConfig) -> tuple[Objective, Router | None]:
    routing: dict[str, Any] = {
        "recipe": config.recipe,
        "prior": tuple(config.prior),
        "schedule": config.schedule,
        "calibration_order": config.calibration_order,
    }
    options: dict[str, Any] = config.objective_options
    if config.objective == "plc":
        return build_objective("plc", beta=config.beta, **(routing | options)), None
    objective = build_objective(config.objective, beta=config.beta, **options)
    return objective, Router(**routing)


def _arguments(config: TrainConfig, run: Run, pairs: int) -> TrainingArguments:
    processes = PartialState().num_processes
    per_forward = min(config.pairs_per_forward, config.batch_pairs // processes)
    steps = _steps(config, pairs)
    return TrainingArguments(
        output_dir=str(run.path / "checkpoints"),
        per_device_train_batch_size=per_forward,
        gradient_accumulation_steps=max(1, config.batch_pairs // (per_forward * processes)),
        num_train_epochs=config.epochs,
        learning_rate=config.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=math.ceil(0.1 * steps),
        weight_decay=0.0,
        max_grad_norm=1.0,
        optim="adamw_torch",
        bf16=config.precision == "bf16" and torch.cuda.is_available(),
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


def _steps(config: TrainConfig, pairs: int) -> int:
    return math.ceil(math.ceil(pairs / config.batch_pairs) * config.epochs)


def _record(
    run: Run,
    config: TrainConfig,
    pairs: Pairs,
    truncation: Any,
    reference: dict[str, Any],
    trainer: PreferenceTrainer,
    model: PreTrainedModel | PeftModel,
) -> None:
    run.write_pairs(pairs.table)
    accumulation = trainer.args.gradient_accumulation_steps
    order = config.calibration_order
    if order == "auto":
        order = "update-first" if accumulation == 1 else "score-first"
    run.update_info(
        data={
            "source": config.data,
            "rows": len(pairs),
            "fingerprint": pairs.fingerprint,
            "dropped": [vars(d) for d in pairs.dropped],
            "truncated": truncation.truncated,
            "identical_after_truncation": list(truncation.identical),
            "flipped": sum(pairs.dataset["flipped"]),
        },
        model={"name": config.model, **describe(model)},
        reference=reference,
        calibration_order=order,
        **provenance(),
        hardware={
            "device": _device_name(),
            "processes": PartialState().num_processes,
            "threads": torch.get_num_threads(),
            "cpus": os.cpu_count(),
        },
    )


def _device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def _fit(trainer: PreferenceTrainer, run: Run, config: TrainConfig, pairs: int) -> None:
    checkpoint = last_checkpoint(run) if config.resume else None
    if checkpoint is not None:
        # Read before anything is forgotten: a checkpoint that cannot be used costs nothing.
        run.truncate_after(trainer.restore(checkpoint))
    with Progress().phase("training", _steps(config, pairs)) as advance:
        trainer.add_callback(_Bar(advance))
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trainer.recorder.flush()


class _Bar(TrainerCallback):
    """One bar for the whole training, in place of transformers' line a logged step."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self.advance = advance
        self.shown = 0

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.advance(state.global_step - self.shown)
        self.shown = state.global_step


def last_checkpoint(run: Run) -> Path:
    """The folder of the run's last whole checkpoint; RunError where it has none."""
    found = sorted(
        (run.path / "checkpoints").glob("checkpoint-[0-9]*"),
        key=lambda p: int(p.name.rsplit("-", 1)[1]),
    )
    # trainer_state.json is what transformers writes last.
    whole = [p for p in found if (p / "trainer_state.json").is_file()]
    if not whole:
        raise RunError(
            f"The run {run.name!r} has no whole checkpoint to go on from; start it anew under "
            "another name, with save_steps set."
        )
    return whole[-1]
