"""The training loop: `transformers.Trainer` with an objective, a per-pair record and its state."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from plc_core.engine.logprobs import pair_logps
from plc_core.engine.packing import PairCollator
from plc_core.engine.visits import VisitRecorder
from plc_core.files import RunError, read_json, write_json
from plc_core.objective import Objective, PairLogps, Router

STATE_FILE = "plc_state.json"


class PreferenceTrainer(Trainer):
    """Trains a policy on tokenised pairs with reference log-probs.

    The loss of an optimizer step is the mean over its pairs, over all ranks and micro-batches.
    Every checkpoint holds the state of the objective and of the shadow router in `plc_state.json`.

    Args:
        model: the policy.
        args: transformers' own arguments.
        train_dataset: rows of `engine.reference.with_reference`.
        collator: the collator of packed rows.
        objective: what a pair is worth.
        shadow: routes the margin beside an objective that has no router; None where it has one.
        recorder: takes the visits; None records nothing.
        callbacks: as in `Trainer`.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        train_dataset: Dataset,
        collator: PairCollator,
        objective: Objective,
        shadow: Router | None = None,
        recorder: VisitRecorder | None = None,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        # The collator reads columns that no model's forward knows.
        args.remove_unused_columns = False
        # The row of metrics of a step is completed when the step is logged.
        args.logging_steps = 1
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset.add_column("index", list(range(len(train_dataset)))),
            data_collator=collator,
            callbacks=callbacks,
        )
        # compute_loss divides by the pairs of the whole step, so no one else may.
        self.loss_is_scaled_for_ga = True
        self.objective: Objective = objective
        self.shadow = shadow
        self.recorder = recorder
        self._micro_batch = 0
        self.add_callback(_Steps(self))

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor]:
        """The micro-batches of one optimizer step and the number of their pairs over all ranks."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        pairs = torch.tensor(sum(len(batch["index"]) for batch in batches), device=device)
        return batches, self.accelerator.reduce(pairs, reduction="sum")

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The micro-batch's share of the step's mean loss."""
        chosen, rejected = pair_logps(model, inputs)
        reference_chosen, reference_rejected = inputs["reference"].unbind(1)
        lengths = inputs["lengths"].view(-1, 2)
        logps = PairLogps(
            chosen, rejected, reference_chosen, reference_rejected, lengths[:, 0], lengths[:, 1]
        )
        progress = self.state.global_step / max(self.state.max_steps, 1)
        position = (self._micro_batch, self.current_gradient_accumulation_steps)
        training = model.training
        out = self.objective(logps, progress, position, update=training)
        routing = out.routing
        if routing is None and self.shadow is not None:
            routing = self.shadow(out.margin, progress, position, update=training)
        if training:
            self._micro_batch += 1
            if self.recorder is not None:
                self.recorder.add(inputs["index"], logps, out, routing)
        if num_items_in_batch is None:
            loss = out.loss.mean()
        else:
            # Data-parallel training averages the ranks' gradients; the mean over pairs sums them.
            loss = out.loss.sum() / num_items_in_batch * self.accelerator.num_processes
        return (loss, out) if return_outputs else loss

    @property
    def router(self) -> Router | None:
        """What routes the margins: the objective's own router, or the shadow's."""
        return self.objective.router or self.shadow

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """0: transformers' estimate counts padding of a layout that packed rows do not have."""
        return 0

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        # Before the parent writes the weights: a checkpoint with weights has its state.
        folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            state = {"step": self.state.global_step, "objective": self.objective.state_dict()}
            if self.shadow is not None:
                state["shadow"] = self.shadow.state_dict()
            write_json(folder / STATE_FILE, state)
        if self.recorder is not None:
            self.recorder.flush()
        super()._save_checkpoint(model, trial)

    def restore(self, checkpoint: Path) -> int:
        """Load the objective's state of a checkpoint before `train(resume_from_checkpoint=…)`.

        Returns its step. Raises RunError where the state is missing or is another objective's.
        """
        path = checkpoint / STATE_FILE
        if not path.is_file():
            raise RunError(
                f"The checkpoint {checkpoint} has no {STATE_FILE}; without the margin's EMA "
                "the run cannot go on. Delete its folder to use an earlier checkpoint."
            )
        state = read_json(path)
        try:
            self.objective.load_state_dict(state["objective"])
            if self.shadow is not None:
                self.shadow.load_state_dict(state["shadow"])
            return int(state["step"])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path} is not the state of this run's objective: {error}") from None


class _Steps(TrainerCallback):
    """Tells the trainer and its recorder where a step begins and ends."""

    def __init__(self, trainer: PreferenceTrainer) -> None:
        self.trainer = trainer
        self._started = time.perf_counter()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer._micro_batch = 0
        self._started = time.perf_counter()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.trainer.recorder is not None:
            self.trainer.recorder.close_step(state.global_step, state.epoch or 0.0)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        # Logged after every step; the summary at the end of training has no gradient norm.
        if self.trainer.recorder is not None and logs is not None and "grad_norm" in logs:
            self.trainer.recorder.end_step(
                logs, self.trainer.router, time.perf_counter() - self._started, state.max_steps
            )
