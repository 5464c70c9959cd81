"""What every trainer of an objective shares, TRL's too: the place in the step, and the state in
every checkpoint.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from plc_core.engine.checkpoints import (
    STATE_FILE,
    TRAINER_STATE,
    KnowsTiedWeights,
    load_objective_state,
)
from plc_core.engine.visits import VisitRecorder
from plc_core.objective import (
    FlipPosterior,
    NonFiniteError,
    Objective,
    ObjectiveOutput,
    PairLogps,
    Router,
    Routing,
)
from plc_core.storage.files import write_json
from plc_core.storage.manifest import list_checksums


class CarriesObjective(KnowsTiedWeights):
    """Base of trainers that hold an objective: call `carry` after `Trainer.__init__`.

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
        """Train with `objective`; `shadow` routes alongside one that has no router.

        `whole_steps` says whether every optimizer step is one forward per rank; None derives it
        from `gradient_accumulation_steps` being 1.
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
        # For the recorder: transformers gives callbacks the norm only by waiting for the device.
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
        """Save every rank's RNG state; then the main rank lists the files of the checkpoint.

        trainer_state.json, which says that it is complete, comes next: transformers writes it
        without waiting for the other ranks.
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
        # Wrappers and adapters start in training mode, the model inside them in eval mode.
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
