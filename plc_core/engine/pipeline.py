"""One training run, from its parameters to its folder."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from peft import PeftModel
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    TrainerCallback,
    TrainerState,
    set_seed,
)

from plc_core.data import DataError
from plc_core.engine.arguments import (
    Machine,
    check_machine,
    check_processes,
    machine_warnings,
    training_arguments,
    training_steps,
)
from plc_core.engine.checkpoints import (
    check_record,
    last_checkpoint,
    load_objective_state,
    lost_last_checkpoint,
    open_training,
)
from plc_core.engine.config import TrainConfig
from plc_core.engine.forward.logprobs import verify_packing
from plc_core.engine.forward.packing import (
    PairCollator,
    StepCollator,
    check_budget,
    pair_sizes,
)
from plc_core.engine.models.adapters import add_lora
from plc_core.engine.models.load import compile_layers, describe, load_policy
from plc_core.engine.models.model_files import check_start
from plc_core.engine.reference import with_reference
from plc_core.engine.run_record import record_inputs
from plc_core.engine.tokens.tokenized import Tokens, tokenize_pairs
from plc_core.engine.trainer import PreferenceTrainer
from plc_core.engine.training_pairs import training_pairs, with_pair_priors
from plc_core.engine.visits import VisitRecorder, tell_progress
from plc_core.objective import FlipPosterior, Objective, Router, build_objective
from plc_core.progress import Progress
from plc_core.runs import Run, open_run, resolve
from plc_core.runs.alerts import Alerts, margin_noise, training_alerts
from plc_core.storage.files import RunError
from plc_core.storage.paths import cache_dir

logger = logging.getLogger(__name__)


def train(config: TrainConfig) -> Run:
    """Train as `config` says and return the run; its folder holds everything that is known of it.

    A new run needs a new name. With `resume`, the run of that name goes on from its last
    checkpoint (or from the start, if it has none), and ends as if it had not been interrupted; a
    finished run is returned as it is. Under `accelerate launch` every process calls this, and the
    first one writes.

    Raises:
        RunError, DataError, ModelError, ValueError: a sentence; no run is ever overwritten.
    """
    objective, shadow = objectives(config)  # wrong options are refused before a folder is made
    posterior = FlipPosterior()
    processes = PartialState(cpu=not torch.cuda.is_available())
    main = processes.is_main_process
    check_processes(config, processes)
    machine = Machine.here()
    check_machine(config, machine)
    if main:
        open_training(config, "training")
    processes.wait_for_everyone()
    run = open_run(resolve(config.runs_folder, config.name))
    if config.resume and run.is_trained and not lost_last_checkpoint(run):
        if main:
            run.take_up()
        return run
    # Looked at before anything is changed: a checkpoint that cannot be used costs nothing.
    checkpoint = last_checkpoint(run) if config.resume else None
    states = (objective, shadow, posterior)
    steps = load_objective_state(checkpoint, *states) if checkpoint else 0
    check_record(run, steps)
    if main and run.is_trained:
        run.update_info(trained_steps=None)  # until it is again
    with run.running("preparing") if main else nullcontext():
        progress = Progress(run if main else None)
        policy, tokenizer = load_policy(config.model, config.weights_dtype)
        check_start(run, policy)
        _check_adapters(config, policy)
        policy.to(processes.device)
        pairs = training_pairs(config, policy, tokenizer, progress)
        tokens = tokenize_pairs(pairs, tokenizer, config.max_length, config.data_actions, progress)
        _warn_of_identical(tokens, config.data_actions.get("identical-tokens") == "drop")
        check_budget(tokens.dataset, config.tokens_per_forward)
        collator = StepCollator(
            PairCollator(config.row_tokens), config.pairs_per_forward, config.tokens_per_forward
        )
        seconds = verify_packing(policy, tokens.dataset, config.autocast, config.row_tokens)
        sizes, planned = pair_sizes(tokens.dataset), training_steps(config, len(tokens.dataset))
        slow = machine_warnings(config, machine, policy, sizes, planned, seconds)
        Alerts(run if main else None).tell(slow)
        if config.compile:
            compile_layers(policy)
        dataset, reference = with_reference(
            tokens.dataset, policy, cache_dir(), collator, config.autocast, progress
        )
        if config.pair_priors:
            dataset = with_pair_priors(dataset, tokens.pairs)
        if main:
            record_inputs(run, config, tokens, reference)
        # Fresh adapters draw from the seed alone, whatever was computed or cached before.
        set_seed(config.seed)
        model: PreTrainedModel | PeftModel = policy
        if config.lora_rank and not isinstance(policy, PeftModel):
            model = add_lora(policy, config.lora_rank, config.lora_alpha)
        recorder = VisitRecorder(run, dataset["pair_id"], config.beta, posterior)
        trainer = PreferenceTrainer(
            model,
            training_arguments(config, run, len(dataset), processes),
            dataset,
            collator,
            objective,
            shadow,
            recorder,
            tokens.pairs.dataset["warm"][:],
        )
        trainer.processing_class = tokenizer
        if main:
            run.update_info(
                model={"name": config.model, **describe(model)},
                calibration_order=trainer.router.calibration_order if trainer.router else None,
            )
        if config.resume and main:
            run.truncate_after(steps)
        _fit(trainer, run, steps, planned, checkpoint)
    if processes.num_processes > 1:
        # No process leaves while the first one still writes, nor with the group's threads alive,
        # which would abort it at exit.
        processes.wait_for_everyone()
        run = open_run(run.path)  # reopened, to read what the first process wrote
        atexit.register(processes.destroy_process_group)
    return run


def objectives(config: TrainConfig) -> tuple[Objective, Router | None]:
    """The objective of a run, and the shadow router that is logged where it has none."""
    routing: dict[str, Any] = {
        "recipe": config.recipe,
        "prior": tuple(config.prior),
        "schedule": config.schedule,
        "calibration_order": config.calibration_order,
    }
    options = config.objective_options
    if config.objective == "plc":
        return build_objective("plc", beta=config.beta, **routing, **options), None
    objective = build_objective(config.objective, beta=config.beta, **options)
    return objective, Router(**routing)


def _check_adapters(config: TrainConfig, policy: object) -> None:
    """RunError where a policy begins with adapters of another shape than is asked for."""
    if not isinstance(policy, PeftModel):
        return
    own: Any = policy.active_peft_config
    if (own.r, own.lora_alpha) != (config.lora_rank, config.lora_alpha):
        raise RunError(
            f"The adapters in {config.model} have rank {own.r} and alpha {own.lora_alpha}, and are "
            f"trained on as they are: set lora_rank to {own.r} and lora_alpha to {own.lora_alpha}."
        )


def _warn_of_identical(tokens: Tokens, left_out: bool) -> None:
    count = tokens.counts["identical-tokens"]
    whole = len(tokens.pairs) + (count if left_out else 0)
    done = "are left out" if left_out else "train nothing"
    sentence = (
        f"{count} of {whole} pairs have the same tokens on both sides and {done}: max_length "
        f"{tokens.max_length} cuts them where they are still alike, or the chat template drops "
        "the answers."
    )
    if count and count >= whole:
        raise DataError(sentence)
    if count:
        logger.warning(sentence)


def _fit(
    trainer: PreferenceTrainer, run: Run, done: int, steps: int, checkpoint: Path | None
) -> None:
    trainer.remove_callback(PrinterCallback)
    if trainer.is_world_process_zero():
        tell_progress(run, done, steps)
    try:
        with Progress().phase("training", steps) as advance:
            trainer.add_callback(_Bar(advance))
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except BaseException:
        # A run that fails keeps what it saw.
        trainer.recorder.keep()
        raise
    trainer.recorder.flush()
    if trainer.is_world_process_zero():
        tell_progress(run, trainer.state.global_step, steps)
        metrics = run.metrics()
        # In one write: a reader that sees trained_steps takes the run as finished.
        run.update_info(
            trained_steps=trainer.state.global_step,
            margin_noise=margin_noise(metrics),
            alerts=training_alerts(metrics, steps),
        )


class _Bar(TrainerCallback):
    """One bar for the whole training, in place of transformers' line per logged step."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self.advance = advance
        self.shown = 0

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.advance(state.global_step - self.shown)
        self.shown = state.global_step
