"""Reads of run folders: below the runs directory only, and never a whole table in the session."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pandas as pd
import streamlit as st
from inspection.digest import Digest, digest, kept, newest, unread
from inspection.preparing import is_busy, prepare
from inspection.queries import Filter, columns, sample
from inspection.step_metrics import thinned
from listing import AUDIT, WITHOUT_VISITS, refuse_links
from marking import plain
from run_loading import wait_for

from plc_core.analysis.noise import P_FLIP_FROM
from plc_core.runs import LENGTH_COLUMNS, Run, open_run, resolve
from plc_core.storage.files import RunError, remedy

logger = logging.getLogger(__name__)

LIVE = ("queued", "running")

LIVE_SECONDS = 20.0
"""The visits of a run that goes on are read again after so long."""

AT_ONCE = 20_000_000
"""Bytes of visits that are read while a page waits: about a second's work."""

_SAME_SECONDS = 30.0
_read: dict[str, Any] = {}  # the digest that was read last

CURVE_POINTS = 1_000
"""Steps of a run that are drawn or compared; a longer run is thinned evenly."""

AUDITED = (
    *("source", "oracle_state", "flipped", "injected_tie"),
    *("score_chosen", "score_rejected", *LENGTH_COLUMNS, "last_step"),
    *("margin", "z", "q_clean", "q_flip", "q_tie", "weight"),
)


def runs_root() -> Path:
    """The runs directory: --runs, else PLC_RUNS, else `runs` in the working directory."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--runs", default=os.environ.get("PLC_RUNS", "runs"))
    return Path(parser.parse_known_args(sys.argv[1:])[0].runs).absolute()


def open_below(root: Path, name: str) -> Run:
    """The run `name` below `root`; RunError for a broken one and for one that leads elsewhere."""
    path = resolve(root, name)
    names = ["run.json", "status.json", "metrics.parquet", "pairs.parquet", "findings.parquet"]
    names += ["visits", "judgements", "generations", "scores", "decisions"]
    names += ["audit.parquet", "tables", "blind_check"]
    refuse_links(path, [path / name for name in names])
    return open_run(path)


def open_training(root: Path, name: str) -> Run:
    """The training run `name` below `root`; RunError as `open_below`, and for an analysis."""
    run = open_below(root, name)
    kind = str(run.info.get("kind"))
    if kind == AUDIT:
        raise RunError(
            f"{name!r} is a label audit, in which nothing was trained; the page Label audit shows "
            "it."
        )
    if kind in WITHOUT_VISITS:
        what = "an analysis" if kind == "analysis" else f"a run of the kind {kind!r}"
        raise RunError(
            f"{name!r} is {what} and has no pairs of its own; the page Runs has its report."
        )
    return run


@contextlib.contextmanager
def shown_errors(name: str) -> Iterator[None]:
    """Show in a sentence what keeps the run `name` from being read; the page goes on."""
    try:
        yield
    except RunError as error:
        st.warning(f"The run {plain(name)} cannot be shown here. {plain(str(error))}")
    except FileNotFoundError as error:
        said = f"{error.filename} is missing. {remedy(Path(str(error.filename)))}"
        st.warning(f"The run {plain(name)} cannot be shown here. {plain(said)}")
    except OSError as error:
        what = f"{error.filename} cannot be read" if error.filename else "A file cannot be read"
        why = f": {error.strerror}" if error.strerror else ""
        st.warning(f"The run {plain(name)} cannot be shown here. {plain(what + why)}.")
    except Exception as error:  # files of another's making may hold anything
        # Streamlit stops and reruns a script by exceptions of its own.
        if type(error).__module__.startswith("streamlit.runtime.scriptrunner"):
            raise
        if isinstance(error, ValueError) and _is_ours(error):
            st.warning(f"The run {plain(name)} cannot be shown here. {plain(str(error))}")
            return
        logger.exception("The run %r cannot be shown", name)
        st.warning(
            f"The run {plain(name)} cannot be shown here: its files are not as a run writes them. "
            "The log of the inspector says at which place."
        )


def _is_ours(error: ValueError) -> bool:
    """Whether this project raised it, whose errors are sentences; those of libraries are not."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("plc_core.")


def read_digest(run: Run) -> Digest:
    """The pairs of the run with what its visits say.

    Many visits are read once, in a process of their own; until then the page shows what is known
    without them, and goes no further. Of a run that goes on, the last state that was read is shown.
    """
    last = newest(run) if is_live(run) else None
    # A clock that went back makes what was read before it later than now.
    if last and 0 <= time.time() - last.folder.stat().st_mtime < LIVE_SECONDS:
        return last
    # Ten thousand files take a while to look at, and a person's clicks come close together.
    seen = _seen(run)
    known = seen is not None and seen == _read.get("seen")
    # Another inspector, which looks at other runs, may have forgotten this one's digest.
    known = known and _read["digest"].folder.is_dir()
    if known and time.monotonic() - _read["when"] < _SAME_SECONDS:
        return cast(Digest, _read["digest"])
    found = kept(run)
    if found is None and unread(run) <= AT_ONCE:
        found = digest(run)
    if found is None:
        task = prepare(run)
        if task.problem:
            raise RunError(task.problem)
        if last is not None:
            return last
        wait_for(run, task, metrics)
    _read.update(seen=seen, when=time.monotonic(), digest=found)
    return found


