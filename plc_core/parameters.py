"""The parameters of a notebook: read back, checked, and refused by name where they are wrong."""

from __future__ import annotations

import ast
import difflib
import json
import logging
import shlex
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from plc_core.runs import resolve
from plc_core.storage.files import RunError
from plc_core.storage.paths import checkout, importable, project_path

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


def notebook_values(notebook: Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a notebook, its defaults changed by `parameters`, without running it.

    They are checked against the class that the notebook names in its metadata as `plc_config`
    ("module:Class"), so that nothing wrong is started.

    Raises:
        RunError: where `notebook` is none, or has no cell tagged `parameters`.
        ParameterError: for an unknown name or a wrong value.
    """
    import papermill  # not needed by the notebook that reads its own parameters

    # papermill warns where a notebook has no parameters cell; here that is an error.
    logging.getLogger("papermill").setLevel(logging.ERROR)
    try:
        found = papermill.inspect_notebook(str(notebook))
        metadata = json.loads(notebook.read_text(encoding="utf-8"))["metadata"]
    except FileNotFoundError:
        raise RunError(f"There is no notebook at {notebook}.") from None
    except Exception as error:  # papermill and nbformat raise whatever a broken file makes them
        raise RunError(f"{notebook} is no notebook: {error}") from None
    if not found:
        raise RunError(f"{notebook} has no cell tagged 'parameters'; it cannot be run in a batch.")
    values = {name: ast.literal_eval(str(p["default"])) for name, p in found.items()}
    for name in parameters:
        if name not in values:
            raise ParameterError(_unknown(name, values))
    values |= {name: _plain(value) for name, value in parameters.items()}
    if "plc_config" not in metadata:
        return values
    importable()
    module, _, model = metadata["plc_config"].partition(":")
    config: BaseModel = checked(values, getattr(import_module(module), model))
    return config.model_dump()


def defaults_beside(notebook: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """A notebook's defaults where its data and model are those of `config`.

    Some of a training run's follow these two, which are themselves as where nobody gave them.
    """
    given = {name: config[name] for name in ("data", "model") if name in config}
    defaults = notebook_values(notebook, {})
    return notebook_values(notebook, given) | {name: defaults[name] for name in given}


def run_folder(values: Mapping[str, Any]) -> Path:
    """The folder of the run that a notebook with these parameters makes."""
    return resolve(project_path(str(values["runs_dir"])), str(values["name"]))


def rerun_command(
    config: Mapping[str, Any], name: str, runs_dir: Path, defaults: Mapping[str, Any]
) -> str:
    """The command that trains with `config` as the run `name` in `runs_dir`.

    It gives what differs from the notebook's `defaults`. What they do not have, as parameters of
    another version, is left out and named in a comment.
    """
    where = {"name": name, "runs_dir": str(runs_dir)}
    differs = {
        key: value
        for key, value in config.items()
        if key not in (*where, "resume") and key in defaults and value != defaults[key]
    }
    unknown = [key for key in config if defaults and key not in defaults]
    words = ["plc", "batch", "01_train"]
    if checkout() is not None:
        words = [".venv/bin/python", "-m", "plc_core.batch", "notebooks/01_train.ipynb"]
    for key, value in (where | differs).items():
        words += ["-p", key, _on_one_line(value)]
    return shlex.join(words) + (f"  # without {', '.join(unknown)}" if unknown else "")


def _on_one_line(value: Any) -> str:
    """The value as `plc_core.batch` reads it back from -p."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.strip().removesuffix("...").strip()


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") else value  # a number of numpy's


def _plain_assignments(cell: str) -> list[str]:
    try:
        statements = ast.parse(cell).body
    except SyntaxError:  # a shell or magic line
        return []
    names = []
    for statement in statements:
        if not isinstance(statement, ast.Assign):
            return []
        # Arithmetic on literals is a value too; a call or another name is a user's own code.
        if any(isinstance(node, (ast.Call, ast.Name)) for node in ast.walk(statement.value)):
            return []
        names += [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return names


def _unknown(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}."
    return f"Unknown parameter {name!r}{hint}"


def _sentence(problem: Mapping[str, Any], known: Iterable[str]) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        return _unknown(name, known)
    if problem["type"] == "missing":
        return f"The parameter {name!r} is missing."
    message = str(problem["msg"]).removeprefix("Value error, ").rstrip(".")
    if not name:
        return message if message.endswith("?") else f"{message}."
    return f"The parameter {name!r} is {problem['input']!r}: {message[0].lower()}{message[1:]}."


class _Loader(yaml.SafeLoader):
    """As SafeLoader, which silently takes the last of several values under one name."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [name for name in names if names.count(name) > 1 and name != "<<"]:
            raise yaml.constructor.ConstructorError(
                None, None, f"the name {twice[0]!r} is there twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """What a YAML text holds; YAMLError where it is none, or has a name twice."""
    return yaml.load(text, _Loader)


def read_yaml(path: Path, kind: type | tuple[type, ...]) -> Any:
    """The YAML file `path`, which must hold a `kind`; RunError otherwise."""
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise RunError(f"{path} is no YAML: {error}") from None
    if not isinstance(content, kind) or not content:
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(k.__name__ for k in kinds)
        raise RunError(f"{path} should hold a YAML {names}, and not an empty one.")
    return content
