"""Notebooks in batches: execute one with parameters, or several jobs side by side.

    python -m plc_core.batch notebooks/01_train.ipynb -p name first -p objective dpo
    python -m plc_core.batch notebooks/01_train.ipynb -f my_run.yaml
    python -m plc_core.batch notebooks/01_train.ipynb --jobs jobs.yaml --workers 2

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import papermill
import yaml
from papermill.exceptions import PapermillExecutionError

from plc_core.files import RunError, replacing
from plc_core.jobs import JobError, run_jobs
from plc_core.parameters import ParameterError, notebook_values, run_folder
from plc_core.report import write_report
from plc_core.runs import Run, open_run, taken
from plc_core.status import BATCH_VARIABLE


class NotebookError(Exception):
    """A notebook that did not run to its end; the message says which error and where to look."""


def run_notebook(notebook: Path | str, parameters: Mapping[str, Any]) -> Run:
    """Execute a notebook with parameters; the run it made.

    Raises:
        ParameterError: for a parameter the notebook does not have or take, before anything runs.
        RunError: where the run's name is taken and the notebook is not to resume it.
        NotebookError: where a cell failed or the kernel died; the notebook up to there and its
            report are in the run folder, if the run got one.
    """
    notebook = Path(notebook)
    values = notebook_values(notebook, parameters)
    folder = run_folder(values)
    token = secrets.token_hex(8)
    reason = None
    with tempfile.TemporaryDirectory() as scratch:
        executed = Path(scratch) / "notebook.ipynb"
        try:
            with _environment(token):
                _execute(notebook, executed, {name: values[name] for name in parameters}, folder)
        except NotebookError as error:
            reason = str(error)
            raise
        finally:
            # Only into a folder that this execution made or went on with: a refused one is
            # another's, and its notebook and report stay.
            if executed.exists() and _is_of(folder, token):
                # A full disk must not hide why the notebook failed.
                with contextlib.suppress(RunError) if reason else contextlib.nullcontext():
                    _keep(executed, folder, reason)
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
def _environment(token: str) -> Iterator[None]:
    # The kernel inherits the environment; bars in it would fill the notebook line by line.
    wanted = {
        BATCH_VARIABLE: token,
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


def _keep(executed: Path, folder: Path, reason: str | None) -> None:
    with replacing(folder / "notebook.ipynb") as copy:
        shutil.copyfile(executed, copy)
    write_report(folder / "notebook.ipynb", folder / "report.html")
    run = open_run(folder)
    if run.info.get("kind") == "analysis":
        run.set_status(state="failed" if reason else "done", reason=reason)


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
    parser.add_argument("--workers", type=int, default=1, help="jobs at a time")
    parser.add_argument("--quiet", action="store_true", help="no bar")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0, or 1 after a sentence for each failure on standard error."""
    options = _arguments().parse_args(arguments)
    # Asked to stop, as by a scheduler, it stops its kernels and jobs as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        errors = _run(options)
    except KeyboardInterrupt:
        errors = ["Interrupted. What has a checkpoint can go on: set resume to true."]
    except (RunError, ParameterError, NotebookError, JobError) as error:
        errors = [str(error)]
    for sentence in errors:
        sys.stderr.write(" ".join(sentence.split()) + "\n")
    return 1 if errors else 0


def _run(options: argparse.Namespace) -> list[str]:
    given = {name: _value(name, text) for name, text in options.p}
    if options.jobs:
        jobs = [_mapping(options.jobs, job) | given for job in read_yaml(options.jobs, list)]
        return run_jobs(options.notebook, jobs, options.workers)
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


def read_yaml(path: Path, kind: type) -> Any:
    """The YAML file `path`, which must hold a `kind`; RunError otherwise."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise RunError(f"{path} is no YAML: {error}") from None
    if not isinstance(content, kind) or not content:
        raise RunError(f"{path} should hold a YAML {kind.__name__}, and not an empty one.")
    return content


if __name__ == "__main__":
    sys.exit(main())
