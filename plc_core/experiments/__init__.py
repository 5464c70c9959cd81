"""Experiments: runs that are planned by content, shared between notebooks, and made once."""

from plc_core.experiments.planning import PlannedRun, plan_runs
from plc_core.experiments.ready import ready_runs

__all__ = ["PlannedRun", "plan_runs", "ready_runs"]
