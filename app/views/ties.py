"""Ties: does the tie state pick the pairs whose scores hardly differ?"""

from __future__ import annotations

import pandas as pd
import streamlit as st
from elements import Guide, chart
from reading import open_training, shown_errors, tables
from selection import head, kept

from plc_core.analysis import audit, figures
from plc_core.analysis.audit import TieSelectivity
from plc_core.analysis.statistics import format_p

SHARE = 0.2

SELECTIVITY = Guide(
    "Pairs ranked by the absolute gap of their scores: the weakest 20 % against the strongest "
    "20 %, by mean and median.",
    "q_tie is higher and |m| smaller where the gap is weak.",
    "That weak-gap pairs are ties: scores are noisy too. With many pairs a tiny difference is "
    "significant, so read the effect size.",
)
CEILING = Guide(
    "Mean q_tie of each group, on a scale that ends at the largest q_tie seen in this run.",
    "True ties lie nearer to the largest q_tie than clean pairs do.",
    "How many ties there are: q_tie is never the largest of the three, so counting winners would "
    "find none.",
)


def page() -> None:
    """Draw the page."""
    chosen = head("Ties")
    if chosen is None:
        return
    root, name = chosen
    with shown_errors(name):
        visits, pairs = tables(open_training(root, name))
        if visits.empty:
            st.info("No pair of this run has been visited yet.")
            return
        st.subheader("Weak against strong score gaps")
        _selectivity(audit.tie_selectivity(visits, pairs, SHARE))
        st.subheader("q_tie against the largest seen")
        routing = audit.routing_by_state(visits, pairs)
        chart(figures.tie_ceiling(routing, audit.tie_ceiling(visits)), CEILING, key="tie_ceiling")


def _selectivity(result: TieSelectivity) -> None:
    if not result.scored:
        st.info("The pairs of this run carry no scores, so they have no score gap.")
        return
    sources = sorted(result.slices["source"].unique())
    source = sources[0]
    if len(sources) > 1:
        key = kept("ties_source")
        if st.session_state.get(key) not in sources:
            st.session_state[key] = source
        source = st.selectbox("Source", sources, key=key, help="Scales differ between sources.")
    slices = result.slices[result.slices["source"] == source]
    tests = result.tests[result.tests["source"] == source]
    chart(figures.tie_selectivity(slices, SHARE), SELECTIVITY, key="tie_selectivity")
    _slices(slices)
    _tests(tests)
    st.caption(
        f"{result.scored:,} visited pairs with scores"
        + (f", {result.unscored:,} without a visit or a score left out" if result.unscored else "")
        + ". Equal gaps at a slice's edge are split by pair id, the same way every time."
    )


def _slices(slices: pd.DataFrame) -> None:
    st.dataframe(
        slices.drop(columns="source"),
        key="tie_slices",
        hide_index=True,
        column_config={
            "n": st.column_config.NumberColumn(format="localized"),
            "gap_low": st.column_config.NumberColumn("smallest gap", format="%.2f"),
            "gap_high": st.column_config.NumberColumn("largest gap", format="%.2f"),
            "cut_ties": st.column_config.NumberColumn("equal gaps outside", format="localized"),
            **{
                f"{measure}_{kind}": st.column_config.NumberColumn(f"{kind} {label}", format="%.4g")
                for measure, label in (("q_tie", "q_tie"), ("abs_margin", "|m|"))
                for kind in ("mean", "median")
            },
        },
    )


def _tests(tests: pd.DataFrame) -> None:
    st.markdown("**Mann–Whitney, bottom against top**")
    table = pd.DataFrame(
        {
            "measure": tests["measure"].replace({"abs_margin": "|m|"}),
            "side": tests["side"],
            "n bottom": tests["n_a"],
            "n top": tests["n_b"],
            "U": tests["U"],
            "p": [format_p(p).removeprefix("p = ").removeprefix("p ") for p in tests["p"]],
            "rank-biserial r": tests["rank_biserial"],
            "AUROC": tests["auroc"],
        }
    )
    effect = st.column_config.NumberColumn(format="%.3f")
    st.dataframe(
        table,
        key="tie_tests",
        hide_index=True,
        column_config={
            "n bottom": st.column_config.NumberColumn(format="localized"),
            "n top": st.column_config.NumberColumn(format="localized"),
            "U": st.column_config.NumberColumn(format="localized"),
            "rank-biserial r": effect,
            "AUROC": effect,
        },
    )


page()
