"""A grid of parameters, written out as jobs with a name each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plc_core.batch.planning import NOT_CONTENT, TRAIN_NOTEBOOK, content_hash, planned
from plc_core.parameters import ParameterError, notebook_values


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
            job["name"] = _name(notebook, job, values, defaults)
            jobs[job["name"]] = job  # the same content twice is one job
    return list(jobs.values())


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


def _name(
    notebook: Path, job: Mapping[str, Any], values: Mapping[str, Any], defaults: Mapping[str, Any]
) -> str:
    if "name" not in job and notebook.resolve() == TRAIN_NOTEBOOK.resolve():
        return planned("grid", values).name
    content = {
        k: v for k, v in values.items() if k not in NOT_CONTENT and v != defaults.get(k, None)
    }
    return f"{job.get('name', notebook.stem)}-{content_hash(content)}"
