"""Reads of run folders: below the runs directory only, cached until a file changes."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import streamlit as st
from listing import WITHOUT_PAIRS, refuse_links
from marking import plain

from plc_core.analysis import audit
from plc_core.runs import Run, RunError, open_run, resolve

Stamp: TypeAlias = tuple[tuple[str, int, int], ...]

VISIT_NUMBERS = ("margin", "z", "q_clean", "q_flip", "q_tie", "confidence", "weight")


def runs_root() -> Path:
    """The runs directory: --runs, else PLC_RUNS, else `runs` in the working directory."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--runs", default=os.environ.get("PLC_RUNS", "runs"))
    return Path(parser.parse_known_args(sys.argv[1:])[0].runs).absolute()


def open_below(root: Path, name: str) -> Run:
    """The run `name` below `root`; RunError for a broken one and for one that leads elsewhere."""
    path = resolve(root, name)
    refuse_links(path, _files(path))
    return open_run(path)


def open_training(root: Path, name: str) -> Run:
    """The training run `name` below `root`; RunError as `open_below`, and for an analysis."""
    run = open_below(root, name)
    kind = str(run.info.get("kind"))
    if kind in WITHOUT_PAIRS:
        what = "an analysis" if kind == "analysis" else f"a run of the kind {kind!r}"
        raise RunError(
            f"{name!r} is {what} and has no pairs of its own; its report is "
            f"{run.path / 'report.html'}."
        )
    return run


@contextlib.contextmanager
def shown_errors(name: str) -> Iterator[None]:
    """Show in a sentence what keeps the run `name` from being read; the page goes on."""
    try:
        yield
    except (RunError, ValueError, OSError) as error:
        st.warning(f"The run {plain(name)} cannot be shown here. {plain(str(error))}")
    except Exception as error:  # files of another's making may hold anything
        st.warning(
            f"The run {plain(name)} cannot be shown here: its files are not as a run writes them "
            f"({plain(type(error).__name__)}: {plain(str(error))})."
        )


def metrics(run: Run) -> pd.DataFrame:
    """The run's metrics, one row an optimizer step."""
    return _metrics(str(run.path), _stamp(run))


def joined(run: Run) -> pd.DataFrame:
    """One row a pair: scores and markers beside the last visit's numbers; no texts."""
    return _joined(str(run.path), _stamp(run))


def tables(run: Run) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Visits (numbers only) and pairs (no texts), as the audit takes them."""
    return _tables(str(run.path), _stamp(run))


def pair_visits(run: Run, pair_id: str) -> pd.DataFrame:
    """All visits of one pair."""
    return run.visits(pair_id=pair_id)


@st.cache_data(max_entries=16, show_spinner=False)
def _metrics(path: str, stamp: Stamp) -> pd.DataFrame:
    return open_run(path).metrics()


@st.cache_data(max_entries=4, show_spinner="Reading the pairs …")
def _joined(path: str, stamp: Stamp) -> pd.DataFrame:
    visits, pairs = _tables(path, stamp)
    return audit.join_last_visits(visits, pairs)


@st.cache_data(max_entries=4, show_spinner="Reading the pairs …")
def _tables(path: str, stamp: Stamp) -> tuple[pd.DataFrame, pd.DataFrame]:
    run = open_run(path)
    return run.visits(columns=["pair_id", "step", *VISIT_NUMBERS]), run.pairs()


def _files(path: Path) -> list[Path]:
    names = ("run.json", "status.json", "metrics.parquet", "pairs.parquet", "visits")
    return [path / name for name in names] + sorted((path / "visits").glob("*.parquet"))


def _stamp(run: Run) -> Stamp:
    """What changes when a file of the run does; it keys the caches."""
    found: list[tuple[str, int, int]] = []
    for file in _files(run.path):
        with contextlib.suppress(OSError):
            state: Any = file.stat()
            found.append((file.name, state.st_mtime_ns, state.st_size))
    return tuple(found)
