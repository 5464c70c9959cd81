"""The runs an experiment needs: opened where they are finished, made where they are missing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from plc_core.batch.jobs import run_jobs
from plc_core.batch.planning import (
    NOT_CONTENT,
    TRAIN_NOTEBOOK,
    PlannedRun,
    parameters_hash,
    training_content,
)
from plc_core.engine.config import SUITS_OWN_PAIRS, TrainConfig
from plc_core.parameters import ParameterError, checked
from plc_core.progress import Progress
from plc_core.runs import Run, open_run, resolve
from plc_core.storage.files import RunError, replacing
from plc_core.storage.paths import project_path

_SECONDS_BETWEEN_LOOKS = 1.0


def ensure_runs(
    planned: Iterable[PlannedRun],
    runs_dir: str = "runs",
    make: bool = True,
    workers: int = 2,
    progress: Progress | None = None,
    then: str = "",
) -> dict[str, list[Run]]:
    """The finished runs of every label, in order of seed.

    What is finished is opened; what is missing is trained, `workers` at a time, and what was cut
    off goes on. A run that another process is making is waited for.

    Args:
        progress: told how many of those that were missing are there.
        then: what has to be made after these, for the sentence on what is missing.

    Raises:
        RunError: where a run was made with other parameters than its name says; where runs are
            missing and `make` is false, with the command that makes them; where one failed.
    """
    wanted = list(planned)
    root = project_path(runs_dir)
    missing = _missing(wanted, root)
    if missing and not make:
        raise RunError(_how_to_make(missing, root, then))
    while missing:
        elsewhere = [plan for plan in missing if _state(root, plan) == "running"]
        here = [plan for plan in missing if plan not in elsewhere]
        if here:
            jobs = [_job(plan, root) for plan in here]
            errors = run_jobs(TRAIN_NOTEBOOK, jobs, workers, progress=progress)
            failed = [e for e in errors if _state(root, _named(here, e)) != "running"]
            if failed:
                raise RunError("Runs that this needs failed. " + " ".join(failed))
        else:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        missing = _missing(wanted, root)
    by_label: dict[str, list[Run]] = {}
    for plan in sorted(wanted, key=lambda p: p.seed):
        by_label.setdefault(plan.label, []).append(open_run(resolve(root, plan.name)))
    return {plan.label: by_label[plan.label] for plan in wanted}


def _missing(planned: Iterable[PlannedRun], root: Path) -> list[PlannedRun]:
    unique = {plan.name: plan for plan in planned}
    return [plan for plan in unique.values() if not _is_ready(plan, root)]


def _is_ready(plan: PlannedRun, root: Path) -> bool:
    folder = resolve(root, plan.name)
    if not folder.is_dir():
        return False
    run = open_run(folder)
    recorded: Any = run.info.get("config")
    if recorded is None and not run.is_trained:
        return False  # a job that failed before its run began
    if not isinstance(recorded, dict) or _content(recorded) != plan.parameters:
        raise RunError(
            f"The run folder {folder} was made with other parameters than its name stands for; "
            "rename or delete it yourself, and it will be made anew."
        )
    return run.status.get("state") == "done" and run.is_trained


def _content(recorded: dict[str, Any]) -> dict[str, Any] | None:
    known = {k: v for k, v in recorded.items() if k not in NOT_CONTENT}
    try:
        return training_content(checked({**known, "name": "recorded"}, TrainConfig))
    except ParameterError:
        return None


def _state(root: Path, plan: PlannedRun) -> str:
    try:
        return str(open_run(resolve(root, plan.name)).status.get("state"))
    except RunError:
        return "missing"


def _named(plans: Iterable[PlannedRun], error: str) -> PlannedRun:
    return next(plan for plan in plans if error.startswith(f"{plan.name}: "))


def _job(plan: PlannedRun, root: Path) -> dict[str, Any]:
    # A plan leaves out the defaults of TrainConfig; those of the notebook may follow the pairs.
    before: dict[str, Any] = {}
    if plan.parameters.get("data", "world") != "world":
        fields = TrainConfig.model_fields
        before = {name: fields[name].default for name in ("model", *SUITS_OWN_PAIRS)}
    return {**before, **plan.parameters, "name": plan.name, "runs_dir": str(root)}


def _how_to_make(missing: list[PlannedRun], root: Path, then: str) -> str:
    jobs = [_job(plan, root) for plan in missing]
    root.mkdir(parents=True, exist_ok=True)
    file = root / f"missing-{parameters_hash({'jobs': jobs})}.yaml"
    with replacing(file) as temporary:
        temporary.write_text(yaml.safe_dump(jobs, sort_keys=False), encoding="utf-8")
    names = ", ".join(f"{plan.name} ({plan.label}, seed {plan.seed})" for plan in missing)
    count = "1 run is" if len(missing) == 1 else f"{len(missing)} runs are"
    after = f". {then}" if then else ""
    return (
        f"{count} missing in {root}: {names}. Make them with: "
        f"python -m plc_core.batch {TRAIN_NOTEBOOK} --jobs {file} --workers 2{after}"
    )
