"""The run folder: the only contract between training, notebooks and the inspector."""

from plc_core.runs.run import (
    PAIRS_A_GROUP,
    SCHEMA,
    TEXT_COLUMNS,
    UNSTARTED,
    Run,
    check_root,
    create_run,
    modified,
    open_run,
    resolve,
    taken,
)

__all__ = [
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
