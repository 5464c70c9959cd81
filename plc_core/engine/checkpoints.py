"""Where a run goes on: its parameters, its last usable checkpoint, and the record up to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from peft import PeftModel
from safetensors import SafetensorError
from transformers import PreTrainedModel, Trainer

from plc_core.engine.checkpoint_files import (
    TRAINER_STATE,
    check_checkpoint,
    check_files,
    check_step,
    damaged,
    has_list,
    remedy_of,
    step_of,
)
from plc_core.engine.config import StageConfig, TrainConfig
from plc_core.engine.models.adapters import peft_quiet
from plc_core.engine.models.load import disable_dropout, load_policy
from plc_core.engine.models.model_files import check_start, is_model_file
from plc_core.objective import FlipPosterior, Objective, Router
from plc_core.runs import Run, create_run, open_run, resolve
from plc_core.storage.files import RunError, is_there, paths_in, read_json
from plc_core.storage.manifest import MANIFEST, listed

STATE_FILE = "plc_state.json"  # of the objective, its router and the flip posterior

_MAY_CHANGE = {"resume", "runs_dir"}


def open_training(config: TrainConfig | StageConfig, kind: str) -> Run:
    """A new run of these parameters or, with `resume`, the run of this name that had the same.

    Raises:
        RunError: where the name is taken, there is no such run, or its parameters were others.
    """
    parameters = config.model_dump()
    if not config.resume:
        about = {"kind": kind, "config": parameters}
        return create_run(config.runs_folder, config.name, about)
    run = open_run(resolve(config.runs_folder, config.name))
    before = run.info.get("config")
    if not isinstance(before, dict):
        raise RunError(f"The run.json of {run.name!r} does not say with which parameters it began.")
    # A parameter that did not exist when the run began had its default; a folder may be renamed.
    before = type(config).model_validate({"name": run.name}).model_dump() | before
    before["name"] = run.name
    changed = [k for k, v in parameters.items() if k not in _MAY_CHANGE and before[k] != v]
    if changed:
        raise RunError(
            f"The run {run.name!r} cannot go on with other parameters: {', '.join(changed)} "
            "changed. Give it the parameters in its run.json, or another name."
        )
    return run


def check_same(run: Run, what: str, before: object, now: object) -> None:
    """RunError where a run to resume was begun with another `what`."""
    if before != now:
        raise RunError(
            f"The run {run.name!r} cannot go on: its {what} changed since it began ({before} then, "
            f"{now} now). Nothing was changed; start a run of another name."
        )


def last_checkpoint(run: Run) -> Path | None:
    """The folder of the run's last whole checkpoint, or None; RunError where it is damaged.

    trainer_state.json is what transformers writes last, so a checkpoint that was cut off in the
    middle has none, or half of one, and is passed over. One that lost a file later, or has another
    bit in one, is an error: going on from it would end with other weights and no word said.
    """
    checkpoint = _last_finished(run)
    if checkpoint is not None:
        if _lost_list(run, checkpoint):
            raise damaged(checkpoint, MANIFEST)
        check_checkpoint(checkpoint)
    return checkpoint


def trained_checkpoint(run: Run) -> Path:
    """The folder of the run's last whole checkpoint.

    RunError where it has none, or where that of its last step is gone: an earlier policy is not
    the one that was trained.
    """
    checkpoint = _last_finished(run)  # its optimizer, which may be large, is not needed
    if checkpoint is None:
        advice = "Train it with resume set to true."
        if run.is_trained:
            advice = "Put a copy of it back; without one, train a run of another name the same way."
        raise RunError(
            f"The run {run.name!r} has no whole checkpoint, so it has no policy: there is none in "
            f"{run.path / 'checkpoints'}. {advice}"
        )
    if _falls_short(run, checkpoint):
        raise RunError(
            f"The run {run.name!r} was trained to step {run.info['trained_steps']}, and the last "
            f"checkpoint that is there is {checkpoint}. Train it with resume set to true: it goes "
            "on from there."
        )
    return checkpoint


def lost_last_checkpoint(run: Run) -> bool:
    """Whether a run that was trained has checkpoints, but no longer that of its last step."""
    checkpoint = _last_finished(run)
    return checkpoint is not None and _falls_short(run, checkpoint)


def _falls_short(run: Run, checkpoint: Path) -> bool:
    """Whether the run was trained beyond its last checkpoint.

    Of trainings with a trainer of the user's own it is not known which checkpoints were to be kept.
    """
    steps = run.info.get("trained_steps")
    return steps is not None and bool(run.info.get("config")) and step_of(checkpoint) < steps


def whole_checkpoints(run: Run) -> dict[int, Path]:
    """The folders of the run's whole checkpoints by their step, in order."""
    found = {step_of(path): path for path in _finished(run)}
    return dict(sorted(found.items()))


