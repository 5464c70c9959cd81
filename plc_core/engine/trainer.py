"""The training loop: `transformers.Trainer` with packed forwards and an objective."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from datasets import Dataset
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from plc_core.engine.arguments import keep_precision
from plc_core.engine.forward.attention import packed_rows
from plc_core.engine.forward.logprobs import autocast, pair_logps
from plc_core.engine.forward.packing import StepCollator, VisitOrder, pair_sizes
from plc_core.engine.objective_trainer import CarriesObjective
from plc_core.engine.visits import VisitRecorder
from plc_core.objective import (
    Objective,
    PairLogps,
    Router,
)
from plc_core.objective.reduction import counts_over_ranks
from plc_core.storage.files import RunError

_COLUMNS = [
    "prompt_ids", "chosen_ids", "rejected_ids", "index", "reference_chosen", "reference_rejected",
    "p_flip", "p_tie",
]  # fmt: skip


class PreferenceTrainer(CarriesObjective):
    """Trains a policy on tokenised pairs with reference log-probs.

    The loss of an optimizer step is the mean over its pairs, over all ranks and micro-batches.

    Args:
        train_dataset: rows of `engine.reference.with_reference`.
        collator: makes the forwards of an optimizer step; `args.per_device_train_batch_size` is the
            number of its pairs per rank.
        shadow: routes the margin alongside an objective without a router; None where it has one.
        warm: whether each pair is visited before the others in the first epoch.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        train_dataset: Dataset,
        collator: StepCollator,
        objective: Objective,
        shadow: Router | None,
        recorder: VisitRecorder,
        warm: Sequence[bool] = (),
    ) -> None:
        self._warm = warm
        self._row_tokens = collator.collator.row_tokens
        # The collator reads columns that no model's forward knows.
        args.remove_unused_columns = False
        # The recorder logs every step; transformers would wait for the device to do so.
        args.logging_strategy = IntervalStrategy.NO
        args.logging_nan_inf_filter = False
        pairs = train_dataset.add_column("index", list(range(len(train_dataset))))
        columns = [name for name in _COLUMNS if name in pairs.column_names]
        self._pairs = pairs.select_columns(columns).with_format("numpy")
        super().__init__(model=model, args=args, train_dataset=self._pairs, data_collator=collator)
        keep_precision(self.accelerator.state)
        # compute_loss divides by the pairs of the whole step, so no one else may.
        self.loss_is_scaled_for_ga = True
        self.recorder = recorder
        whole = not collator.tokens_per_forward
        whole = whole and collator.pairs_per_forward >= args.per_device_train_batch_size
        self.carry(objective, shadow, whole, recorder.posterior)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        ranks = self.accelerator.num_processes
        return VisitOrder(
            pair_sizes(self._pairs).tolist(), self.args.seed, self._warm,
            self.args.per_device_train_batch_size * ranks, ranks,
        )  # fmt: skip

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], int]:
        """The forwards of one optimizer step and the number of its pairs over all ranks.

        Where an epoch does not divide evenly over the ranks, the last ones get pairs again; those
        are marked in `counted` and left out of loss, calibration and record.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        new = self._new_pairs()
        own = new[self.accelerator.process_index]
        for batch in batches:
            self._even_out(batch["forwards"])
            for forward in batch["forwards"]:
                if own < self.args.per_device_train_batch_size and "counted" not in forward:
                    forward["counted"] = forward["place"] < own
        return batches, sum(new)

    def _even_out(self, forwards: list[dict[str, Tensor]]) -> None:
        """Repeat the last forward, uncounted, where another rank has more: all run in lockstep."""
        missing = max(counts_over_ranks(len(forwards))) - len(forwards)
        last = forwards[-1]
        forwards += [
            last | {"counted": torch.zeros_like(last["place"], dtype=torch.bool)}
        ] * missing

    def _new_pairs(self) -> list[int]:
        """How many pairs of this step are new on each rank, rather than padding."""
        # Batches of one sampler are dealt to the ranks in turn, and refilled from its start.
        size, ranks = self.args.per_device_train_batch_size, self.accelerator.num_processes
        steps_an_epoch = math.ceil(math.ceil(len(self._pairs) / size) / ranks)
        first = (self.state.global_step % steps_an_epoch) * ranks
        left = (len(self._pairs) - (first + rank) * size for rank in range(ranks))
        return [max(0, min(size, pairs)) for pairs in left]

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """The step's forwards and backwards, and the step's mean loss.

        It runs its own micro-batches, whose number follows the tokens; transformers' gradient
        accumulation has a fixed number per step.
        """
        if not model.training:  # a walk through thousands of modules, where it is not needed
            model.train()
        forwards = self._prepare_inputs(inputs)["forwards"]
        self.current_gradient_accumulation_steps = len(forwards)
        losses = []
        for forward in forwards:
            last = forward is forwards[-1]
            self.accelerator.gradient_state._set_sync_gradients(last)
            whole = nullcontext() if last else self.accelerator.no_sync(model)
            with whole, packed_rows(model):
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, forward, num_items_in_batch=num_items_in_batch)
                self.accelerator.backward(loss)
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> torch.autocast:
        """Autocast around the whole loss: accelerate's is around a forward that is not called."""
        return autocast(self.args.device, self.args.bf16)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """A forward's share of the step's mean loss."""
        chosen, rejected = pair_logps(model, inputs, self._row_tokens)
        lengths = inputs["lengths"].view(-1, 2)
        told = inputs["told"].unbind(1) if "told" in inputs else ()
        reference = inputs["reference"].unbind(1)
        logps = PairLogps(chosen, rejected, *reference, *lengths.unbind(1), *told)
        index, distinct = inputs["index"], inputs["distinct"]
        if "counted" in inputs:
            logps = logps.select(inputs["counted"])
            index, distinct = index[inputs["counted"]], distinct[inputs["counted"]]
        out, _ = self.score(logps, index, distinct, model.training)
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
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:  # of python, torch, safetensors
            raise RunError(
                f"The checkpoint of step {self.state.global_step} cannot be written to "
                f"{self.args.output_dir}: {error}. Earlier checkpoints are whole; with resume the "
                "run goes on from the last of them."
            ) from error
