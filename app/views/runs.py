"""Runs: what there is, how it is going, what it was made from, its curves and its routing."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st
from elements import Guide, age, chart
from marking import plain
from provenance import provenance
from reading import joined, metrics, open_below, runs_root, shown_errors, tables
from selection import choose_runs, chosen_runs, kept, select_rows, selected_rows

from plc_core.analysis import audit, figures
from plc_core.runs import RunSummary, list_runs

LIVE = ("queued", "running")

CURVES = Guide(
    "Means over the pairs of each optimizer step. The mean margin m is in units of β × nats.",
    "Loss falls, m rises, γ is 0 during warm-up and then rises; mean q moves slowly. More label "
    "noise gives less q_clean and more q_flip.",
    "Whether the policy is better. Under other objectives than PLC, γ and q are logged but do not "
    "touch the loss. z is centred on the running mean, so mean q hardly depends on "
    "how far training has come.",
)
ROUTING = Guide(
    "Mean routing weight of each group of pairs at their last visit, with 95 % intervals.",
    "q_flip is clearly higher for flipped than for clean pairs, q_tie higher for ties.",
    "That a q of 0.3 means a chance of 30 %. Routing weights are routing signals, not an audit.",
)
DISTRIBUTION = Guide(
    "How q_flip is spread within each group; every group adds up to 100 %.",
    "Flipped pairs lie further right. AUROC is the chance that a flipped pair has the higher "
    "q_flip; 0.5 is guessing.",
    "Which single pairs are flipped: where the groups overlap, it cannot tell.",
)
RELIABILITY = Guide(
    "The share of pairs that are truly flipped, against q_flip, in ten bins with 95 % intervals.",
    "It rises from left to right. Only on the diagonal would q_flip be a probability, and the "
    "method does not promise that.",
    "Anything about single pairs, or about data with another noise rate.",
)


def page() -> None:
    """Draw the page."""
    st.title("Runs")
    root = runs_root()
    everything = list_runs(root)
    shown = _filtered(everything)
    _table(shown, chosen_runs(root))
    if any(run.state in LIVE for run in everything):
        _live()
    names = [name for name in chosen_runs(root) if name in {run.name for run in everything}]
    if not names:
        st.info("Select one or more runs in the table.")
        return
    st.caption(f"Shown below: {', '.join(plain(name) for name in names)}")
    for run in everything:
        if run.name in names and (run.problem or run.reason):
            what = run.problem or f"{run.state}: {run.reason}"
            st.warning(f"**{plain(run.name)}** · {plain(what)}")
    readable = [run for run in everything if run.name in names and run.problem is None]
    readable.sort(key=lambda run: names.index(run.name))
    if not readable:
        return
    curves, routing, source = st.tabs(["Training curves", "Routing", "Provenance"])
    with curves:
        live = any(run.state in LIVE for run in readable)
        st.fragment(_curves, run_every=10 if live else None)([run.name for run in readable])
    with routing:
        _routing(readable[0].name)
    with source:
        infos = {}
        for run in readable:
            with shown_errors(run.name):
                infos[run.name] = open_below(root, run.name).info
        provenance(infos)


def _filtered(runs: Sequence[RunSummary]) -> list[RunSummary]:
    left, right = st.columns([0.4, 0.6], vertical_alignment="bottom")
    words = left.text_input(
        "Filter", key=kept("runs_filter"), placeholder="name, objective, recipe …"
    )
    states = sorted({_state(run) for run in runs})
    key = kept("runs_states")
    st.session_state[key] = [s for s in st.session_state.get(key, []) if s in states]
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


def _table(runs: Sequence[RunSummary], chosen: Sequence[str]) -> None:
    if not runs:
        st.info("No run matches this filter.")
        return
    names = [run.name for run in runs]
    table = pd.DataFrame(
        {
            "run": names,
            "state": [_state(run) for run in runs],
            "progress": [None if (p := _progress(run)) is None else int(100 * p) for run in runs],
            "objective": [_setting(run, "objective") for run in runs],
            "recipe": [_setting(run, "recipe") for run in runs],
            "flip rate": [_setting(run, "flip_rate") for run in runs],
            "seed": [_setting(run, "seed") for run in runs],
            "created": [(run.created or "")[:16].replace("T", " ") for run in runs],
            "remark": [run.problem or run.reason or "" for run in runs],
        }
    )
    key = "runs_table"

    def selected() -> None:
        picked = [names[row] for row in selected_rows(key)]
        # Runs that the filter hides stay chosen, so that an overlay can grow by several searches.
        kept_ones = [name for name in chosen if name in picked or name not in names]
        choose_runs(kept_ones + [name for name in picked if name not in kept_ones])

    select_rows(key, [row for row, name in enumerate(names) if name in chosen])
    st.dataframe(
        table,
        key=key,
        hide_index=True,
        height=min(35 * (len(runs) + 1) + 2, 330),
        on_select=selected,
        selection_mode="multi-row",
        column_config={
            "run": st.column_config.TextColumn(width="medium", pinned=True),
            "state": st.column_config.TextColumn(width="small"),
            "progress": st.column_config.ProgressColumn(
                format="%d %%", max_value=100, width="small"
            ),
            "objective": st.column_config.TextColumn(width="small"),
            "recipe": st.column_config.TextColumn(width="small"),
            "flip rate": st.column_config.TextColumn(width="small"),
            "seed": st.column_config.TextColumn(width="small"),
            "created": st.column_config.TextColumn(width="small"),
            "remark": st.column_config.TextColumn(width="medium"),
        },
    )


@st.fragment(run_every=3)
def _live() -> None:
    """Runs that are going on, refreshed alone; the page follows when one of them ends."""
    running = [run for run in list_runs(runs_root()) if run.state in LIVE]
    if st.session_state.get("live_runs", running) and not running:
        st.session_state["live_runs"] = []
        st.rerun()
    st.session_state["live_runs"] = [run.name for run in running]
    for run in running:
        steps = f"step {run.step or 0:,} of {run.total_steps:,}" if run.total_steps else run.state
        left, right = st.columns([0.3, 0.7], vertical_alignment="center")
        left.text(run.name)
        right.progress(_progress(run) or 0.0, text=f"{steps} · heartbeat {age(run.heartbeat)}")


def _curves(names: Sequence[str]) -> None:
    root = runs_root()
    found = {}
    for name in names:
        with shown_errors(name):
            found[name] = metrics(open_below(root, name))
    chart(figures.training_curves(found), CURVES, key="training_curves")


def _routing(name: str) -> None:
    st.text(f"Routing of {name}, the first of the selected runs.")
    with shown_errors(name):
        run = open_below(runs_root(), name)
        visits, pairs = tables(run)
        if visits.empty:
            st.info("No pair has been visited yet.")
            return
        chart(
            figures.routing_by_state(audit.routing_by_state(visits, pairs)),
            ROUTING,
            key="routing_by_state",
        )
        for row in audit.flip_ranking(visits, pairs).itertuples():
            st.text(f"AUROC of {row.score} against the {row.truth}: {row.text}")
        chart(figures.flip_distribution(joined(run)), DISTRIBUTION, key="flip_distribution")
        calibration = audit.flip_calibration(visits, pairs)
        chart(figures.flip_reliability(calibration), RELIABILITY, key="flip_reliability")
        st.text(str(calibration))


def _state(run: RunSummary) -> str:
    return "unreadable" if run.problem else run.state


def _progress(run: RunSummary) -> float | None:
    if run.step is None or not run.total_steps:
        return None
    return min(run.step / run.total_steps, 1.0)


def _setting(run: RunSummary, name: str) -> str:
    value = run.config.get(name)
    return "" if value is None else str(value)


page()
