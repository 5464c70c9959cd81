"""Human disagreement: does the tie state know the pairs on which people disagree?"""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st
from elements import Guide, chart
from figures.ranking import distributions
from inspection.digest import Digest
from inspection.queries import columns
from marking import plain
from reading import open_training, probe_scores, probes, read_digest, shown_errors
from selection import head
from state import TEXT, kept

from plc_core.analysis import figures
from plc_core.analysis.paper import published
from plc_core.analysis.routing.human_disagreement import (
    Agreement,
    agreement,
    agreement_sentence,
    agreement_shown,
    other_measures_shown,
)
from plc_core.analysis.statistics import read_aloud
from plc_core.data.votes import VOTE_GROUPS
from plc_core.runs import Run

OWN = "pairs of this run, at their last visit"

MEANS = Guide(
    "Mean q_tie of pairs on which all voters agree, some disagree, or most see a tie, with 95 % "
    "intervals. Diamonds are the paper's MultiPref means.",
    "It rises from unanimous to tie-majority.",
    "That a high q_tie means people disagree: groups overlap, and votes of pairs trained on may "
    "have shaped the labels.",
)
SPREAD = Guide(
    "How q_tie is spread in each group; every group adds up to 100 %.",
    "The groups with less agreement lie further right.",
    "Anything about one pair where the lines overlap, which is nearly everywhere.",
)


def page() -> None:
    """Draw the page."""
    chosen = head("Human disagreement", "Does the routing know where people disagree?")
    if chosen is None:
        return
    root, name = chosen
    with shown_errors(name):
        run = open_training(root, name)
        found = read_digest(run)
        scores = _scores(run, found)
        if scores is None:
            st.info(
                "No pair of this run has votes of two people or more. Votes are read from a field "
                "`votes` of the data: chosen, rejected or tie for each person. "
                "`notebooks/07_multipref.ipynb` scores those of MultiPref."
            )
            return
        result = _agreement(scores)
        label = plain(run.name)
        trend = read_aloud(result.trends["q_tie"], "q_tie")
        st.markdown(plain(trend), help=plain(agreement_sentence(result, run.name)))
        left, right = st.columns(2)
        with left:
            rows = result.groups[result.groups["measure"] == "q_tie"]
            figure = figures.group_means({run.name: rows}, published("multipref"))
            figure.update_layout(height=330)
            chart("Mean q_tie by agreement", figure, MEANS, "group_means")
        with right:
            parts: dict[str, np.ndarray] = {
                group: scores.loc[scores["group"] == group, "q_tie"].to_numpy(float)
                for group in VOTE_GROUPS
            }
            chart("q_tie in each group", distributions(parts, "q_tie"), SPREAD, "vote_spread")
        st.markdown(f"**{label} against the paper**")
        found_here = {(run.name, ""): result}
        _table(agreement_shown(found_here), "agreement")
        st.markdown("**Other measures**", help="Trend over the groups: Jonckheere–Terpstra.")
        _table(other_measures_shown(found_here), "other_measures")


def _scores(run: Run, found: Digest) -> pd.DataFrame | None:
    """Margin, weights and group of the pairs that are chosen in the box; None without votes."""
    choices = [OWN] if "vote_group" in found.columns else []
    tables = {}
    for name in probes(run):
        table = pd.DataFrame()
        with shown_errors(run.name):
            table = probe_scores(run, name)
        if "group" in table and table["group"].notna().any():
            for calibration in sorted(table["calibration"].unique()):
                key = f"probe {name}, calibration {calibration}"
                tables[key] = table[table["calibration"] == calibration]
    choices += list(tables)
    if not choices:
        return None
    picked = st.selectbox("Pairs", choices, key=kept("votes", choices[0], TEXT, choices))
    if picked != OWN:
        return tables[picked].reset_index(drop=True)
    names = ["vote_group", "margin", "q_clean", "q_flip", "q_tie"]
    return columns(found, names).rename(columns={"vote_group": "group"})


@st.cache_data(max_entries=8, show_spinner="Testing …")
def _agreement(scores: pd.DataFrame) -> Agreement:
    return agreement(scores)


def _table(frame: pd.DataFrame, key: str) -> None:
    # Of one set of pairs there is one calibration, which the box above names.
    shown = frame.reset_index().drop(columns="calibration")
    st.dataframe(shown, key=key, hide_index=True, height="content")


page()
