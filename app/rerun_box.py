"""The command that makes a run again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from plc_core.parameters import ParameterError, defaults_beside, rerun_command
from plc_core.storage.files import RunError
from plc_core.storage.paths import resource

TRAINING = "01_train.ipynb"


def command(root: Path, name: str, kind: str, config: Mapping[str, Any]) -> str | None:
    """The command that trains this run again as `<name>-again` below `root`; None for other kinds.

    See `rerun_command`.
    """
    if kind != "training" or not config:
        return None
    return rerun_command(config, f"{name}-again", root, _defaults(config))


def _defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    return _defaults_of({name: config[name] for name in ("data", "model") if name in config})


@st.cache_data(show_spinner=False)
def _defaults_of(given: dict[str, Any]) -> dict[str, Any]:
    try:
        return defaults_beside(resource("notebooks") / TRAINING, given)
    except (RunError, ParameterError):
        return {}
