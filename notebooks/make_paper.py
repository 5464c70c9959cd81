"""`make paper`: every notebook of the paper's tables and figures, once, on the embedded world."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from plc_core.batch.job_progress import clock
from plc_core.batch.jobs import JobError, run_jobs
from plc_core.batch.planning import TRAIN_NOTEBOOK
from plc_core.environment import plain_streams
from plc_core.interrupts import exit_status, stopping
from plc_core.parameters import ParameterError, notebook_values, run_folder
from plc_core.storage.files import RunError

_NUMBERS = {f"{n:02d}" for n in (*range(2, 11), 12, 13, 14)}


def paper_notebooks(folder: Path = TRAIN_NOTEBOOK.parent) -> list[Path]:
    """The notebooks of the paper's tables and figures, 02 to 10 and 12 to 14, in order."""
    found = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    return [path for path in found if path.name[:2] in _NUMBERS]


def main() -> int:
    """Execute the notebooks; 0, 1 where one failed, or 130 or 143 after a signal.

    A second call goes on where it stopped.
    """
    plain_streams()
    started = time.monotonic()
    notebooks = paper_notebooks()
    rows: list[tuple[str, str, str]] = []
    failed: list[str] = []
    status = 0
    try:
        with stopping():
            for number, notebook in enumerate(notebooks, start=1):
                begun = time.monotonic()
                _say(f"{number}/{len(notebooks)}  {notebook.stem}", started)
                # One after the other: each trains the runs that it lacks two at a time.
                try:
                    report = run_folder(notebook_values(notebook, {})) / "report.html"
                    errors = run_jobs(notebook, [{}])
                except (RunError, ParameterError, JobError) as error:
                    errors = [f"{notebook.stem}: {error}"]
                failed += errors
                where = "failed" if errors else str(report)
                rows.append((notebook.stem, clock(time.monotonic() - begun), where))
    except KeyboardInterrupt:
        failed.append("Interrupted: `make paper` goes on where it was stopped.")
        status = exit_status()
    _say("all", started)
    lines = [f"{name:28}{took:>8}  {where}" for name, took, where in rows]
    sys.stdout.write("\n".join(lines) + "\n")
    for sentence in failed:
        sys.stderr.write(re.sub(r"\s+", " ", sentence) + "\n")
    return status or (1 if failed else 0)


def _say(text: str, started: float) -> None:
    sys.stderr.write(f"{text}, after {clock(time.monotonic() - started)}\n")


if __name__ == "__main__":
    sys.exit(main())
