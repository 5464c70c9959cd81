"""Jobs of the study over processes: some a GPU, each with a model of its own, until time is up."""

from __future__ import annotations

import gc
import logging
import math
import multiprocessing
import os
import queue
import secrets
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import torch
from tqdm.auto import tqdm

from notebooks.replication.plan import Choice, Job, ReplicationConfig
from notebooks.replication.results import Results, job_row
from notebooks.replication.splits import Material
from plc_core.environment import environment
from plc_core.progress import BATCH_VARIABLE
from plc_core.storage.files import RunError, write_table

logger = logging.getLogger(__name__)

_SECONDS_TO_SAVE = 10.0
_VISITS_A_FILE = 50  # jobs


def run_study_jobs(
    study: ReplicationConfig,
    material: Material,
    jobs: Sequence[Job],
    choice: Choice | None,
    results: Results,
    *,
    seconds: float,
    workers: int,
    visits: Path | None = None,
    commit: str | None = None,
) -> list[str]:
    """Run what of `jobs` is not done, and keep each result as it comes; sentences of what failed.

    A worker takes no further job where the mean duration so far says that it would end too late;
    what still runs when `seconds` are over is given up and left for the next call.

    Args:
        seconds: of this call, from now.
        workers: processes, dealt over the visible GPUs in turn.
        visits: where the visits are kept as Parquet; None keeps none.
        commit: of the code, for the record where it is no checkout.
    """
    deadline = time.monotonic() + seconds
    done = results.finished()
    waiting = [job for job in jobs if job.name not in done]
    if not waiting:
        return []
    context = multiprocessing.get_context("spawn")
    todo: Any = context.Queue()
    come: Any = context.Queue()
    for job in waiting:
        todo.put(job)
    workers = min(workers, len(waiting))
    devices = max(1, torch.cuda.device_count())
    beside = math.ceil(workers / devices)  # on the fullest GPU
    scratch = Path(tempfile.mkdtemp(prefix="plc-study-"))
    given = (choice, todo, come, deadline)
    processes: list[Any] = []
    errors: list[str] = []
    kept: list[pd.DataFrame] = []
    bar = tqdm(total=len(waiting), desc="jobs", disable=not sys.stderr.isatty())
    try:
        for number in range(workers):
            place = scratch / str(number)
            # No daemon: those may not have the processes that load data.
            process = context.Process(
                target=_work,
                args=(study, material, results.folder, place, beside, number < devices, *given),
            )
            # A child loads torch, which looks for its GPU, before its first line runs.
            with environment(_variables(number, workers)):
                process.start()
            processes.append(process)
        while time.monotonic() < deadline + _SECONDS_TO_SAVE:
            # Asked first: what the last of them left may still be on its way.
            working = any(process.is_alive() for process in processes)
            try:
                kind, name, content = come.get(timeout=0.5)
            except queue.Empty:
                if not working:
                    break
                continue
            if kind == "done":
                content.job["commit"] = content.job["commit"] or commit
                results.add(content.job, content.measures, content.rewards)
                kept.append(content.visits)
                bar.update(1)
                logger.info("%s: done in %.0f s", name, content.job["seconds"])
                if visits is not None and len(kept) == _VISITS_A_FILE:
                    _keep(visits, kept)
                    kept = []
            elif kind == "failed":
                job, reason = content
                errors.append(f"{name}: {reason}")
                results.add(job_row(job, reason=reason))
            else:
                errors.append(f"{name}: {content}")
    finally:
        bar.close()
        dead = [p.exitcode for p in processes if p.exitcode]  # by themselves, not ended here
        for process in processes:
            process.terminate()
            process.join()
        for line in (todo, come):
            line.cancel_join_thread()
            line.close()
        shutil.rmtree(scratch, ignore_errors=True)
        if visits is not None and kept:
            _keep(visits, kept)
    if dead:
        errors.append(f"{len(dead)} worker processes ended by themselves (exit codes {dead}).")
    return errors


def _work(
    study: ReplicationConfig,
    material: Material,
    results: Path,
    scratch: Path,
    workers: int,
    stays: bool,
    choice: Choice | None,
    todo: Any,
    come: Any,
    deadline: float,
) -> None:
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    # A spawned process would spawn those that load data too, and they could not read pairs whose
    # files are mapped and already removed.
    multiprocessing.set_start_method("fork", force=True)
    try:
        from notebooks.replication.worker import Laboratory

        laboratory = Laboratory(study, material, results, scratch, workers)
    except Exception as error:
        come.put(("stopped", f"worker {scratch.name}", _said(error)))
        return
    take_jobs(laboratory, choice, todo, come, deadline, scratch, stays=stays)
    come.close()
    come.join_thread()


def take_jobs(
    laboratory: Any,
    choice: Choice | None,
    todo: Any,
    come: Any,
    deadline: float,
    scratch: Path,
    *,
    stays: bool,
) -> None:
    """Run one job of the queue `todo` after another, and put what comes of it into `come`.

    Where a GPU's memory is too small for all that share it, a worker puts its job back and ends, so
    that those left have more. One that `stays`, the first on its GPU, runs on, and a job that needs
    too much twice there fails.
    """
    durations: list[float] = []
    given_back: set[str] = set()
    while True:
        expected = 1.2 * max(durations[1:] or durations, default=0.0)
        if time.monotonic() + expected > deadline:
            break
        try:
            job = todo.get(timeout=0.2)
        except queue.Empty:
            break
        started = time.monotonic()
        try:
            outcome = laboratory.run(job, choice)
            come.put(("done", job.name, outcome))
        except torch.OutOfMemoryError as error:
            if stays and job.name in given_back:
                come.put(("failed", job.name, (job, _said(error))))
            else:
                given_back.add(job.name)
                todo.put(job)
                logger.info("%s: out of memory, tried again beside fewer", job.name)
                if not stays:
                    break
        except Exception as error:
            logger.debug("%s", traceback.format_exc())
            come.put(("failed", job.name, (job, _said(error))))
        gc.collect()  # a trainer and its callbacks hold each other, and the policy with them
        torch.cuda.empty_cache()  # of memory that the workers beside this one may need
        durations.append(time.monotonic() - started)
        shutil.rmtree(scratch, ignore_errors=True)


def _leave_with_parent() -> None:
    """End this process where the one that started it is gone, whatever it was killed with."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _variables(number: int, workers: int) -> dict[str, str]:
    """With them a process sees one GPU and uses its share of the processors."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    values = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",  # several share a GPU's memory
        BATCH_VARIABLE: "study",  # the bar of this call is the parent's
    }
    if count := torch.cuda.device_count():
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = seen.split(",") if seen else [str(i) for i in range(count)]
        values["CUDA_VISIBLE_DEVICES"] = names[number % len(names)]
    return values


def _said(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"


def _keep(folder: Path, kept: list[pd.DataFrame]) -> None:
    """Write the visits of some jobs as one file; numbers have eleven significant bits."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot hold visits: {error.strerror}.") from None
    table = pd.concat(kept, ignore_index=True)
    table = table.astype(dict.fromkeys(["job", "pair_id"], "category"))
    numbers = table.select_dtypes("float32")
    table[numbers.columns] = numbers.astype("float16").astype("float32")
    path = folder / f"visits-{secrets.token_hex(4)}.parquet"
    write_table(path, pa.Table.from_pandas(table, preserve_index=False))
