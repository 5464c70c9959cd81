"""The list of runs: filter, table, what is going on now, and where the reports lie."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from elements import age, moment
from health import damage
from inspection.results import DECODINGS, RESULTS, results_of
from listing import ANALYSIS, AUDIT, audits, listed, report_of
from marking import plain
from reading import LIVE, open_below, runs_root
from selection import AUDIT_PAGE, choose_runs, select_rows, selected_rows
from spreadsheet import csv_text
from state import TEXT, TEXTS, kept

from plc_core.runs import open_run
from plc_core.runs.listing import RunSummary
from plc_core.storage.files import RunError

TALLEST_TABLE = 8
MOST_LINKS = 6
MOST_RESULTS = 100
"""Runs of which the list has results: files of each are read for them."""


def filtered(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """The runs that match the words and states of the two filters, which are drawn here."""
    left, right = st.columns([0.4, 0.6], vertical_alignment="top")
    words = left.text_input(
        "Filter", key=kept("filter", "", TEXT), placeholder="name, objective, recipe …"
    )
    states = sorted({_state(run) for run in runs})
    key = kept("states", [], TEXTS, states)
    picked = right.pills("State", states, selection_mode="multi", key=key)
    return [
        run
        for run in runs
        if (not picked or _state(run) in picked)
        and all(
            word in f"{run.name} {run.kind} {' '.join(map(str, run.config.values()))}".lower()
            for word in words.lower().split()
        )
    ]


def how_many(
    runs: Sequence[RunSummary],
    shown: Sequence[RunSummary],
    everything: Sequence[RunSummary],
    chosen: Sequence[str],
) -> None:
    """How many runs there are and are listed, and by name the chosen ones, wherever they stand."""
    are = f"{len(runs):,} run{'s' if len(runs) != 1 else ''}"
    said = are if len(shown) == len(runs) else f"{len(shown):,} of {are} match the filter"
    listed_ones, known = {run.name for run in shown}, {run.name for run in everything}
    names = []
    for name in chosen:
        where = "" if name in known else " (not in this directory)"
        if name in known and name not in listed_ones:
            where = " (not in this list)"
        names.append(f"**{plain(name)}**{where}")
    st.markdown(f"{said} · chosen: {', '.join(names) or 'none'}")


def _listing(runs: Sequence[RunSummary]) -> pd.DataFrame:
    table = pd.DataFrame(
        {
            "run": [run.name for run in runs],
            "state": [_state(run) for run in runs],
            "progress": [_percent(run) for run in runs],
            "objective": _texts(runs, "objective"),
            "β": _numbers(runs, "beta"),
            "recipe": _texts(runs, "recipe"),
            "model": _texts(runs, "model"),
            "flip rate": _numbers(runs, "flip_rate"),
            "seed": _numbers(runs, "seed"),
            "created": [moment(run.created) for run in runs],
        }
    )
    remarks = [
        run.problem or damage(run) or (n < MOST_RESULTS and unread_results(run)) or run.reason or ""
        for n, run in enumerate(runs)
    ]
    if any(remarks):
        table["remark"] = remarks
    return table


def _results(runs: Sequence[RunSummary]) -> pd.DataFrame:
    """What the first runs of the list came to; blank for the others, and where it is not known."""
    rows = [_result_of(run)[0] for run in runs[:MOST_RESULTS]]
    table = pd.DataFrame(rows, index=range(len(rows)), columns=list(RESULTS), dtype="float64")
    return table.reindex(range(len(runs))).dropna(axis="columns", how="all")


def unread_results(run: RunSummary) -> str | None:
    """Why the results of a run that has ended cannot be read, as a sentence; None where they can.

    While a run goes on, its answers may be newer than their scores.
    """
    return None if run.state in LIVE else _result_of(run)[1]


def _result_of(run: RunSummary) -> tuple[dict[str, float], str | None]:
    """The results of a training run whose record can be read, or why they cannot be read."""
    if run.problem is not None or run.kind != "training":
        return {}, None
    names = ("run.json", "metrics.parquet", "judgements", "generations")
    files = [run.path / name for name in names]
    stamps = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in files)
    found = _result(str(run.path), stamps)
    return _read(str(run.path)) if found[1] else found  # a file may have been mended in place


@st.cache_data(max_entries=5_000, show_spinner=False)
def _result(path: str, stamps: tuple[int, ...]) -> tuple[dict[str, float], str | None]:
    return _read(path)


def _read(path: str) -> tuple[dict[str, float], str | None]:
    """The results of the run in the folder `path`, or why they cannot be read."""
    try:
        return results_of(open_below(Path(path).parent, Path(path).name)), None
    except RunError as error:
        return {}, str(error)
    except (OSError, ValueError, KeyError):  # files of another's making may hold anything
        return {}, None


def runs_csv(runs: Sequence[RunSummary]) -> None:
    """One button: the listed runs with all their parameters as CSV."""

    def text() -> str:
        configs = pd.DataFrame([{str(k): v for k, v in run.config.items()} for run in runs])
        return csv_text(pd.concat([_listing(runs), configs.add_prefix("config.")], axis=1))

    st.download_button(
        "CSV of these runs", text, "runs.csv", key="runs_csv", on_click="ignore", width="stretch"
    )


def run_table(runs: Sequence[RunSummary], chosen: Sequence[str]) -> None:
    """A row a run; its check boxes are the selection."""
    names = [run.name for run in runs]
    table = _listing(runs)
    for place, (name, values) in enumerate(_results(runs).items(), start=3):
        table.insert(place, str(name), values)
    key = "runs_table"

    def selected() -> None:
        picked = [names[row] for row in selected_rows(key)]
        # Runs that the filter hides stay chosen, so that an overlay can grow by several searches.
        kept_ones = [name for name in chosen if name in picked or name not in names]
        choose_runs(kept_ones + [name for name in picked if name not in kept_ones])

    select_rows(key, [row for row, name in enumerate(names) if name in chosen])
    column = st.column_config.NumberColumn
    number = column(format="plain", width=60)
    text = st.column_config.TextColumn
    st.dataframe(
        table,
        key=key,
        hide_index=True,
        height="content" if len(runs) <= TALLEST_TABLE else 300,
        on_select=selected,
        selection_mode="multi-row",
        placeholder="",
        column_config={
            "run": text(width=170, pinned=True),
            "state": text(width=75),
            "progress": st.column_config.ProgressColumn(format="%d %%", max_value=100, width=95),
            "accuracy": column(format="%.3f", width=70, help="Pairs with m > 0, last tenth"),
            **{
                f"reward, {name}": column(
                    format="%.2f", width=115, help=f"Mean judged reward of {name} answers"
                )
                for name in DECODINGS
            },
            "KL": column(format="%.2f", width=55, help="To the reference, nats per response"),
            "objective": text(width=75),
            "β": number,
            "recipe": text(width=85),
            "model": text(width=100),
            "flip rate": number,
            "seed": number,
            "created": text(width=150),
            "remark": text(width="medium"),
        },
    )


@st.fragment(run_every=3)
def live() -> None:
    """Runs that are going on, refreshed alone; the page follows when one of them ends."""
    running = [run for run in listed(runs_root()) if run.state in LIVE]
    if st.session_state.get("live_runs", running) and not running:
        st.session_state["live_runs"] = []
        st.rerun()
    st.session_state["live_runs"] = [run.name for run in running]
    for run in running:
        status: dict[str, Any] = {}
        with contextlib.suppress(RunError):
            status = open_run(run.path).status
        left, right = st.columns([0.3, 0.7], vertical_alignment="center")
        left.text(run.name)
        share, doing = _doing(status)
        right.progress(share, text=f"{plain(doing)} · heartbeat {age(run.heartbeat)}")


def reports(runs: Sequence[RunSummary]) -> None:
    """Links to the label audits; the reports: first those of analyses and audits, then each
    training run's own.
    """
    with st.container(horizontal=True):
        for run in audits(runs)[:MOST_LINKS]:
            st.page_link(
                AUDIT_PAGE,
                label=f"Label audit: {plain(run.name)}",
                query_params={"audit": run.name},
            )
    found = [run for run in runs if run.kind in (ANALYSIS, AUDIT) or report_of(run)]
    if not found:
        return
    found.sort(key=lambda run: run.kind not in (ANALYSIS, AUDIT))
    with st.expander(f"Reports · {len(found)}"):
        names = [run.name for run in found]
        by_name = dict(zip(names, found, strict=True))
        key = kept("report", names[0], TEXT, names)
        left, right = st.columns([0.75, 0.25])
        run = by_name[
            left.selectbox(
                "Report",
                names,
                key=key,
                format_func=lambda name: f"{name} · {by_name[name].kind}",
                label_visibility="collapsed",
            )
        ]
        with right:
            report_button(run, "Download the report", "listed")


def report_button(run: RunSummary, label: str, key: str) -> None:
    """A button that hands a run's report to the browser, which opens it; where it lies, as help."""
    path = report_of(run)
    if path is None:
        st.caption("This report is not written yet.")
        return
    st.download_button(
        label,
        path.read_bytes,
        f"{run.name}.html",
        "text/html",
        key=f"report_{key}_{run.name}",
        on_click="ignore",
        icon=":material/description:",
        help=plain(str(path)),
    )


def _state(run: RunSummary) -> str:
    if run.problem:
        return "unreadable"
    return "damaged" if damage(run) else run.state


def _percent(run: RunSummary) -> int | None:
    if run.step is None or not run.total_steps:
        return None
    return int(100 * min(run.step / run.total_steps, 1.0))


def _texts(runs: Sequence[RunSummary], name: str) -> list[str]:
    return [str(run.config.get(name) or "") for run in runs]


def _numbers(runs: Sequence[RunSummary], name: str) -> pd.Series:
    values = [run.config.get(name) for run in runs]
    small = [v if isinstance(v, (int, float)) and abs(v) < 1e300 else None for v in values]
    return pd.Series(small, dtype="float64")


def _doing(status: Mapping[str, Any]) -> tuple[float, str]:
    phase = str(status.get("phase") or status.get("state") or "–")
    done, total = status.get("done"), status.get("total")
    if not isinstance(done, int) or not isinstance(total, int) or total <= 0:
        return 0.0, phase
    return min(max(done / total, 0.0), 1.0), f"{phase}: {done:,} of {total:,}"
