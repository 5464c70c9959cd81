"""The run folder, the only contract between training, notebooks and the inspector; no torch.

run              one folder's record, pairs, metrics and visits (`visit_files`)
creation         names, new folders; `earlier` keeps the report that one replaces
status           its state and heartbeat; `alerts` of training that does nothing
listing          many runs
provenance       versions, commit, machine
records          which tables of answers and judgements are gone
decisions        what a person decided of pairs; `cleaned` exports them, with `own_columns`
"""

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
