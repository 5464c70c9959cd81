"""What the stages before preference training share: a run, one fit with a record, the model."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase, PrinterCallback, TrainerCallback, TrainerState

from plc_core.engine.checkpoints import check_same, last_checkpoint, open_training
from plc_core.engine.config import StageConfig
from plc_core.progress import Progress
from plc_core.runs import Run
from plc_core.storage.files import RunError
from plc_core.storage.manifest import list_checksums


def open_stage(config: StageConfig, kind: str) -> tuple[Run, Path | None]:
    """The run of a stage, as `open_training` has it, and the checkpoint to go on from.

    Raises:
        RunError: as `open_training`; where several processes or GPUs would take part; for a
            damaged checkpoint.
    """
    processes = PartialState(cpu=not torch.cuda.is_available()).num_processes
    if processes > 1 or torch.cuda.device_count() > 1:
        raise RunError(
            f"This stage runs in one process on one GPU; there are {processes} processes and "
            f"{torch.cuda.device_count()} GPUs. Start it without a launcher, with "
            "CUDA_VISIBLE_DEVICES set to one GPU."
        )
    run = open_training(config, kind)
    if run.is_trained:
        run.take_up()
        return run, None
    return run, last_checkpoint(run) if config.resume else None


def check_same_data(run: Run, fingerprint: str) -> None:
    """RunError where a run that is resumed was begun on other data."""
    if "data" in run.info:
        check_same(run, "data", run.info["data"].get("fingerprint"), fingerprint)


def stage_arguments(config: StageConfig, run: Run, rows: int) -> dict[str, Any]:
    """Training arguments of both stages: AdamW, cosine decay, 10 % warm-up."""
    steps = math.ceil(math.ceil(rows / config.batch_rows) * config.epochs)
    cuda = torch.cuda.is_available()
    return {
        "output_dir": str(run.path / "checkpoints"),
        "per_device_train_batch_size": config.rows_per_forward,
        "per_device_eval_batch_size": config.rows_per_forward,
        "gradient_accumulation_steps": config.batch_rows // config.rows_per_forward,
        "num_train_epochs": config.epochs,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": min(math.ceil(0.1 * steps), steps - 1),
        "weight_decay": 0.0,
        "adam_beta2": config.adam_beta2,
        "max_grad_norm": 1.0,
        "bf16": config.precision == "bf16",
        "activation_checkpointing": config.gradient_checkpointing,
        "max_length": None,  # rows come tokenised and cut
        "save_strategy": "steps" if config.save_steps else "no",
        "save_steps": config.save_steps or 500,
        "save_total_limit": 2,
        "logging_steps": 1,
        "seed": config.seed,
        "data_seed": config.seed,
        "report_to": [],
        "disable_tqdm": True,
        "log_level": "warning",
        "use_cpu": not cuda,
        "dataloader_pin_memory": cuda,
    }


def fit(trainer: Any, run: Run, progress: Progress, checkpoint: Path | None = None) -> None:
    """Train with one progress bar, a row a step in metrics.parquet, also of a run that fails.

    From a checkpoint it ends as if it had never been interrupted.
    """
    trainer.remove_callback(PrinterCallback)
    args = trainer.args
    per_epoch = math.ceil(len(trainer.train_dataset) / args.train_batch_size)
    steps = math.ceil(
        math.ceil(per_epoch / args.gradient_accumulation_steps) * args.num_train_epochs
    )
    done = int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0
    run.truncate_after(done)
    with progress.phase("training", steps) as advance:
        advance(done)
        recorder = _Recorder(run, advance)
        trainer.add_callback(recorder)
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        finally:
            recorder.keep()


def save_model(model: Any, tokenizer: PreTrainedTokenizerBase, run: Run, precision: str) -> None:
    """Write `<run>/model`: weights as safetensors, adapters merged, tokenizer with its template."""
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    folder = run.path / "model"
    (model.to(torch.bfloat16) if precision == "bf16" else model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    list_checksums(folder)


class _Recorder(TrainerCallback):
    """Keeps what the trainer logs of each step, and moves the bar."""

    names = ("loss", "learning_rate", "grad_norm", "mean_token_accuracy", "accuracy", "margin")

    def __init__(self, run: Run, advance: Any) -> None:
        self.run, self.advance = run, advance
        self.rows: list[dict[str, Any]] = []
        self.last = time.monotonic()

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any
    ) -> None:
        if logs is None or "loss" not in logs:  # evaluation, or the summary at the end
            return
        now = time.monotonic()
        row = {"step": state.global_step - 1, "epoch": state.epoch, "seconds": now - self.last}
        self.rows.append(row | {n: float(logs[n]) for n in self.names if n in logs})
        self.last = now
        self.advance(1)

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.keep()
        list_checksums(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}")

    def keep(self) -> None:
        """Write the rows that are not written yet: a checkpoint has all steps before it."""
        self.run.append_metrics(self.rows)
        self.rows = []
