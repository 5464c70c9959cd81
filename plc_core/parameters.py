"""The parameters of a notebook: read back, checked, and refused by name where they are wrong."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Config = TypeVar("Config", bound=BaseModel)


class ParameterError(ValueError):
    """Parameters that cannot be meant; the message is a sentence for each."""


def notebook_parameters(namespace: Mapping[str, Any], model: type[Config]) -> Config:
    """The validated parameters of the notebook that is running.

    They are the names that were set to plain values in the cells executed so far: the cell tagged
    `parameters` and the one that a batch puts behind it.

    Args:
        namespace: the notebook's `globals()`.
        model: the parameters' types and defaults.

    Raises:
        ParameterError: for an unknown name (with the nearest known one) or a wrong value.
    """
    names = [name for cell in namespace.get("In", ()) for name in _plain_assignments(cell)]
    return checked({name: namespace[name] for name in names if name in namespace}, model)


def checked(values: Mapping[str, Any], model: type[Config]) -> Config:
    """`model` made of `values`; ParameterError with a sentence for each wrong one."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        sentences = [_sentence(problem, model.model_fields) for problem in error.errors()]
        raise ParameterError(" ".join(sentences)) from None


def _plain_assignments(cell: str) -> list[str]:
    try:
        statements = ast.parse(cell).body
    except SyntaxError:  # a shell or magic line
        return []
    names = []
    for statement in statements:
        if not isinstance(statement, ast.Assign):
            return []
        try:
            ast.literal_eval(statement.value)
        except ValueError:
            return []
        names += [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return names


def _sentence(problem: Mapping[str, Any], known: Iterable[str]) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}."
        return f"Unknown parameter {name!r}{hint}"
    if problem["type"] == "missing":
        return f"The parameter {name!r} is missing."
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not name:
        return f"{message}."
    return f"The parameter {name!r} is {problem['input']!r}: {message[0].lower()}{message[1:]}."
