"""The training loop: `transformers.Trainer` with an objective and a record of every pair."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from plc_core.engine.logprobs import pair_logps
from plc_core.engine.objective_state import CarriesObjective
from plc_core.engine.order import WarmFirst
from plc_core.engine.packing import PairCollator
from plc_core.engine.visits import VisitRecorder
from plc_core.objective import NonFiniteError, Objective, PairLogps, Router


class PreferenceTrainer(CarriesObjective):
    """Trains a policy on tokenised pairs with reference log-probs.

    The loss of an optimizer step is the mean over its pairs, over all ranks and micro-batches.

    Args:
        model: the policy.
        args: transformers' own arguments.
        train_dataset: rows of `engine.reference.with_reference`.
        collator: the collator of packed rows.
        objective: what a pair is worth.
        shadow: routes the margin beside an objective that has no router; None where it has one.
        recorder: takes the visits.
        warm: whether each pair is visited before the others in the first epoch.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        train_dataset: Dataset,
        collator: PairCollator,
        objective: Objective,
        shadow: Router | None,
        recorder: VisitRecorder,
        warm: Sequence[bool] = (),
    ) -> None:
        self._warm = warm
        # The collator reads columns that no model's forward knows.
        args.remove_unused_columns = False
        # The row of metrics of a step is completed when the step is logged.
        args.logging_steps = 1
        self._pairs = train_dataset.add_column("index", list(range(len(train_dataset))))
        super().__init__(
            model=model,
            args=args,
            train_dataset=self._pairs,
            data_collator=collator,
        )
        # compute_loss divides by the pairs of the whole step, so no one else may.
        self.loss_is_scaled_for_ga = True
        self.recorder = recorder
        self.carry(objective, shadow)
        self.add_callback(_Records(self))

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if any(self._warm):
            return WarmFirst(self._warm, self.args.seed)
        return super()._get_train_sampler(train_dataset)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor]:
        """The micro-batches of one optimizer step and the number of their pairs over all ranks.

        Where an epoch does not divide evenly over the ranks, the last ones get pairs again; those
        are marked in `counted` and left out of loss, calibration and record.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        pairs = 0
        for place, batch in enumerate(batches):
            new = min(self._new_pairs(place), len(batch["index"]))
            if new < len(batch["index"]):
                batch["counted"] = torch.arange(len(batch["index"])) < new
            pairs += new
        total = torch.tensor(pairs, device=device)
        return batches, self.accelerator.reduce(total, reduction="sum")

    def _new_pairs(self, place: int) -> int:
        # Batches of one sampler are dealt to the ranks in turn, and refilled from its start.
        accumulation = self.args.gradient_accumulation_steps
        steps_an_epoch = math.ceil(self._batches_a_rank() / accumulation)
        own = (self.state.global_step % steps_an_epoch) * accumulation + place
        number = own * self.accelerator.num_processes + self.accelerator.process_index
        size = self.args.per_device_train_batch_size
        return max(0, min(size, len(self._pairs) - number * size))

    def _batches_a_rank(self) -> int:
        batches = math.ceil(len(self._pairs) / self.args.per_device_train_batch_size)
        return math.ceil(batches / self.accelerator.num_processes)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The micro-batch's share of the step's mean loss."""
        chosen, rejected = pair_logps(model, inputs)
        lengths = inputs["lengths"].view(-1, 2)
        logps = PairLogps(chosen, rejected, *inputs["reference"].unbind(1), *lengths.unbind(1))
        index = inputs["index"]
        if "counted" in inputs:
            logps = PairLogps(*(x[inputs["counted"]] for x in logps))
            index = index[inputs["counted"]]
        try:
            out, routing = self.score(logps, training=model.training)
        except NonFiniteError as error:
            raise self.recorder.not_finite(index[error.positions]) from None
        if model.training:
            self.recorder.add(index, logps, out, routing)
        if num_items_in_batch is None:
            loss = out.loss.mean()
        else:
            # Data-parallel training averages the ranks' gradients; the mean over pairs sums them.
            loss = out.loss.sum() / num_items_in_batch * self.accelerator.num_processes
        return (loss, out) if return_outputs else loss

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """0: transformers' estimate counts padding of a layout that packed rows do not have."""
        return 0

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        # A resumed run makes visits after its checkpoint again; those before must be on disk.
        self.recorder.flush()
        super()._save_checkpoint(model, trial)


class _Records(TrainerCallback):
    """Tells the recorder where a step begins and ends."""

    def __init__(self, trainer: PreferenceTrainer) -> None:
        self.trainer = trainer
        self._started = time.perf_counter()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._started = time.perf_counter()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
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
        if logs is not None and "grad_norm" in logs:
            # From log to log, so that loading and collating count.
            now = time.perf_counter()
            seconds, self._started = now - self._started, now
            router = self.trainer.objective.router
            # The step that was just completed began one earlier.
            progress = (state.global_step - 1) / state.max_steps
            gamma = router.strength(progress) if router is not None else None
            self.trainer.recorder.end_step(
                logs, self.trainer.router, gamma, seconds, state.max_steps
            )
