"""The training loop: `transformers.Trainer` with an objective and a record of every pair.

`CarriesObjective` has what every trainer of an objective shares, TRL's too: the place in the step,
and the state in every checkpoint. `PreferenceTrainer` adds the packed forwards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, get_last_checkpoint

from plc_core.engine.arguments import keep_precision
from plc_core.engine.checkpoints import (
    STATE_FILE,
    TRAINER_STATE,
    KnowsTiedWeights,
    load_objective_state,
)
from plc_core.engine.logprobs import autocast, packed_rows, pair_logps
from plc_core.engine.packing import StepCollator, VisitOrder, pair_sizes
from plc_core.engine.visits import VisitRecorder
from plc_core.files import RunError, write_json
from plc_core.objective import (
    FlipPosterior,
    NonFiniteError,
    Objective,
    ObjectiveOutput,
    PairLogps,
    Router,
    Routing,
)
from plc_core.objective.reduction import counts_over_ranks
from plc_core.storage import list_checksums

_COLUMNS = [
    "prompt_ids", "chosen_ids", "rejected_ids", "index", "reference_chosen", "reference_rejected",
    "p_flip", "p_tie",
]  # fmt: skip


class CarriesObjective(KnowsTiedWeights):
    """Mixin for trainers: set what they carry with `carry` after `Trainer.__init__`.

    Every checkpoint holds the state of the objective, of the shadow router and of the flip
    posterior in `plc_state.json`; `train(resume_from_checkpoint=…)` reads it back, or stops where
    it is missing. `recorder`, set before training, is told where each optimizer step begins and
    ends.
    """

    objective: Objective
    shadow: Router | None
    posterior: FlipPosterior | None
    recorder: VisitRecorder
    grad_norm: Tensor | float | None = None  # of the step before its update

    def carry(
        self,
        objective: Objective,
        shadow: Router | None,
        whole_steps: bool | None = None,
        posterior: FlipPosterior | None = None,
    ) -> None:
        """Train with `objective`; `shadow` routes beside one that has no router.

        `whole_steps` says whether every optimizer step is one forward a rank; None where that is
        transformers' gradient accumulation of 1.
        """
        self.objective = objective
        self.shadow = shadow
        self.posterior = posterior
        self._micro_batch = 0
        if self.router is not None and self.router.calibration_order == "auto":
            # By what is configured: the last step of an epoch may have fewer micro-batches.
            if whole_steps is None:
                whole_steps = self.args.gradient_accumulation_steps == 1
            self.router.calibration_order = "update-first" if whole_steps else "score-first"
        self.add_callback(_Steps(self))

    @property
    def router(self) -> Router | None:
        """What routes the margins: the objective's own router, or the shadow's."""
        return self.objective.router or self.shadow

    def score(
        self, logps: PairLogps, index: Tensor | None, distinct: Tensor, training: bool
    ) -> tuple[ObjectiveOutput, Routing | None]:
        """The objective's output of one micro-batch, which is recorded, and its routing or the
        shadow's.

        Args:
            index: [B], rows of the training set; None of others, as in evaluation.
            distinct: [B], whether a pair's responses differ; others have no routing (NaN).

        Raises:
            RunError: naming the pairs, where a log-prob is not finite.
        """
        progress = min(self.state.global_step / max(self.state.max_steps, 1), 1.0)
        place = (
            (self._micro_batch, self.current_gradient_accumulation_steps) if training else (0, 1)
        )
        try:
            out = self.objective(logps, progress, place, update=training, distinct=distinct)
        except NonFiniteError as error:
            if index is None:
                raise
            raise self.recorder.not_finite(index[error.positions]) from None
        routing = out.routing
        if routing is None and self.shadow is not None:
            routing = self.shadow(out.margin, progress, place, training, logps.lengths, distinct)
        if routing is not None:
            routing = Routing(*(torch.where(distinct, x, torch.nan) for x in routing))
        if training and index is not None:
            self.recorder.add(index, logps, out, routing, distinct)
        self._micro_batch += training
        return out, routing

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """As `Trainer.train`; RunError where the checkpoint lacks the objective's state."""
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = get_last_checkpoint(str(self.args.output_dir))
        states = (self.objective, self.shadow, self.posterior)
        done = load_objective_state(Path(checkpoint), *states) if checkpoint else 0
        with self.recording(done):
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def recording(self, done: int) -> AbstractContextManager[None]:
        """Around a training that goes on after `done` steps."""
        return nullcontext()

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        # For the recorder: transformers tells it to no callback but by waiting for the device.
        self.grad_norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        return self.grad_norm

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        # A resumed run makes visits after its checkpoint again; those before must be on disk.
        self.recorder.flush()
        # Before the parent writes the weights: a checkpoint with weights has its state.
        folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            state = {"step": self.state.global_step, "objective": self.objective.state_dict()}
            if self.shadow is not None:
                state["shadow"] = self.shadow.state_dict()
            if self.posterior is not None:
                state["flip_posterior"] = self.posterior.state_dict()
            write_json(folder / STATE_FILE, state)
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            list_checksums(folder, also=TRAINER_STATE)

    def _save_rng_state(self, output_dir: str) -> None:
        """Of every rank; the main one then lists the files, before it says that all is written.

        transformers writes trainer_state.json next, and does not wait for the other ranks.
        """
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            list_checksums(Path(output_dir))


class _Steps(TrainerCallback):
    """Counts micro-batches, and tells the recorder where a step begins and ends."""

    def __init__(self, trainer: CarriesObjective) -> None:
        self.trainer = trainer
        self._started = time.perf_counter()
        self._learning_rate = 0.0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._started = time.perf_counter()
        # Adapters and wrappers come in training mode, around a model that does not.
        self.trainer.model_wrapped.train()

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.trainer._micro_batch = 0

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        trainer = self.trainer
        # The device is still at this step's backward: files are written in its time.
        trainer.recorder.write_if_due()
        trainer.recorder.close_step(state.global_step, state.epoch or 0.0, trainer.router)

    def on_optimizer_step(
        self, args: Any, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        self._learning_rate = self.trainer._get_learning_rate()  # before the schedule goes on

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # From end to end, so that loading and collating count.
        now = time.perf_counter()
        seconds, self._started = now - self._started, now
        router = self.trainer.objective.router
        # The step that was just completed began one earlier.
        progress = (state.global_step - 1) / state.max_steps
        gamma = router.strength(progress) if router is not None else None
        self.trainer.recorder.end_step(
            self._learning_rate, self.trainer.grad_norm, gamma, seconds, state.max_steps
        )


class PreferenceTrainer(CarriesObjective):
    """Trains a policy on tokenised pairs with reference log-probs.

    The loss of an optimizer step is the mean over its pairs, over all ranks and micro-batches.

    Args:
        train_dataset: rows of `engine.reference.with_reference`.
        collator: makes the forwards of an optimizer step; the batch size of `args` are its pairs.
        shadow: routes the margin beside an objective that has no router; None where it has one.
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
        """Repeat a forward, not counted, where another rank has more: they wait for each other."""
        missing = max(counts_over_ranks(len(forwards))) - len(forwards)
        last = forwards[-1]
        forwards += [
            last | {"counted": torch.zeros_like(last["place"], dtype=torch.bool)}
        ] * missing

    def _new_pairs(self) -> list[int]:
        """Pairs of this step on each rank that are not there to fill it up."""
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

        The forwards are this trainer's own rather than transformers' gradient accumulation, whose
        number a step is fixed, so that they can follow the tokens.
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
