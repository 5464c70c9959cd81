"""The command that makes a run again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st
import yaml

from plc_core.files import RunError
from plc_core.parameters import ParameterError, notebook_values

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
TRAINING = "01_train.ipynb"
_WHERE = ("name", "runs_dir", "resume")


def command(name: str, kind: str, config: Mapping[str, Any]) -> str | None:
    """The papermill command that trains this run again as `<name>-again`; None for other kinds.

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
    values = yaml.safe_dump(
        {"name": f"{name}-again", **differs},
        default_flow_style=True,
        width=10**6,
        allow_unicode=True,
        sort_keys=False,
    ).strip()
    said = (
        f".venv/bin/papermill notebooks/{TRAINING} {shlex.quote(name + '-again.ipynb')} "
        f"-k python3 -y {shlex.quote(values)}"
    )
    return said + (f"  # without {', '.join(unknown)}" if unknown else "")


@st.cache_data(show_spinner=False)
def _defaults() -> dict[str, Any]:
    try:
        return notebook_values(NOTEBOOKS / TRAINING, {})
    except (RunError, ParameterError):
        return {}
