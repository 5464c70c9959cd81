"""Runs: what there is, how it is going, what it was made from, its curves and its routing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st
from elements import Guide, chart
from listing import ANALYSIS, WITHOUT_PAIRS, listed, report_of, resumable_at, training_runs
from marking import plain
from provenance import provenance
from reading import joined, metrics, open_training, runs_root, shown_errors, tables
from run_list import LIVE, filtered, live, reports, run_table
from selection import chosen_runs

from plc_core.analysis import audit, figures
from plc_core.listing import RunSummary

CURVES = Guide(
    "Means over the pairs of each optimizer step. The mean margin m is in units of β × nats. "
    "Losses of different objectives are different quantities and are not comparable; margins "
    "(at one β) and q are.",
    "Loss falls, m rises, γ is 0 during warm-up and then rises; mean q moves slowly. More label "
    "noise gives less q_clean and more q_flip.",
    "Whether the policy is better. Under other objectives than PLC, q is only logged and does not "
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
    everything = listed(root)
    training = training_runs(everything)
    if not training:
        st.info("There is no training run yet.")
    elif shown := filtered(training):
        run_table(shown, chosen_runs(root))
    else:
        st.info("No run matches this filter.")
    if any(run.state in LIVE for run in everything):
        live()
    reports(everything)
    by_name = {run.name: run for run in everything}
    chosen = [by_name[name] for name in chosen_runs(root) if name in by_name]
    if training and not chosen:
        st.info("Select one or more runs in the table.")
    if chosen:
        _selected(root, chosen)


def _selected(root: Path, chosen: Sequence[RunSummary]) -> None:
    st.caption(f"Shown below: {', '.join(plain(run.name) for run in chosen)}")
    for run in chosen:
        _remark(run)
    readable = [run for run in chosen if run.problem is None and run.kind not in WITHOUT_PAIRS]
    if not readable:
        return
    curves, routing, source = st.tabs(["Training curves", "Routing", "Provenance"])
    with curves:
        going_on = any(run.state in LIVE for run in readable)
        names = [run.name for run in readable]
        st.fragment(_curves, run_every=10 if going_on else None)(names)
    with routing:
        _routing(readable[0].name)
    with source:
        opened = {}
        for run in readable:
            with shown_errors(run.name):
                opened[run.name] = open_training(root, run.name)
        provenance(opened)


def _remark(run: RunSummary) -> None:
    """What there is to know before looking at the run: that it is an analysis, or why it ended."""
    name = f"**{plain(run.name)}**"
    if run.kind in WITHOUT_PAIRS:
        report = report_of(run)
        found = f" Its report is {plain(str(report))}." if report else ""
        what = "an analysis" if run.kind == ANALYSIS else f"of the kind {plain(run.kind)}"
        st.info(f"{name} is {what}, not a run on pairs." + found)
    if not (run.problem or run.reason):
        return
    text = f"{name} · {plain(run.problem or f'{run.state}: {run.reason}')}"
    step = resumable_at(run)
    if step is not None:
        text += (
            f"  \nIt can go on from its checkpoint after step {step:,}: start it again with the "
            "same parameters and `-p resume true`."
        )
    st.warning(text)


def _curves(names: Sequence[str]) -> None:
    root = runs_root()
    found = {}
    for name in names:
        with shown_errors(name):
            found[name] = metrics(open_training(root, name))
    chart(figures.training_curves(found), CURVES, key="training_curves")


def _routing(name: str) -> None:
    st.text(f"Routing of {name}, the first of the selected runs.")
    with shown_errors(name):
        run = open_training(runs_root(), name)
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


page()
