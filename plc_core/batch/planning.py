"""Runs named by their content, so that nothing is done twice: of an experiment, or of a grid."""

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

import yaml

from plc_core.engine.config import TrainConfig
from plc_core.files import RunError, project_path, resource
from plc_core.parameters import ParameterError, checked, load_yaml, notebook_values

TRAIN_NOTEBOOK = resource("notebooks") / "01_train.ipynb"
NOT_CONTENT = ("name", "runs_dir", "resume")
"""Parameters that do not change what is trained."""

_RECIPES = TRAIN_NOTEBOOK.parent / "recipes"
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


def plan_runs(
    recipe: str,
    variants: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    common: Mapping[str, Any] | None = None,
) -> list[PlannedRun]:
    """The training runs of an experiment: every variant with every seed.

    Args:
        recipe: a name in `notebooks/recipes`, as "world" or "paper/qwen2.5-1.5b", or a path to a
            YAML file of parameters of `notebooks/01_train.ipynb`.
        variants: for each label, the parameters that make it.
        common: parameters of all variants; a variant's own win over them, and they over the recipe.

    Raises:
        RunError: where there is no such recipe.
        ParameterError: for an unknown parameter or a wrong value, before anything runs.
    """
    if not variants or not seeds:
        raise ParameterError("An experiment needs at least one variant and one seed.")
    if len(set(seeds)) != len(seeds):
        raise ParameterError(f"The seeds {list(seeds)} have one of them twice.")
    base = {**read_recipe(recipe), **(common or {})}
    return [
        planned(label, {**base, **changes, "seed": seed})
        for label, changes in variants.items()
        for seed in seeds
    ]


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


def check_common(
    recipe: str, common: Mapping[str, Any], variants: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse a recipe, or parameters of all variants, that no training run takes or that say
    nothing, as every variant has its own.

    Raises:
        RunError: where there is no such recipe.
        ParameterError: naming `recipe` or `common`, the parameter inside it and what is wrong.
    """
    base = read_recipe(recipe)
    own = set.intersection(*map(set, variants.values())) if variants else set()
    for name in common:
        if name in {*NOT_CONTENT, "seed", *own}:
            raise ParameterError(
                f"common has {name!r} ({common[name]!r}), which every run of this study gets by "
                "itself: it would change nothing."
            )
    for what, values in ((f"recipe {recipe!r}", base), ("common", {**base, **common})):
        try:
            checked({**values, "name": "planned"}, TrainConfig)
        except ParameterError as error:
            raise ParameterError(f"{what}: {error}") from None


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


def content_hash(values: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of a hash of `values`, whatever their order."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def read_recipe(recipe: str) -> dict[str, Any]:
    """The parameters in a recipe's file; RunError where it is none."""
    inside = (_RECIPES / f"{recipe}.yaml").resolve()
    path = inside if inside.is_file() else project_path(recipe)
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        folder = _RECIPES
        known = sorted(
            found.relative_to(folder).with_suffix("").as_posix()
            for found in [*folder.glob("*.yaml"), *folder.glob("paper/*.yaml")]
        )
        raise RunError(
            f"There is no usable recipe {recipe!r} ({error}); known are {', '.join(known)}, or the "
            "path of a YAML file."
        ) from None
    if not isinstance(content, dict):
        raise RunError(f"The recipe {path} should map parameters to values; it holds a list.")
    return content


def _name(config: TrainConfig, values: Mapping[str, Any]) -> str:
    parts = [config.objective, f"beta{config.beta:g}"]
    parts += [
        f"{short}{values[name]:g}"
        for name, short in _READABLE.items()
        if name in values and name != "beta"
    ]
    words = "-".join([*parts, f"s{config.seed}", content_hash(values)])
    return re.sub(r"[^A-Za-z0-9._=+-]", "_", words)


def _without_defaults(objective: str, options: Mapping[str, Any]) -> dict[str, Any]:
    from plc_core.objective.build import OBJECTIVES
    from plc_core.objective.routing import Router

    maker = Router if objective == "plc" else OBJECTIVES[objective]
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
    return f"{job.get('name', notebook.stem)}-{content_hash(content)}"
