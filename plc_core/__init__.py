"""PLC-DPO: train on noisy preference pairs, and see where every pair was routed and why.

The public face. Names are loaded when they are first used, so that the app, which needs no
model, does not wait for torch.
"""

import sys
from importlib import import_module
from typing import Any

from plc_core.interrupts import leave_at_once

# What follows may take seconds: of `plc`, and of `python -m plc_core.…`, whose package is imported
# before its module and before the command has a name.
if sys.argv and sys.argv[0].rpartition("/")[2] in ("plc", "-m"):
    leave_at_once()

_HOMES = {
    "PairLogps": "plc_core.objective",
    "build_objective": "plc_core.objective",
    "RECIPES": "plc_core.objective",
    "load_pairs": "plc_core.loading",
    "flip_labels": "plc_core.data",
    "TrainConfig": "plc_core.engine.config",
    "train": "plc_core.engine.pipeline",
    "evaluate": "plc_core.evaluation.summary",
    "summary_table": "plc_core.evaluation.summary",
    "notebook_parameters": "plc_core.parameters",
    "run_notebook": "plc_core.batch",
    "audit": "plc_core.label_audit.auditing",
    "open_run": "plc_core.runs",
    "list_runs": "plc_core.runs.listing",
    "RunError": "plc_core.storage.files",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'plc_core' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
