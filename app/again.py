"""The command that makes a run again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st
import yaml

from plc_core.files import RunError, checkout, resource
from plc_core.parameters import ParameterError, notebook_values

TRAINING = "01_train.ipynb"
_WHERE = ("name", "runs_dir", "resume")


def command(root: Path, name: str, kind: str, config: Mapping[str, Any]) -> str | None:
    """The command that trains this run again as `<name>-again` below `root`; None for other kinds.

    It gives what differs from the notebook's defaults, and is run from the checkout. What a later
    notebook has no parameter for is left out and named in a comment.
    """
    if kind != "training" or not config:
        return None
    defaults = _defaults()
    differs = {
        key: value
        for key, value in config.items()
        if key not in _WHERE and key in defaults and value != defaults[key]
    }
    unknown = [key for key in config if defaults and key not in defaults]
    words = ["plc", "batch", "01_train"]
    if checkout() is not None:
        words = [".venv/bin/python", "-m", "plc_core.batch", f"notebooks/{TRAINING}"]
    for key, value in ({"name": f"{name}-again", "runs_dir": str(root)} | differs).items():
        words += ["-p", key, _yaml(value)]
    return shlex.join(words) + (f"  # without {', '.join(unknown)}" if unknown else "")


def _yaml(value: Any) -> str:
    """The value on one line, as `plc_core.batch` reads it back."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.strip().removesuffix("...").strip()


@st.cache_data(show_spinner=False)
def _defaults() -> dict[str, Any]:
    try:
        return notebook_values(resource("notebooks") / TRAINING, {})
    except (RunError, ParameterError):
        return {}
