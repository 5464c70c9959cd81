"""Corruption: do the weights find the labels that were reversed on purpose?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st
from elements import Guide, chart
from listing import listed, training_runs
from reading import (
    audit_tables,
    config_of,
    open_training,
    read_digest,
    shown_errors,
)
from selection import head
from state import TEXTS, kept

from plc_core.analysis import audit, figures
from plc_core.analysis.audit import group_names, groups
from plc_core.analysis.calibration import Calibration
from plc_core.analysis.figures.ranking import distributions, precision_curves
from plc_core.analysis.inspection.digest import Digest
from plc_core.analysis.inspection.ranking import precision_at
from plc_core.analysis.studies.hard_pairs import (
    hard_pair_table,
    hard_pairs_shown,
    published_hard_pairs,
)
from plc_core.runs import Run

# Visits that are pooled for the dose response: more would not fit beside the rest in memory.
MOST_VISITS = 3_000_000

DOSE = Guide(
    "Each run at the share of labels reversed in it: mean weights, mean q_flip of reversed "
    "and other pairs, AUROC for the marker, over all visits. Diamonds are the paper's.",
    "Mean q_flip and the gap between reversed and others rise with the dose.",
    "That q_flip is the noise rate: its mean follows z's spread, which barely moves with it.",
)
MEANS = Guide(
    "Mean routing weights of each group of pairs at their last visit, with 95 % intervals.",
    "q_flip is clearly higher for reversed than for other pairs.",
    "That a q of 0.3 means a chance of 30 %. Weights are routing signals, not an audit.",
)
SPREAD = Guide(
    "How q_flip is spread in each group; every group adds up to 100 %.",
    "Reversed pairs lie further right. AUROC is the chance that a reversed pair has the higher "
    "q_flip; 0.5 is guessing.",
    "Which single pairs are reversed, where the groups overlap.",
)
PRECISION = Guide(
    "Of the k pairs with the highest score, the share that was reversed, with Wilson's band; "
    "dotted: drawing by chance. The margin alone stands beside q_flip.",
    "Far above chance for small k, falling as k grows.",
    "What the routing adds: q_flip and −margin mostly order pairs alike.",
)
RELIABLE = Guide(
    "The share of pairs that are truly reversed, against q_flip, in ten bins with 95 % intervals.",
    "It rises from left to right. Only on the diagonal would q_flip be a probability, and the "
    "method does not promise that.",
    "Anything about single pairs, or about data with another noise rate.",
)


def page() -> None:
    """Draw the page."""
    chosen = head("Corruption", "Do the weights find labels that were reversed on purpose?")
    if chosen is None:
        return
    root, name = chosen
    with shown_errors(name):
        run = open_training(root, name)
        found = read_digest(run)
        if not found.visits:
            st.info("No pair of this run has been visited yet.")
        else:
            _one_run(found)
    with shown_errors(name):
        _dose(root, name)


def _one_run(found: Digest) -> None:
    made = _made(str(found.folder), found)
    if made is None:
        st.info(
            "The pairs of this run carry no marker of injected flips and no known true state, so "
            "nothing can be compared with the truth."
        )
        return
    routing, ranking, calibration, parts, precision = made
    for row in ranking.itertuples():
        st.text(f"AUROC of {row.score} against the {row.truth}: {row.text}")
    left, right = st.columns(2)
    with left:
        figure = figures.routing_by_state(routing)
        chart("Mean weights by group", figure, MEANS, key="routing_by_state")
    with right:
        figure = distributions(parts, "q_flip at the last visit")
        chart("q_flip in each group", figure, SPREAD, key="flip_distribution")
    left, right = st.columns(2)
    with left:
        chart("Precision at k", precision_curves(precision), PRECISION, key="precision")
    with right:
        figure = figures.flip_reliability(calibration).update_layout(height=330)
        chart("Is q_flip a probability?", figure, RELIABLE, key="flip_reliability")
    st.text(str(calibration))


Made = tuple[pd.DataFrame, pd.DataFrame, Calibration, dict, dict]


@st.cache_data(max_entries=8, show_spinner="Comparing with the markers …")
def _made(folder: str, _found: Digest) -> Made | None:
    visits, pairs = audit_tables(_found)
    if not (audit.has_oracle(pairs) or ("flipped" in pairs and pairs["flipped"].notna().any())):
        return None
    joined = audit.join_last_visits(visits, pairs)
    group = groups(joined)
    names = group_names(pairs)
    parts = {n: joined.loc[group == n, "q_flip"].to_numpy(float) for n in names}
    ranked = joined[group.isin(names[:2])]
    positive = groups(ranked) == names[1]
    precision = {
        "q_flip": precision_at(ranked["q_flip"], positive),
        "−margin": precision_at(-ranked["margin"], positive),
    }
    return (
        audit.routing_by_state(visits, pairs),
        audit.flip_ranking(visits, pairs),
        audit.flip_calibration(visits, pairs),
        {n: v for n, v in parts.items() if len(v)},
        precision,
    )


def _dose(root: Path, name: str) -> None:
    """The dose response over the runs that are chosen here, at first those like the one above."""
    st.subheader("Dose response", anchor=False)
    runs = [run for run in training_runs(listed(root)) if run.state == "done"]
    names = [run.name for run in runs]
    like = [run.name for run in runs if _comparable(run.config) and run.name == name]
    picked = st.multiselect(
        "Runs, each at its flip rate", names, key=kept("dose", like, TEXTS, names)
    )
    opened: dict[str, dict[float, list[Run]]] = {}
    visits = 0
    for one in picked:
        with shown_errors(one):
            run = open_training(root, one)
            found = read_digest(run)
            if not found.visits:
                continue
            visits += found.visits
            config = config_of(run)
            rates = opened.setdefault(str(config.get("objective", "?")), {})
            rates.setdefault(float(config.get("flip_rate") or 0.0), []).append(run)
    if not opened:
        st.info("Choose the runs of a sweep over flip rates.")
        return
    if visits > MOST_VISITS:
        st.warning(
            f"These runs hold {visits:,} visits, and at most {MOST_VISITS:,} are pooled here; "
            "choose fewer, or use the notebook."
        )
        return
    table = _pooled(tuple(picked), visits, opened)
    figure = figures.dose_response(table, published_hard_pairs())
    chart("Routing against the share of reversed labels", figure, DOSE, key="dose_response")
    st.dataframe(
        hard_pairs_shown(table).reset_index(), key="hard_pairs", hide_index=True, height="content"
    )


@st.cache_data(max_entries=8, show_spinner="Pooling the visits …")
def _pooled(
    names: tuple[str, ...], visits: int, _opened: dict[str, dict[float, list[Run]]]
) -> pd.DataFrame:
    return hard_pair_table(_opened)


def _comparable(config: object) -> bool:
    return isinstance(config, dict) and isinstance(config.get("flip_rate"), (int, float))


page()
