"""`make demo`: three objectives on the same corrupted pairs, a report, and one short table."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence

import pandas as pd

from plc_core.batch.jobs import JobError, run_jobs
from plc_core.environment import plain_streams
from plc_core.evaluation.summary import summary_table, verdict
from plc_core.interrupts import exit_status, stopping
from plc_core.parameters import ParameterError, read_yaml
from plc_core.runs import open_run
from plc_core.storage.files import RunError
from plc_core.storage.paths import project_path, resource

_WORKERS = 3
"""All three runs at a time: on two processors none of them waits for an odd one at the end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0, 1 after a sentence for each failed run, or 130 or 143 after a signal."""
    plain_streams()
    parser = argparse.ArgumentParser(prog="plc demo", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="train anew what is there already")
    given = parser.parse_args(arguments)
    notebooks = resource("notebooks")
    started = time.monotonic()
    jobs = read_yaml(notebooks / "recipes" / "demo.yaml", list)
    say = sys.stdout.write
    if given.fresh:
        for name in (*(job["name"] for job in jobs), "demo-report"):
            shutil.rmtree(project_path("runs") / name, ignore_errors=True)
    say(f"{len(jobs)} policies, trained on the same pairs with reversed labels.\n")
    try:
        with stopping():
            errors = run_jobs(notebooks / "01_train.ipynb", jobs, _WORKERS)
            errors = errors or run_jobs(notebooks / "demo.ipynb", [{"name": "demo-report"}])
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted: the same call goes on where it was stopped.\n")
        return exit_status()
    except (RunError, ParameterError, JobError) as error:
        errors = [str(error)]
    if errors:
        sys.stderr.write("\n".join(errors) + "\n")
        return 1
    folder = project_path("runs")
    dpo, plc, control = runs = [open_run(folder / job["name"]) for job in jobs]
    with pd.option_context("display.width", 200, "display.max_columns", None):
        say(f"\n{summary_table(runs, dpo, control)}\n")
    say(
        f"\n{verdict(plc, control)}\n"
        "Means with 95 % intervals over prompts (AUROC: over pairs). q is logged for every "
        "objective; under DPO it does not touch the loss.\n"
        f"Took {time.monotonic() - started:.0f} s. `plc demo --fresh` trains anew.\n\n"
        f"Report:    {folder / 'demo-report' / 'report.html'}\n"
        "Inspector: make app, or plc app\n"
        "Notebooks: make lab, or plc lab\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
