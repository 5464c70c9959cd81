"""The training runs that an experiment needs: a recipe, its variants and the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from plc_core.batch.planning import NOT_CONTENT, TRAIN_NOTEBOOK, PlannedRun, planned
from plc_core.engine.config import TrainConfig
from plc_core.parameters import ParameterError, checked, load_yaml
from plc_core.storage.files import RunError
from plc_core.storage.paths import project_path

_RECIPES = TRAIN_NOTEBOOK.parent / "recipes"


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
