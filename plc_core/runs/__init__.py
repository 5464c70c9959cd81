"""The run folder: the only contract between training, notebooks and the inspector."""

from plc_core.runs.creation import UNSTARTED, check_root, create_run, resolve, taken
from plc_core.runs.run import (
    LENGTH_COLUMNS,
    PAIRS_A_GROUP,
    SCHEMA,
    TEXT_COLUMNS,
    Run,
    modified,
    open_run,
)

__all__ = [
    "LENGTH_COLUMNS",
    "PAIRS_A_GROUP",
    "SCHEMA",
    "TEXT_COLUMNS",
    "UNSTARTED",
    "Run",
    "check_root",
    "create_run",
    "modified",
    "open_run",
    "resolve",
    "taken",
]
