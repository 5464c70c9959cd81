"""Which runs a question needs, and how they come about: trained once, shared by what they are."""

from plc_core.experiments.planning import PlannedRun, plan_runs, ready_runs

__all__ = ["PlannedRun", "plan_runs", "ready_runs"]