def _lost_list(run: Run, checkpoint: Path) -> bool:
    training = run.info.get("kind") == "training"
    return run.has_checksums and training and not has_list(checkpoint)


def load_trained(run: Run, checkpoint: Path | None = None) -> PreTrainedModel | PeftModel:
    """The policy of a checkpoint of the run, by itself the last.

    Raises:
        RunError: where it has none, or its files or, of adapters, the model that they were trained
            on are not what they were.
    """
    config = run.info["config"]
    checkpoint = checkpoint or trained_checkpoint(run)
    if _lost_list(run, checkpoint):
        raise damaged(checkpoint, MANIFEST)
    check_files(checkpoint, is_model_file)
    check_step(checkpoint)
    if not (checkpoint / "adapter_config.json").exists():
        return load_policy(str(checkpoint.resolve()))[0]
    base: Any = load_policy(config["model"])[0]
    check_start(run, base)
    if isinstance(base, PeftModel):
        base = base.unload()  # the checkpoint has the adapters that the run began with, trained on
    try:
        with peft_quiet():
            adapted = PeftModel.from_pretrained(base, checkpoint)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        said = f"The adapters in {checkpoint} cannot be loaded: {error}. {remedy_of(checkpoint)}"
        raise RunError(said) from error
    disable_dropout(adapted)
    return adapted


def load_objective_state(
    checkpoint: Path,
    objective: Objective,
    shadow: Router | None,
    posterior: FlipPosterior | None = None,
) -> int:
    """Load the states of a checkpoint and return its step; RunError where they are missing."""
    path = checkpoint / STATE_FILE
    if not path.is_file():
        raise RunError(
            f"The checkpoint {checkpoint} has no {STATE_FILE}; without the margin's EMA the run "
            "cannot go on. Delete its folder to use an earlier checkpoint."
        )
    check_checkpoint(checkpoint)
    state = read_json(path, sealed=False)  # the list that was checked has its checksum
    try:
        objective.load_state_dict(state["objective"])
        if shadow is not None:
            shadow.load_state_dict(state["shadow"])
        if posterior is not None:
            posterior.load_state_dict(state["flip_posterior"])
        step = int(state["step"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is not the state of this run's objective: {error}") from None
    if checkpoint.name != f"checkpoint-{step}":
        raise RunError(f"{path} is the state of step {step}, not of {checkpoint.name}.")
    return step


def check_record(run: Run, steps: int) -> None:
    """RunError unless metrics and visits hold every step before `steps`."""
    metrics = run.metrics()
    recorded: dict[str, set[int]] = {
        "metrics.parquet": set(metrics["step"]) if len(metrics) else set(),
        "visits": set(run.visits(["step"])["step"]),
    }
    for name, found in recorded.items():
        missing = sorted(set(range(steps)) - found)
        if missing:
            raise RunError(
                f"The run {run.name!r} cannot go on from step {steps}: in its {name} "
                f"{len(missing)} of the steps before are missing, as step {missing[0]}. Start it "
                "anew under another name."
            )


def _finished(run: Run) -> list[Path]:
    return [path for path in paths_in(run.path / "checkpoints") if _was_finished(path)]


def _last_finished(run: Run) -> Path | None:
    return max(_finished(run), key=step_of, default=None)


def _was_finished(path: Path) -> bool:
    if not re.fullmatch(r"checkpoint-\d+", path.name):
        return False
    is_there(path / TRAINER_STATE)  # a folder that may not be read is not one that was cut off
    try:
        if TRAINER_STATE in (listed(path) or {}):  # whatever became of it since
            return True
    except RunError:  # a list that is damaged was written
        return True
    try:
        return isinstance(read_json(path / TRAINER_STATE, sealed=False).get("global_step"), int)
    except RunError:
        return False


class KnowsTiedWeights(Trainer):
    """Mixin for trainers: a resumed run warns of no weight that was loaded under another name."""

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        missing = load_result.missing_keys
        model: Any = self.model
        weights = dict(model.named_parameters(remove_duplicate=False))
        loaded = {id(weight) for name, weight in weights.items() if name not in missing}
        unknown = [name for name in missing if id(weights.get(name)) not in loaded]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=unknown))
