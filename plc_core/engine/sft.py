"""The supervised stage: a model that answers, from conversations, with TRL's SFTTrainer.

The paper starts from models that were trained on UltraChat-200k; this makes such a model, as a
folder that `load_policy` takes. Only answers are learnt. By default it trains a fresh model of the
embedded world's shape on answers of the world's imperfect writer.
"""

from __future__ import annotations

import math
import time
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch.nn.functional import cross_entropy
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
from trl import SFTConfig, SFTTrainer

from plc_core.engine.adapters import add_lora
from plc_core.engine.config import as_number
from plc_core.engine.conversations import (
    IGNORED,
    Conversations,
    source_rows,
    tokenize_conversations,
    world_rows,
)
from plc_core.engine.models import describe, load_policy
from plc_core.engine.world_sft import build_model, build_tokenizer
from plc_core.files import project_path
from plc_core.progress import Progress
from plc_core.provenance import provenance
from plc_core.runs import Run, create_run

FRESH_WORLD = "world-base"
"""The name of a model of the embedded world's shape with fresh weights."""

_WORLD_ROWS = 19_200


class StageConfig(BaseModel):
    """What the supervised stage and the reward model have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    name: str  # name of the run, and of its folder
    runs_dir: str = "runs"  # where run folders lie; relative to the checkout
    data: str = Field("world", min_length=1)  # "world", a local file or folder, or a hub dataset
    learning_rate: float = Field(3e-3, gt=0)  # peak, with cosine decay and 10 % warm-up
    adam_beta2: float = Field(0.98, gt=0, lt=1)  # decay of squared gradients; short runs want less
    epochs: float = Field(1.0, gt=0, le=1000)
    batch_rows: int = Field(16, gt=0)  # conversations or pairs an optimizer step
    rows_per_forward: int = Field(16, gt=0)  # at most; divides batch_rows
    max_length: int = Field(1024, ge=4, le=1_000_000)  # tokens
    lora_rank: int = Field(0, ge=0, le=4096)  # 0 trains all weights; adapters are merged at the end
    lora_alpha: int = Field(16, gt=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    gradient_checkpointing: bool = False
    held_out_share: float = Field(0.02, ge=0, lt=1)  # of the rows, by a hash of their prompt
    seed: int = Field(0, ge=0, lt=2**32)  # data of the world, order and weights

    @model_validator(mode="before")
    @classmethod
    def _numbers_in_exponent_form(cls, values: Any) -> Any:
        # YAML reads 1e-5, without a dot, as text; a strict float would refuse it.
        if not isinstance(values, dict):
            return values
        floats = [n for n, f in cls.model_fields.items() if f.annotation is float]
        return values | {n: as_number(values[n]) for n in floats if n in values}

    @model_validator(mode="after")
    def _divisible(self) -> StageConfig:
        if self.batch_rows % self.rows_per_forward:
            raise ValueError(
                f"rows_per_forward ({self.rows_per_forward}) must divide batch_rows "
                f"({self.batch_rows})"
            )
        return self


class SftConfig(StageConfig):
    """The parameters of `notebooks/00_sft.ipynb`; the paper's models use about 2e-5 as rate."""

    model: str = FRESH_WORLD  # "world-base", a local folder, or a name on the hub
    data_split: str = "train"  # of files that name theirs, or of the hub, as train_sft
    data_revision: str | None = None  # of the hub dataset
    num_rows: int | None = Field(None, gt=0)  # first rows to read; None: all; 19200 of the world
    eval_prompts: int = Field(200, ge=0)  # of the world, to answer greedily at the end


def train_sft(config: SftConfig) -> Run:
    """Train a model on conversations and return its run; the model lies in `<run>/model`.

    The run holds run.json (what was read, held-out loss before and after), metrics.parquet (a row
    a step: loss, token_accuracy, learning_rate, seconds) and findings.parquet (rows left out or
    cut). The same config gives the same weights on the same machine.

    Raises:
        RunError, DataError, ModelError: a sentence; no run is ever overwritten.
    """
    info = {"kind": "sft", "config": config.model_dump()}
    run = create_run(project_path(config.runs_dir), config.name, info)
    with run.running("preparing"):
        progress = Progress(run)
        set_seed(config.seed)
        model, tokenizer = _model(config)
        conversations = _conversations(config, tokenizer, progress)
        run.write_findings(conversations.findings)
        run.update_info(
            data={
                "source": config.data,
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
        trainer = SFTTrainer(
            trained,
            _arguments(config, run, len(conversations.train)),
            train_dataset=conversations.train,
            eval_dataset=held_out,
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        before = held_out_loss(trainer) if held_out else None
        fit(trainer, run, progress)
        after = held_out_loss(trainer) if held_out else None
        save_model(trained, tokenizer, run, config.precision)
        run.update_info(
            trained_steps=trainer.state.global_step,
            held_out_loss={"before": before, "after": after, "unit": "nats a token of an answer"},
        )
    return run


def stage_arguments(config: StageConfig, run: Run, rows: int) -> dict[str, Any]:
    """Training arguments of both stages: AdamW, cosine decay, 10 % warm-up, a fixed seed."""
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
        "save_strategy": "no",
        "logging_steps": 1,
        "seed": config.seed,
        "data_seed": config.seed,
        "report_to": [],
        "disable_tqdm": True,
        "log_level": "warning",
        "use_cpu": not cuda,
        "dataloader_pin_memory": cuda,
    }


def fit(trainer: Any, run: Run, progress: Progress) -> None:
    """Train with one progress bar, a row a step in metrics.parquet, also of a run that fails."""
    args = trainer.args
    per_epoch = math.ceil(len(trainer.train_dataset) / args.train_batch_size)
    steps = math.ceil(
        math.ceil(per_epoch / args.gradient_accumulation_steps) * args.num_train_epochs
    )
    with progress.phase("training", steps) as advance:
        recorder = _Recorder(run, advance)
        trainer.add_callback(recorder)
        try:
            trainer.train()
        finally:
            run.append_metrics(recorder.rows)


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


def save_model(model: Any, tokenizer: PreTrainedTokenizerBase, run: Run, precision: str) -> None:
    """Write `<run>/model`: weights as safetensors, adapters merged, tokenizer with its template."""
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    folder = run.path / "model"
    (model.to(torch.bfloat16) if precision == "bf16" else model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _model(config: SftConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if config.model == FRESH_WORLD:
        return build_model(config.seed), build_tokenizer()
    dtype = "bf16" if config.precision == "bf16" and config.lora_rank else "fp32"
    return load_policy(config.model, dtype)


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


class _Recorder(TrainerCallback):
    """Keeps what the trainer logs of each step, and moves the bar."""

    names = ("loss", "learning_rate", "grad_norm", "mean_token_accuracy", "accuracy", "margin")

    def __init__(self, run: Run, advance: Any) -> None:
        self.run, self.advance = run, advance
        self.rows: list[dict[str, Any]] = []
        self.last = time.monotonic()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs is None or "loss" not in logs:  # evaluation, or the summary at the end
            return
        now = time.monotonic()
        row = {"step": state.global_step - 1, "epoch": state.epoch, "seconds": now - self.last}
        self.rows.append(row | {n: float(logs[n]) for n in self.names if n in logs})
        self.last = now
        self.advance(1)
