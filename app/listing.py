"""What lies below the runs directory: training runs, and analyses with their reports."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from plc_core.runs.listing import RunSummary, list_runs
from plc_core.storage.files import RunError

ANALYSIS = "analysis"
"""The kind of a folder that holds a report only, and neither pairs nor steps."""

AUDIT = "audit"
"""The kind of a label audit: `plc_core.label_audit.folder.KIND`, whose import takes a second."""

WITHOUT_VISITS = frozenset({ANALYSIS, AUDIT, "sft", "reward-model"})
"""The kinds of folders whose runs visit no pairs: all but audits have a report at most."""


def listed(root: Path) -> list[RunSummary]:
    """Every folder below `root`, newest first; one whose files lead elsewhere is a problem."""
    return [_guarded(run) for run in list_runs(root)]


def training_runs(runs: Iterable[RunSummary]) -> list[RunSummary]:
    """All whose runs may have pairs: training runs, and whatever cannot be read."""
    return [run for run in runs if run.problem or run.kind not in WITHOUT_VISITS]


def audits(runs: Iterable[RunSummary]) -> list[RunSummary]:
    """The label audits."""
    return [run for run in runs if run.kind == AUDIT]


def default_run(root: Path) -> str | None:
    """The newest PLC-DPO run with visits, else the newest such run, else the newest run."""
    trained = [run for run in listed(root) if run.kind == "training" and not run.problem]
    visited = [run for run in trained if any((run.path / "visits").glob("*.parquet"))]
    routed = [run for run in visited if run.config.get("objective") == "plc"]
    best = routed or visited or trained
    return best[0].name if best else None


def refuse_links(path: Path, files: Iterable[Path]) -> None:
    """RunError where one of the `files` of the run folder `path` lies outside it."""
    base = path.resolve()
    for file in files:
        if not file.resolve().is_relative_to(base):
            raise RunError(f"{file} leads outside the run {path.name!r}; the run was not opened.")


def report_of(run: RunSummary) -> Path | None:
    """The run's report.html, where there is one that may be read."""
    path = run.path / "report.html"
    try:
        return path if path.is_file() else None
    except OSError:  # the folder is closed, which is the run's `problem`
        return None


def resumable_at(run: RunSummary) -> int | None:
    """The step of the last whole checkpoint of a run that failed or was killed, if it has one."""
    if run.kind != "training" or run.state not in ("failed", "killed"):
        return None
    # trainer_state.json is what transformers writes last.
    whole = (run.path / "checkpoints").glob("checkpoint-*/trainer_state.json")
    steps = [file.parent.name.rpartition("-")[2] for file in whole]
    return max((int(step) for step in steps if step.isdecimal()), default=None)


def _guarded(run: RunSummary) -> RunSummary:
    try:
        refuse_links(run.path, [run.path / "run.json", run.path / "status.json"])
    except RunError as error:
        return RunSummary(name=run.name, path=run.path, problem=str(error))
    return run
