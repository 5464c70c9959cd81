"""One notebook, executed with parameters into its run folder, with a report."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plc_core.environment import environment
from plc_core.parameters import notebook_values, run_folder
from plc_core.progress import BATCH_RUN_VARIABLE, BATCH_VARIABLE
from plc_core.runs import Run, modified, open_run
from plc_core.runs.earlier import forget, put_back
from plc_core.runs.status import INPUTS_VARIABLE, INTERRUPTED
from plc_core.storage.files import RunError, replacing
from plc_core.storage.paths import importable


class NotebookError(Exception):
    """A notebook that did not run to its end; the message says which error and where to look."""

    state = "failed"


class KernelDiedError(NotebookError):
    """A notebook whose kernel died under it."""

    state = "killed"


def run_notebook(notebook: Path | str, parameters: Mapping[str, Any]) -> Run:
    """Execute a notebook with parameters; the run it made.

    Raises:
        ParameterError: for a parameter the notebook does not have or take, before anything runs.
        RunError: where the run's name is taken and the notebook is not to resume it.
        NotebookError: where a cell failed or the kernel died; the notebook up to there and its
            report are in the run folder, if the run got one. A finished report of this name is
            put back where the new one has done nothing (see `plc_core.runs.earlier`).
    """
    notebook = Path(notebook)
    values = notebook_values(notebook, parameters)
    folder = run_folder(values)
    token = secrets.token_hex(8)
    state, reason = "done", None
    with tempfile.TemporaryDirectory() as scratch:
        executed = Path(scratch) / "notebook.ipynb"
        try:
            with environment(_variables(token, folder, Path(scratch) / "inputs")):
                _execute(notebook, executed, {name: values[name] for name in parameters}, folder)
        except NotebookError as error:
            state, reason = error.state, str(error)
            raise
        except KeyboardInterrupt as stop:
            state, reason = "killed", str(stop) or INTERRUPTED
            raise
        finally:
            # Only into a folder that this execution made or went on with: a refused one is
            # another's, and its notebook and report stay.
            if executed.exists() and _is_of(folder, token):
                # A full disk must not hide why the notebook failed.
                with contextlib.suppress(RunError) if reason else contextlib.nullcontext():
                    _keep(executed, folder, state, reason, Path(scratch) / "inputs")
    return open_run(folder)


_STARTS = 3
_SECONDS_TO_START = 600
"""A busy machine takes its time; a kernel that died says so at once."""


def _execute(notebook: Path, executed: Path, parameters: dict[str, Any], folder: Path) -> None:
    # Here, as it takes seconds to import, which who only names a notebook's runs need not wait for.
    from papermill.exceptions import PapermillExecutionError

    for start in range(1, _STARTS + 1):
        try:
            _execute_once(notebook, executed, parameters)
            return
        except PapermillExecutionError as error:
            raise NotebookError(f"{error.ename}: {error.evalue}") from None
        except RuntimeError as error:  # nbclient's DeadKernelError
            # Two kernels that start at once may draw the same port: one of them dies, before it
            # has done anything.
            if start == _STARTS or _NEVER_BEGAN not in str(error):
                raise _died(error, folder) from None


_NEVER_BEGAN = "Kernel died before replying to kernel_info"


def _execute_once(notebook: Path, executed: Path, parameters: dict[str, Any]) -> None:
    import papermill

    papermill.execute_notebook(
        notebook,
        executed,
        parameters,
        kernel_name="python3",
        progress_bar=False,
        start_timeout=_SECONDS_TO_START,
    )


def _died(error: RuntimeError, folder: Path) -> KernelDiedError:
    advice = "If memory ran out, lower pairs_per_forward or max_length."
    if any(folder.glob("checkpoints/checkpoint-*")):
        advice += " The run can go on from its last checkpoint: set resume to true."
    return KernelDiedError(f"The notebook's kernel died ({error}). {advice}")


def _variables(token: str, folder: Path, inputs: Path) -> dict[str, str]:
    # The kernel inherits the environment; bars in it would fill the notebook line by line.
    return {
        BATCH_VARIABLE: token,
        BATCH_RUN_VARIABLE: str(folder.resolve()),
        INPUTS_VARIABLE: str(inputs),
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), importable()))),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PLOTLY_RENDERER": "plotly_mimetype",
    }


def _is_of(folder: Path, token: str) -> bool:
    try:
        return open_run(folder).status.get("by") == token
    except RunError:
        return False


def _keep(executed: Path, folder: Path, state: str, reason: str | None, inputs: Path) -> None:
    from plc_core.batch.report import write_report  # of papermill's libraries too

    if reason and put_back(folder, reason):
        return
    with replacing(folder / "notebook.ipynb") as copy:
        shutil.copyfile(executed, copy)
    write_report(folder / "notebook.ipynb", folder / "report.html")
    run = open_run(folder)
    if run.info.get("kind") == "analysis":
        lines = inputs.read_text(encoding="utf-8").splitlines() if inputs.exists() else []
        opened = {Path(line) for line in lines} - {folder.resolve()}
        run.update_info(inputs={str(path): modified(path) for path in sorted(opened)})
    # What failed in the run itself has said so better.
    if state != "failed" or run.status.get("state") != "failed":
        run.end(state, reason)
    if not reason:
        forget(folder)
