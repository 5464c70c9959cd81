"""Notebooks in batches: execute one with parameters, or several jobs side by side.

    python -m plc_core.batch notebooks/01_train.ipynb -p name first -p objective dpo
    python -m plc_core.batch notebooks/01_train.ipynb -f my_run.yaml
    python -m plc_core.batch notebooks/01_train.ipynb --jobs jobs.yaml --workers 2

The executed notebook and an HTML report end up in the run's folder, also when a cell fails.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import papermill
import yaml
from papermill.exceptions import PapermillExecutionError
from tqdm.auto import tqdm

from plc_core.files import RunError, project_path
from plc_core.parameters import ParameterError
from plc_core.progress import BATCH_VARIABLE
from plc_core.report import write_report
from plc_core.runs import Run, open_run, resolve

_SECONDS_BETWEEN_LOOKS = 0.3


class NotebookError(Exception):
    """A notebook that did not run to its end; the message says which error and where to look."""


def run_notebook(notebook: Path | str, parameters: Mapping[str, Any]) -> Run:
    """Execute a notebook with parameters; the run it made.

    Raises:
        ParameterError: for a parameter the notebook does not have, before anything runs.
        RunError: where the run's name is taken and the notebook is not to resume it.
        NotebookError: where a cell failed or the kernel died; the notebook up to there and its
            report are in the run folder, if the run got one.
    """
    notebook = Path(notebook)
    known = _known_parameters(notebook)
    _refuse_unknown(parameters, known)
    values = known | dict(parameters)
    folder = resolve(project_path(str(values["runs_dir"])), str(values["name"]))
    if folder.exists() and not values.get("resume") and not _is_derived(folder):
        raise RunError(
            f"A run named {folder.name!r} exists in {folder.parent}; nothing was changed. Choose "
            "another name, or delete that folder yourself."
        )
    with tempfile.TemporaryDirectory() as scratch:
        executed = Path(scratch) / "notebook.ipynb"
        try:
            _execute(notebook, executed, {k: _plain(v) for k, v in parameters.items()})
        finally:
            if folder.is_dir() and executed.exists():
                shutil.copyfile(executed, folder / "notebook.ipynb")
                write_report(folder / "notebook.ipynb", folder / "report.html")
    return open_run(folder)


def _execute(notebook: Path, executed: Path, parameters: dict[str, Any]) -> None:
    # The kernel inherits the environment; bars in it would fill the notebook line by line.
    environment = {
        BATCH_VARIABLE: "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PLOTLY_RENDERER": "plotly_mimetype",
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
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
        raise NotebookError(
            f"The notebook's kernel died ({error}). If memory ran out, lower pairs_per_forward or "
            "max_length."
        ) from None
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def _known_parameters(notebook: Path) -> dict[str, Any]:
    if not notebook.is_file():
        raise RunError(f"There is no notebook at {notebook}.")
    # papermill warns where a notebook has no parameters cell; here that is an error.
    logging.getLogger("papermill").setLevel(logging.ERROR)
    found = papermill.inspect_notebook(str(notebook))
    if not found:
        raise RunError(
            f"{notebook} has no cell tagged 'parameters', so it cannot be run in a batch."
        )
    return {name: ast.literal_eval(str(p["default"])) for name, p in found.items()}


def _refuse_unknown(parameters: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name in parameters:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}."
            raise ParameterError(f"Unknown parameter {name!r}{hint}")


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") else value  # a number of numpy's


def _is_derived(folder: Path) -> bool:
    try:
        return open_run(folder).info.get("kind") == "analysis"
    except RunError:
        return False


def run_jobs(
    notebook: Path | str, jobs: Sequence[Mapping[str, Any]], workers: int = 1
) -> list[str]:
    """Execute a notebook once a job, `workers` at a time; the errors, one sentence a failed job.

    Every job runs in a process of its own, with its share of the processors. A job whose run is
    finished with the same parameters is not run again. A bar a job shows its phase.
    """
    known = _known_parameters(Path(notebook))
    for job in jobs:
        _refuse_unknown(job, known)
    waiting = [job for job in jobs if not _is_finished(known, job)]
    threads = max(1, (os.cpu_count() or 1) // workers)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    running: list[_Job] = []
    errors: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        while waiting or running:
            while waiting and len(running) < workers:
                folder = Path(scratch) / str(len(waiting))
                values = known | dict(waiting.pop(0))
                running.append(_Job(notebook, values, folder, environment))
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            for started in running[:]:
                if started.finished():
                    running.remove(started)
                    errors += started.errors()
    return errors


def _is_finished(known: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    values = dict(known) | dict(job)
    try:
        run = open_run(resolve(project_path(str(values["runs_dir"])), str(values["name"])))
        config = run.info.get("config", {})
        same = all(_equal(config.get(name), value) for name, value in values.items())
        return same and run.status["state"] == "done" and (run.path / "report.html").exists()
    except RunError:
        return False


def _equal(recorded: Any, given: Any) -> bool:
    # YAML reads 1e-5, without a dot, as text.
    if isinstance(recorded, float) and isinstance(given, str):
        with contextlib.suppress(ValueError):
            return recorded == float(given)
    return bool(recorded == given)


class _Job:
    """One notebook in a process of its own, with a bar that follows its status.json."""

    def __init__(
        self,
        notebook: Path | str,
        values: Mapping[str, Any],
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        folder.mkdir()
        self.run_folder = resolve(project_path(str(values["runs_dir"])), str(values["name"]))
        parameters = folder / "parameters.yaml"
        parameters.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
        self.log = folder / "log"
        command = [sys.executable, "-m", "plc_core.batch", str(notebook), "-f", str(parameters)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--quiet"], stdout=log, stderr=subprocess.STDOUT, env=dict(environment)
            )
        self.bar = tqdm(total=1, bar_format="{desc:44}{bar:24}{percentage:4.0f} % {elapsed}")
        self._show("starting", 0, 1)

    def finished(self) -> bool:
        """Whether the process has ended; brings the bar up to date."""
        if self.process.poll() is not None:
            self._show("failed" if self.process.returncode else "done", 1, 1)
            self.bar.close()
            return True
        with contextlib.suppress(RunError):
            status = open_run(self.run_folder).status
            if status.get("total"):
                self._show(str(status.get("phase")), status.get("done", 0), status["total"])
        return False

    def _show(self, phase: str, done: int, total: int) -> None:
        text = f"{self.run_folder.name}: {phase}"
        # Where nobody watches, as in a log file, a line a phase is enough.
        if sys.stderr.isatty() or text != self.bar.desc:
            self.bar.total, self.bar.n = total, done
            self.bar.set_description_str(text)

    def errors(self) -> list[str]:
        """The last line that a failed process said, behind the run's name."""
        if not self.process.returncode:
            return []
        said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return [f"{self.run_folder.name}: {said[-1] if said else 'ended without a word'}"]


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
    parser.add_argument("--quiet", action="store_true", help="say nothing unless it fails")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0, or 1 after one sentence a failure on standard error."""
    options = _arguments().parse_args(arguments)
    given = {name: yaml.safe_load(value) for name, value in options.p}
    try:
        if options.jobs:
            jobs = [job | given for job in read_yaml(options.jobs, list)]
            errors = run_jobs(options.notebook, jobs, options.workers)
        else:
            # One rule: the notebook's defaults, then the file, then -p.
            parameters = (read_yaml(options.f, dict) if options.f else {}) | given
            if options.quiet:
                run_notebook(options.notebook, parameters)
                errors = []
            else:
                errors = run_jobs(options.notebook, [parameters])
    except (RunError, ParameterError, NotebookError) as error:
        errors = [str(error)]
    for sentence in errors:
        sys.stderr.write(" ".join(sentence.split()) + "\n")
    return 1 if errors else 0


def read_yaml(path: Path, kind: type) -> Any:
    """The YAML file `path`, which must hold a `kind`; RunError otherwise."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, kind):
        raise RunError(f"{path} should hold a YAML {kind.__name__}, not {type(content).__name__}.")
    return content


if __name__ == "__main__":
    sys.exit(main())
