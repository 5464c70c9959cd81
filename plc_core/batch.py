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
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import papermill
import yaml
from papermill.exceptions import PapermillExecutionError

from plc_core.earlier import forget, put_back
from plc_core.experiments.grid import expand_grid
from plc_core.files import RunError, replacing
from plc_core.jobs import JobError, run_jobs
from plc_core.parameters import ParameterError, notebook_values, run_folder
from plc_core.report import write_report
from plc_core.runs import Run, modified, open_run, taken
from plc_core.status import BATCH_VARIABLE, INPUTS_VARIABLE

_INTERRUPTED = "interrupted by the user"


class NotebookError(Exception):
    """A notebook that did not run to its end; the message says which error and where to look."""


def run_notebook(notebook: Path | str, parameters: Mapping[str, Any]) -> Run:
    """Execute a notebook with parameters; the run it made.

    Raises:
        ParameterError: for a parameter the notebook does not have or take, before anything runs.
        RunError: where the run's name is taken and the notebook is not to resume it.
        NotebookError: where a cell failed or the kernel died; the notebook up to there and its
            report are in the run folder, if the run got one. A finished report of this name is
            put back where the new one has done nothing (see `plc_core.earlier`).
    """
    notebook = Path(notebook)
    values = notebook_values(notebook, parameters)
    folder = run_folder(values)
    token = secrets.token_hex(8)
    reason = None
    with tempfile.TemporaryDirectory() as scratch:
        executed = Path(scratch) / "notebook.ipynb"
        try:
            with _environment(token, Path(scratch) / "inputs"):
                _execute(notebook, executed, {name: values[name] for name in parameters}, folder)
        except NotebookError as error:
            reason = str(error)
            raise
        except KeyboardInterrupt:
            reason = _INTERRUPTED
            raise
        finally:
            # Only into a folder that this execution made or went on with: a refused one is
            # another's, and its notebook and report stay.
            if executed.exists() and _is_of(folder, token):
                # A full disk must not hide why the notebook failed.
                with contextlib.suppress(RunError) if reason else contextlib.nullcontext():
                    _keep(executed, folder, reason, Path(scratch) / "inputs")
    return open_run(folder)


def _execute(notebook: Path, executed: Path, parameters: dict[str, Any], folder: Path) -> None:
    try:
        papermill.execute_notebook(
            notebook,
            executed,
            parameters,
            kernel_name="python3",
            progress_bar=False,
            start_timeout=120,
        )
    except PapermillExecutionError as error:
        raise NotebookError(f"{error.ename}: {error.evalue}") from None
    except RuntimeError as error:  # nbclient's DeadKernelError
        advice = "If memory ran out, lower pairs_per_forward or max_length."
        if any(folder.glob("checkpoints/checkpoint-*")):
            advice += " The run can go on from its last checkpoint: set resume to true."
        raise NotebookError(f"The notebook's kernel died ({error}). {advice}") from None


@contextlib.contextmanager
def _environment(token: str, inputs: Path) -> Iterator[None]:
    # The kernel inherits the environment; bars in it would fill the notebook line by line.
    wanted = {
        BATCH_VARIABLE: token,
        INPUTS_VARIABLE: str(inputs),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PLOTLY_RENDERER": "plotly_mimetype",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def _is_of(folder: Path, token: str) -> bool:
    try:
        return open_run(folder).status.get("by") == token
    except RunError:
        return False


def _keep(executed: Path, folder: Path, reason: str | None, inputs: Path) -> None:
    if reason and put_back(folder):
        return
    with replacing(folder / "notebook.ipynb") as copy:
        shutil.copyfile(executed, copy)
    write_report(folder / "notebook.ipynb", folder / "report.html")
    run = open_run(folder)
    if run.info.get("kind") == "analysis":
        lines = inputs.read_text(encoding="utf-8").splitlines() if inputs.exists() else []
        opened = {Path(line) for line in lines} - {folder.resolve()}
        run.update_info(inputs={str(path): modified(path) for path in sorted(opened)})
        state = "killed" if reason == _INTERRUPTED else "failed" if reason else "done"
        run.set_status(state=state, reason=reason)
        if not reason:
            forget(folder)
    elif reason and run.status.get("state") in ("queued", "killed"):
        run.set_status(state="killed", reason=reason)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m plc_core.batch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("notebook", type=Path)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0, or 1 after a sentence for each failure on standard error."""
    options = _arguments().parse_args(arguments)
    # Asked to stop, as by a scheduler, it stops its kernels and jobs as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.attached:
        threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        errors = _run(options)
    except KeyboardInterrupt:
        errors = [
            "Interrupted. The same call keeps what is finished; a training run goes on from its "
            "last checkpoint with resume set to true."
        ]
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
    os.kill(os.getpid(), signal.SIGTERM)


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
    if (folder / "visits").exists() and not values.get("resume"):
        raise RunError(taken(folder))
    return run_jobs(options.notebook, [parameters])


def _run_all(options: argparse.Namespace, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    if not options.ray:
        if options.gpus_per_job:
            raise JobError("--gpus-per-job asks a Ray cluster for GPUs: give --ray ADDRESS too.")
        return run_jobs(options.notebook, jobs, options.workers)
    from plc_core.cluster import ray_starter  # an extra

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


def read_yaml(path: Path, kind: type | tuple[type, ...]) -> Any:
    """The YAML file `path`, which must hold a `kind`; RunError otherwise."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise RunError(f"{path} is no YAML: {error}") from None
    if not isinstance(content, kind) or not content:
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(k.__name__ for k in kinds)
        raise RunError(f"{path} should hold a YAML {names}, and not an empty one.")
    return content


if __name__ == "__main__":
    sys.exit(main())
