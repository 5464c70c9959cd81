"""Notebooks in batches: execute one with parameters, or several jobs side by side.

    python -m plc_core.batch notebooks/01_train.ipynb -p name first -p objective dpo
    python -m plc_core.batch notebooks/01_train.ipynb -f my_run.yaml
    python -m plc_core.batch notebooks/01_train.ipynb --jobs jobs.yaml --workers 2
    python -m plc_core.batch notebooks/01_train.ipynb --grid grid.yaml --workers 2
    python -m plc_core.batch notebooks/01_train.ipynb --grid grid.yaml --ray auto --gpus-per-job 1

The executed notebook and an HTML report end up in the run's folder, also when a cell fails.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from plc_core.batch.jobs import JobError, run_jobs
from plc_core.batch.notebook import NotebookError, run_notebook
from plc_core.batch.planning import expand_grid
from plc_core.environment import plain_streams
from plc_core.interrupts import exit_status, stopping
from plc_core.parameters import ParameterError, notebook_values, read_yaml, run_folder
from plc_core.runs import taken
from plc_core.storage.files import RunError
from plc_core.storage.paths import resource

_parent_gone = threading.Event()


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m plc_core.batch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "notebook", type=_notebook, help="a path, or the name of one of the package's, as 01_train"
    )
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    parser.add_argument("-f", type=Path, metavar="FILE", help="YAML file of parameters")
    parser.add_argument("--jobs", type=Path, metavar="FILE", help="YAML list of parameter sets")
    parser.add_argument("--grid", type=Path, metavar="FILE", help="YAML of parameters; lists swept")
    parser.add_argument("--ray", metavar="ADDRESS", help="run the jobs on this Ray cluster")
    parser.add_argument("--gpus-per-job", type=float, default=0, help="of the Ray cluster")
    parser.add_argument("--workers", type=int, default=1, help="jobs at a time")
    parser.add_argument("--quiet", action="store_true", help="no bar")
    parser.add_argument("--attached", action="store_true", help=argparse.SUPPRESS)
    return parser


def _notebook(text: str) -> Path:
    """A notebook's path; of a name without one, the package's notebook of that name."""
    path = Path(text)
    own = resource("notebooks") / path.with_suffix(".ipynb").name
    named = not path.exists() and path.parent.name in ("", "notebooks")
    return own if named and own.exists() else path


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0, or 1 after a sentence for each failure on standard error.

    Stopped by Ctrl-C it is 130, and by SIGTERM, as from a scheduler, 143.
    """
    plain_streams()
    options = _arguments().parse_args(arguments)
    try:
        with stopping(_reason):
            if options.attached:
                threading.Thread(target=_stop_with_parent, daemon=True).start()
            errors = _run(options)
    except KeyboardInterrupt:
        sys.stderr.write(
            "Interrupted: the same call keeps what is finished, and a training run goes on from "
            "its last checkpoint with resume set to true.\n"
        )
        return exit_status()
    except (RunError, ParameterError, NotebookError, JobError) as error:
        errors = [str(error)]
    for sentence in errors:
        sys.stderr.write(" ".join(sentence.split()) + "\n")
    return 1 if errors else 0


def _stop_with_parent() -> None:
    # Ends when the process at the other end of the pipe has ended. Not by sys.stdin, whose lock the
    # interpreter would wait for at exit, and then abort.
    while os.read(0, 4096):
        pass
    _parent_gone.set()
    os.kill(os.getpid(), signal.SIGTERM)


def _reason(number: int) -> str:
    if _parent_gone.is_set():
        return "the batch that ran it is gone (killed, out of memory, or power)"
    return f"stopped from outside ({signal.Signals(number).name})"


def _run(options: argparse.Namespace) -> list[str]:
    given = {name: _value(name, text) for name, text in options.p}
    if options.jobs:
        jobs = [_mapping(options.jobs, job) | given for job in read_yaml(options.jobs, list)]
        return _run_all(options, jobs)
    if options.grid:
        grid = read_yaml(options.grid, (dict, list))
        parts = grid if isinstance(grid, list) else [grid]
        expanded = [_mapping(options.grid, part) | given for part in parts]
        return _run_all(options, expand_grid(options.notebook, expanded))
    # One rule: the notebook's defaults, then the file, then -p.
    parameters = (_mapping(options.f, read_yaml(options.f, dict)) if options.f else {}) | given
    if options.quiet:
        run_notebook(options.notebook, parameters)
        return []
    values = notebook_values(options.notebook, parameters)
    folder = run_folder(values)
    if any(folder.glob("visits/*")) and not values.get("resume"):
        raise RunError(taken(folder))
    return run_jobs(options.notebook, [parameters])


def _run_all(options: argparse.Namespace, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    if not options.ray:
        if options.gpus_per_job:
            raise JobError("--gpus-per-job asks a Ray cluster for GPUs: give --ray ADDRESS too.")
        return run_jobs(options.notebook, jobs, options.workers)
    from plc_core.batch.cluster import ray_starter  # an extra

    # The cluster itself knows how many fit.
    with ray_starter(options.ray, options.gpus_per_job) as start:
        return run_jobs(options.notebook, jobs, max(1, len(jobs)), start)


def _value(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ParameterError(f"The value {text!r} of -p {name} is no YAML; quote it.") from None


def _mapping(path: Path, content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ParameterError(
            f"{path} should map names of parameters to values; it has {content!r}."
        )
    return content


if __name__ == "__main__":
    sys.exit(main())
