"""Runs named by their content, so that nothing is done twice: a grid's, or those of a study."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plc_core.engine.config import TrainConfig
from plc_core.parameters import ParameterError, checked, notebook_values
from plc_core.storage.paths import resource

TRAIN_NOTEBOOK = resource("notebooks") / "01_train.ipynb"
NOT_CONTENT = ("name", "runs_dir", "resume")
"""Parameters that do not change what is trained."""

_READABLE = {
    "beta": "beta",
    "flip_rate": "flip",
    "tie_rate": "tie",
    "warm_share": "warm",
    "epochs": "epochs",
}


@dataclass(frozen=True)
class PlannedRun:
    """One training run that an experiment needs.

    Attributes:
        label: the variant's name in the experiment's tables.
        seed: of pairs, corruption, order and adapters.
        parameters: of `notebooks/01_train.ipynb` where they differ from the defaults, without name.
        name: of the run folder: readable, and a hash of everything that is trained.
    """

    label: str
    seed: int
    parameters: Mapping[str, Any]
    name: str


def expand_grid(notebook: Path, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All combinations of the listed values of each part, checked, with names by content.

    A parameter that is a list itself, as `prior`, is swept by a list of lists. A `name` becomes
    the beginning of every job's name; without one, training runs get the names under which
    notebooks share them.

    Raises:
        ParameterError: for an unknown parameter, a wrong value or a list without values.
    """
    defaults = notebook_values(notebook, {})
    jobs: dict[str, dict[str, Any]] = {}
    for part in parts:
        swept = {name: _values(name, given, defaults) for name, given in part.items()}
        for combination in itertools.product(*swept.values()):
            job = dict(zip(swept, combination, strict=True))
            values = notebook_values(notebook, job)
            job["name"] = _job_name(notebook, job, values, defaults)
            jobs[job["name"]] = job  # the same content twice is one job
    return list(jobs.values())


def planned(label: str, parameters: Mapping[str, Any]) -> PlannedRun:
    """One run with these parameters, under the name that its content gives it.

    Raises:
        ParameterError: for parameters that no training run takes; it names `label`.
    """
    content = {k: v for k, v in parameters.items() if k not in NOT_CONTENT}
    try:
        config = checked({**content, "name": "planned"}, TrainConfig)
    except ParameterError as error:
        raise ParameterError(f"The variant {label!r}: {error}") from None
    values = training_content(config)
    return PlannedRun(label, config.seed, values, _name(config, values))


def training_content(config: TrainConfig) -> dict[str, Any]:
    """What `config` trains: the parameters that differ from the defaults and are content."""
    values = config.model_dump(exclude_defaults=True)
    if options := values.get("objective_options"):
        values["objective_options"] = _without_defaults(config.objective, options)
        if not values["objective_options"]:
            del values["objective_options"]
    return {k: v for k, v in values.items() if k not in NOT_CONTENT}


def parameters_hash(values: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of a hash of `values`, whatever their order."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _name(config: TrainConfig, values: Mapping[str, Any]) -> str:
    parts = [config.objective, f"beta{config.beta:g}"]
    parts += [
        f"{short}{values[name]:g}"
        for name, short in _READABLE.items()
        if name in values and name != "beta"
    ]
    words = "-".join([*parts, f"s{config.seed}", parameters_hash(values)])
    return re.sub(r"[^A-Za-z0-9._=+-]", "_", words)


def _without_defaults(objective: str, options: Mapping[str, Any]) -> dict[str, Any]:
    from plc_core.objective.build import objective_class
    from plc_core.objective.routing import Router

    maker = Router if objective == "plc" else objective_class(objective)
    defaults = {n: p.default for n, p in inspect.signature(maker).parameters.items()}
    if objective == "plc":
        defaults["correct"] = True
    plain = {n: list(d) if isinstance(d, tuple) else d for n, d in defaults.items()}
    return {
        n: v for n, v in options.items() if (list(v) if isinstance(v, tuple) else v) != plain[n]
    }


def _values(name: str, given: Any, defaults: Mapping[str, Any]) -> list[Any]:
    if name == "name" and not isinstance(given, str):
        raise ParameterError(
            f"The grid's 'name' is {given!r}: it should be one text, which begins every job's name."
        )
    if not isinstance(given, list):
        return [given]
    if isinstance(defaults.get(name), list) and not (
        given and all(isinstance(value, list) for value in given)
    ):
        return [given]
    if not given:
        raise ParameterError(f"The grid has an empty list for {name!r}: nothing would be run.")
    return given


def _job_name(
    notebook: Path, job: Mapping[str, Any], values: Mapping[str, Any], defaults: Mapping[str, Any]
) -> str:
    if "name" not in job and notebook.resolve() == TRAIN_NOTEBOOK.resolve():
        return planned("grid", values).name
    content = {k: v for k, v in values.items() if k not in NOT_CONTENT and v != defaults.get(k)}
    return f"{job.get('name', notebook.stem)}-{parameters_hash(content)}"
