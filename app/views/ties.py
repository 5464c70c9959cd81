"""Ties: does the tie state pick the pairs whose scores hardly differ, and exact ties?"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import streamlit as st
from elements import Guide, chart
from figures.ranking import area_intervals, distributions
from inspection.digest import Digest
from inspection.queries import bounds, columns
from inspection.verdicts import gap_areas, tie_areas
from reading import (
    audit_tables,
    open_training,
    probe_scores,
    probes,
    read_digest,
    shown_errors,
)
from selection import head
from state import TEXT, kept

from plc_core.analysis import audit, figures
from plc_core.analysis.audit import TieSelectivity
from plc_core.analysis.routing.tie_metrics import (
    injected_ties,
    injected_ties_sentence,
    injected_ties_shown,
    lengths_sentences,
    weak_gaps_sentences,
)
from plc_core.analysis.statistics import format_p
from plc_core.runs import Run

SHARE = 0.2

AREAS = Guide(
    "AUROC of q_tie, and of the margin's size alone, for ties against other pairs, with 95 % "
    "intervals; 0.5 is guessing. The score gaps compare the smallest 20 % with the largest 20 %; "
    "gaps equal to the cutoff are split by pair id.",
    "q_tie lies right of 0.5 against clean and against reversed pairs, and right of the margin.",
    "That pairs of a small gap are ties: scores are noisy too.",
)
CEILING = Guide(
    "Mean q_tie of each group, on a scale that ends at the largest q_tie seen in this run.",
    "True ties lie nearer to the largest q_tie than clean pairs do.",
    "How many ties there are: q_tie is never the largest of the three, so counting winners would "
    "find none.",
)
EXACT = Guide(
    "How q_tie is spread among exact ties that were injected and among the other pairs.",
    "Injected ties lie further right.",
    "That real ties look like these: an injected one has two answers of equal score.",
)


def page() -> None:
    """Draw the page."""
    chosen = head("Ties", "Does q_tie find the pairs in which neither answer is better?")
    if chosen is None:
        return
    root, name = chosen
    with shown_errors(name):
        run = open_training(root, name)
        found = read_digest(run)
        if not found.visits:
            st.info("No pair of this run has been visited yet.")
            return
        areas, selectivity, means, largest = _made(str(found.folder), found)
        gaps = _of_source(selectivity) if selectivity.scored else None
        left, right = st.columns([0.58, 0.42])
        with left:
            every = pd.concat([areas, *([gap_areas(gaps)] if gaps else [])], ignore_index=True)
            chart("Does q_tie find ties?", area_intervals(every), AREAS, key="tie_areas")
        with right:
            figure = figures.tie_ceiling(means, largest).update_layout(height=330)
            chart("q_tie against the largest seen", figure, CEILING, key="tie_ceiling")
        _exact(found)
        if gaps is None:
            st.info("The pairs of this run carry no scores, so they have no score gap.")
        else:
            with st.expander("Numbers of the score gaps"):
                _numbers(gaps, run.name)
        _probes(run)


Made = tuple[pd.DataFrame, TieSelectivity, pd.DataFrame, float]


@st.cache_data(max_entries=8, show_spinner="Comparing the slices …")
def _made(folder: str, _found: Digest) -> Made:
    visits, pairs = audit_tables(_found, names=True)
    areas = tie_areas(visits, pairs, SHARE)
    by_place = audit_tables(_found)
    largest = bounds(_found, "largest_q_tie") or (float("nan"), float("nan"))
    selectivity = audit.tie_selectivity(visits, pairs, SHARE)
    return areas, selectivity, audit.routing_by_state(*by_place), largest[1]


def _of_source(result: TieSelectivity) -> TieSelectivity:
    """The score gaps of the source that is chosen here."""
    sources = sorted(result.slices["source"].unique())
    source = sources[0]
    if len(sources) > 1:
        key = kept("tie_source", source, TEXT, sources)
        source = st.selectbox("Source", sources, key=key, help="Scales differ between sources.")
    own = {
        name: table[table["source"] == source]
        for name in ("slices", "tests", "lengths")
        if not (table := getattr(result, name)).empty
    }
    return replace(result, **own)


def _numbers(result: TieSelectivity, name: str) -> None:
    _slices(result.slices)
    _tests(result.tests)
    for sentence in [*weak_gaps_sentences(result, name), *lengths_sentences(result)]:
        st.text(sentence)
    out = f", {result.unscored:,} without a visit or a score left out" if result.unscored else ""
    st.caption(f"{result.scored:,} visited pairs with scores{out}.")


def _slices(slices: pd.DataFrame) -> None:
    st.dataframe(
        slices.drop(columns="source"),
        key="tie_slices",
        hide_index=True,
        height="content",
        column_config={
            "n": st.column_config.NumberColumn(format="localized"),
            "gap_low": st.column_config.NumberColumn("smallest gap", format="%.2f"),
            "gap_high": st.column_config.NumberColumn("largest gap", format="%.2f"),
            "cut_ties": st.column_config.NumberColumn(
                "ties at the cutoff, excluded", format="localized"
            ),
            **{
                f"{measure}_{kind}": st.column_config.NumberColumn(f"{kind} {label}", format="%.4g")
                for measure, label in (("q_tie", "q_tie"), ("abs_margin", "|m|"))
                for kind in ("mean", "median")
            },
        },
    )


def _tests(tests: pd.DataFrame) -> None:
    st.markdown("**Mann–Whitney, bottom against top**")
    number = st.column_config.NumberColumn
    table = pd.DataFrame(
        {
            "measure": tests["measure"].replace({"abs_margin": "|m|"}),
            "side": tests["side"],
            "n bottom": tests["n_a"],
            "n top": tests["n_b"],
            "U": tests["U"],
            "p": [
                format_p(p, log10).removeprefix("p = ").removeprefix("p ")
                for p, log10 in zip(tests["p"], tests["log10_p"], strict=True)
            ],
            "rank-biserial r": tests["rank_biserial"],
            "AUROC": tests["auroc"],
            "low": tests["auroc_low"],
            "high": tests["auroc_high"],
        }
    )
    st.dataframe(
        table,
        key="tie_tests",
        hide_index=True,
        height="content",
        column_config={
            **dict.fromkeys(("n bottom", "n top", "U"), number(format="localized")),
            **dict.fromkeys(("rank-biserial r", "AUROC", "low", "high"), number(format="%.3f")),
        },
    )


def _exact(found: Digest) -> None:
    table = columns(found, ["injected_tie", "q_tie"])
    tied = table["injected_tie"].eq(True) if "injected_tie" in table else None
    if tied is None or not tied.any():
        st.caption("No exact tie was injected into this run.")
        return
    groups = {
        "injected tie": table.loc[tied, "q_tie"].to_numpy(float),
        "other pairs": table.loc[~tied, "q_tie"].to_numpy(float),
    }
    figure = distributions(groups, "q_tie at the last visit")
    chart("Exact ties", figure, EXACT, key="exact_ties")


def _probes(run: Run) -> None:
    """The exact-tie tables of probes that the policy was shown without training on them."""
    for name in probes(run):
        with shown_errors(run.name):
            _probe(run, name)


def _probe(run: Run, name: str) -> None:
    scores = probe_scores(run, name)
    if "injected_tie" not in scores or not scores["injected_tie"].any():
        return
    st.markdown("**Zero-shot routing of injected ties**")
    result = injected_ties({run.name: scores})
    st.dataframe(
        injected_ties_shown(result).reset_index(),
        key=f"probe_{name}",
        hide_index=True,
        height="content",
    )
    st.text(injected_ties_sentence(result, run.name))


page()