def read_ahead(run: Run) -> None:
    """Begin to read the visits of a large run before a page asks for them; one run at a time."""
    seen = _seen(run)
    if seen is None or seen in (_read.get("seen"), _read.get("ahead")) or is_busy():
        return
    _read["ahead"] = seen
    with contextlib.suppress(RunError, OSError):
        if kept(run) is None and unread(run) > AT_ONCE:
            prepare(run)


def _seen(run: Run) -> tuple[Any, ...] | None:
    """What changes when a file of pairs or visits is added, replaced or taken away."""
    try:
        files = [(run.path / name).stat() for name in ("pairs.parquet", "visits")]
    except OSError:
        return None
    return run.path, *((state.st_mtime_ns, state.st_ino) for state in files)


def is_live(run: Run) -> bool:
    """Whether the run goes on; a run without a readable status does not."""
    with contextlib.suppress(RunError):
        return run.status.get("state") in LIVE
    return False


def config_of(run: Run) -> dict[str, Any]:
    """The run's parameters; empty where run.json holds something else there."""
    config = run.info.get("config")
    return config if isinstance(config, dict) else {}


def is_shadow(run: Run) -> bool:
    """Whether the run's routing was logged beside its loss only, so that it reversed nothing.

    So it is under every objective but PLC-DPO, and under PLC-DPO that only takes weight away.
    """
    config = config_of(run)
    options = config.get("objective_options")
    corrects = not isinstance(options, dict) or options.get("correct", True) is not False
    return config.get("objective", "plc") != "plc" or not corrects


def metrics(run: Run) -> pd.DataFrame:
    """The run's metrics, one row an optimizer step, thinned evenly where there are very many.

    RunError as `Run.metrics_file`.
    """
    path = run.metrics_file()
    if path is None:
        return pd.DataFrame()
    state = path.stat()
    return _metrics(str(path), state.st_mtime_ns, state.st_size)


@st.cache_data(max_entries=32, show_spinner=False)
def _metrics(path: str, changed: int, size: int) -> pd.DataFrame:
    table = thinned(path, CURVE_POINTS)
    if "p_flip" in table and "step" in table:
        table["p_flip"] = table["p_flip"].where(table["step"] >= P_FLIP_FROM)
    return table


def audit_tables(
    found: Digest, names: bool = False, most: int | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Visits and pairs as the audit takes them, of each pair the last visit only.

    Every table of the audit rests on last visits, so its numbers are those of all visits. For a
    moment they take memory by the number of pairs: keep what is made of them, not them. Without
    `names` pairs are known by their place: of a million pairs that is ten times quicker, and
    only the slices of score gaps ask for the ids themselves. Of more than `most` pairs so many
    are drawn by chance.
    """
    wanted = [*(("pair_id",) if names else ("row",)), *AUDITED]
    table = columns(found, wanted) if most is None else sample(found, Filter(), wanted, most)
    if names:
        table = table.drop(columns="row", errors="ignore")
        # pandas joins its own strings several times slower than Python's.
        table["pair_id"] = table["pair_id"].astype(object)
    table = table.rename(columns={"row": "pair_id"})
    numbers = ["margin", "z", "q_clean", "q_flip", "q_tie", "weight"]
    visits = table.reindex(columns=["pair_id", "last_step", *numbers])
    visits = visits.rename(columns={"last_step": "step"})
    visits = visits[table["last_step"] >= 0].reset_index(drop=True)
    pairs = table.drop(columns=[name for name in ("last_step", *numbers) if name in table])
    return visits, pairs


def probes(run: Run) -> list[str]:
    """The probes that the run's policy was scored on, by name."""
    return sorted(path.stem for path in (run.path / "scores").glob("[!.]*.parquet"))


def probe_scores(run: Run, name: str) -> pd.DataFrame:
    """The zero-shot routing of a probe; RunError where its file is none, or leads elsewhere."""
    path = run.path / "scores" / f"{name}.parquet"
    refuse_links(run.path, [path])
    table = run.read_table(path).to_pandas()
    needed = ("calibration", "margin", "q_clean", "q_flip", "q_tie")
    if missing := [column for column in needed if column not in table]:
        raise RunError(f"{path} lacks the column(s) {', '.join(missing)}; the probe was left out.")
    return table
