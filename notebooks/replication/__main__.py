"""Run a slice of the study for a given time, go on later, and see how far it is.

python -m notebooks.replication run notebooks/recipes/study/smollm2.yaml --slice main --minutes 9
python -m notebooks.replication status notebooks/recipes/study/smollm2.yaml
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from notebooks.replication.plan import (
    SLICES,
    Job,
    ReplicationConfig,
    jobs_of,
    read_study,
    seed_by_seed,
)
from notebooks.replication.results import Results
from plc_core.data import DataError
from plc_core.environment import plain_streams
from plc_core.parameters import ParameterError
from plc_core.storage.files import RunError
from plc_core.storage.paths import project_path

_SAFETY = 20.0


def main(arguments: list[str] | None = None) -> int:
    """0, or 1 after a sentence for each job that failed."""
    plain_streams()
    parser = argparse.ArgumentParser(prog="python -m notebooks.replication", description=__doc__)
    parser.add_argument("what", choices=("run", "status"))
    parser.add_argument("study", help="a YAML file of notebooks.replication.plan.ReplicationConfig")
    parser.add_argument("--slice", action="append", choices=SLICES, help="default: all")
    parser.add_argument("--results", help="folder of the CSV files; default data/results/NAME")
    parser.add_argument("--visits", help="folder for the visits as Parquet; default none")
    parser.add_argument("--minutes", type=float, default=60.0, help="of this call")
    parser.add_argument("--workers", type=int, default=1, help="processes, over all GPUs")
    parser.add_argument("--commit", help="of this code, where it is no checkout of git")
    parser.add_argument("--jobs", type=int, help="at most, of each slice")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for noisy in ("httpx", "transformers", "datasets", "accelerate"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        study = read_study(given.study)
        folder = given.results or f"data/results/{study.name}"
        results = Results(project_path(folder))
        slices = given.slice or list(SLICES)
        wanted = {name: list(jobs_of(study, name))[: given.jobs] for name in slices}
        if given.what == "status":
            results.agree_with(study)
            return _status(wanted, results)
        with results.alone():
            results.agree_with(study, keep=True)
            return _run(study, wanted, results, given)
    except (RunError, DataError, ParameterError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted. The same call keeps what is finished and does the rest.\n")
        return 1


def _run(
    study: ReplicationConfig,
    wanted: dict[str, list[Job]],
    results: Results,
    given: argparse.Namespace,
) -> int:
    from notebooks.replication.splits import prepare
    from notebooks.replication.workers import run_study_jobs

    end = time.monotonic() + 60 * given.minutes
    material = prepare(study)
    logging.getLogger(__name__).info("%s", material.counts)
    errors: list[str] = []
    later = seed_by_seed([jobs for name, jobs in wanted.items() if name != "choice"])
    for jobs in (wanted.get("choice", []), later):
        choice = study.choice
        if jobs is later and jobs and choice is None:
            choice = results.freeze(list(jobs_of(study, "choice")))
        left = end - time.monotonic() - _SAFETY
        if left > 0 and jobs:
            errors += run_study_jobs(
                study, material, jobs, choice, results, seconds=left, workers=given.workers,
                visits=Path(given.visits) if given.visits else None, commit=given.commit,
            )  # fmt: skip
    sys.stderr.write("".join(f"{error}\n" for error in errors))
    _status(wanted, results)
    return 1 if errors else 0


def _status(wanted: dict[str, list[Job]], results: Results) -> int:
    done = results.finished()
    for name, jobs in wanted.items():
        here = results.jobs[(results.jobs["slice"] == name) & (results.jobs["state"] == "done")]
        seconds = here["seconds"].astype(float)
        took = f", {seconds.median():.1f} s a job (median)" if len(seconds) else ""
        sys.stdout.write(f"{name}: {sum(j.name in done for j in jobs)} of {len(jobs)} jobs{took}\n")
    if (choice := results.choice()) is not None:
        sys.stdout.write(f"learning_rate {choice.learning_rate:g}, beta {choice.beta:g}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
