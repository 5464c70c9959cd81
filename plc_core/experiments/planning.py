"""Runs named by their content, so that notebooks share them, and made where they are missing."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from plc_core.engine.config import TrainConfig
from plc_core.files import RunError, project_path
from plc_core.jobs import run_jobs
from plc_core.parameters import checked
from plc_core.runs import Run, open_run, resolve

_NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
_WORLD = "world"  # the recipe that is 01_train's own defaults
_NOT_CONTENT = {"name", "runs_dir", "resume"}
_SHOWN = 3


class PlannedRun(NamedTuple):
    """A run of 01_train that a study asks for."""

    label: str  # of the variant
    seed: int
    name: str  # by the content of all its parameters
    parameters: dict[str, Any]  # those that differ from the notebook's defaults, without a name


def plan_runs(
    recipe: str,
    variants: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    common: Mapping[str, Any] | None = None,
) -> list[PlannedRun]:
    """The runs of all variants and seeds, under names that say what they are.

    Args:
        recipe: "world", or a file of notebooks/recipes by its name without ending.
        variants: parameters of 01_train by label; they come before `common`, and that before the
            recipe.
        seeds: one run a variant and seed.
        common: parameters of all variants.

    Raises:
        ParameterError: for an unknown parameter or a wrong value.
        RunError: where there is no such recipe.
    """
    base = {**_recipe(recipe), **(common or {})}
    defaults = TrainConfig.model_validate({"name": "x"}).model_dump(exclude=_NOT_CONTENT)
    planned = []
    for label, changes in variants.items():
        for seed in seeds:
            given = {k: v for k, v in {**base, **changes}.items() if k not in _NOT_CONTENT}
            config = checked({**given, "seed": seed, "name": "x"}, TrainConfig)
            content = config.model_dump(exclude=_NOT_CONTENT)
            # By what differs: a parameter that comes later does not rename the runs before it.
            values = {k: v for k, v in content.items() if v != defaults[k]}
            digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]
            name = f"{content['objective']}-s{seed}-{digest}"
            planned.append(PlannedRun(label, seed, name, values))
    return planned


def ready_runs(
    planned: Sequence[PlannedRun], runs_dir: str = "runs", make: bool = True, workers: int = 2
) -> dict[str, list[Run]]:
    """The runs of each label in the order of the plan; what is missing is trained first.

    Args:
        runs_dir: where run folders lie.
        make: False trains nothing.
        workers: runs that train at once.

    Raises:
        RunError: where runs are missing and not to be made, which and how to make them; or where
            they could not be made, with the reasons.
    """
    folder = project_path(runs_dir)
    missing = {p.name: p for p in planned if not _is_ready(resolve(folder, p.name))}
    if missing and not make:
        raise RunError(_how_to_make(list(missing.values()), runs_dir))
    if missing:
        jobs = [{**p.parameters, "name": p.name, "runs_dir": str(folder)} for p in missing.values()]
        if errors := run_jobs(_NOTEBOOKS / "01_train.ipynb", jobs, workers):
            raise RunError(" ".join(errors))
    found: dict[str, list[Run]] = {}
    for p in planned:
        found.setdefault(p.label, []).append(open_run(resolve(folder, p.name)))
    return found


def _is_ready(path: Path) -> bool:
    try:
        run = open_run(path)
        return run.is_trained and run.status["state"] == "done"
    except (RunError, KeyError):
        return False


def _how_to_make(missing: Sequence[PlannedRun], runs_dir: str) -> str:
    labels = [f"{p.label} (seed {p.seed})" for p in missing]
    more = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
    first = missing[0]
    options = [("name", first.name), ("runs_dir", runs_dir), *sorted(first.parameters.items())]
    command = " ".join(f"-p {name} {shlex.quote(json.dumps(v))}" for name, v in options)
    return (
        f"{len(missing)} runs are missing in {runs_dir}: {', '.join(labels[:_SHOWN])}{more}. Set "
        "make to true to train them, or make the first with: python -m plc_core.batch "
        f"notebooks/01_train.ipynb {command}"
    )


def _recipe(name: str) -> dict[str, Any]:
    if name == _WORLD:
        return {}
    path = _NOTEBOOKS / "recipes" / f"{name}.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError:
        known = sorted(p.stem for p in (_NOTEBOOKS / "recipes").glob("*.yaml"))
        raise RunError(
            f"There is no recipe {name!r}; known are {_WORLD}, {', '.join(known)}."
        ) from None
    except yaml.YAMLError as error:
        raise RunError(f"{path} is no YAML: {error}") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} should map names of parameters to values.")
    return content
