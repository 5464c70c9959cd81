"""Corruption: do the weights find the labels that were reversed on purpose?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd
import streamlit as st
from dose_response import dose_response
from elements import Guide, chart
from figures.ranking import distributions, precision_curves
from inspection.digest import Digest
from inspection.precision_at_k import precision_at
from reading import (
    audit_tables,
    open_training,
    read_digest,
    shown_errors,
)
from selection import head

from plc_core.analysis import audit, figures
from plc_core.analysis.audit import group_names, groups
from plc_core.analysis.calibration import Calibration
from plc_core.evaluation.results import bracketed

SCORES = {
    "q_flip": "q_flip",
    "-margin": "−margin",
    audit.AGAINST_LENGTH: "Length-only baseline",
}


@dataclass(frozen=True)
class Truth:
    """What the cards on one run call reversed, in words for their captions."""

    name: str
    reversed_is: str
    other: str
    tie: str

    def guides(self) -> dict[str, Guide]:
        """How to read each card; true whatever its numbers are."""
        ties_out = f"{self.tie} left out"
        return {
            "means": Guide(
                "Mean routing weights of each group of pairs at their last visit, with 95 % "
                f"intervals. Reversed is {self.reversed_is}.",
                "q_flip is clearly higher for reversed than for other pairs.",
                "That a q of 0.3 means a chance of 30 %. Weights are routing signals, not an "
                "audit.",
            ),
            "spread": Guide(
                "How q_flip at the last visit is spread in each group; every group adds up to "
                f"100 %. Reversed is {self.reversed_is}.",
                "Reversed pairs lie further right. AUROC is the chance that a reversed pair has a "
                f"higher q_flip than {self.other}, {ties_out}; 0.5 is guessing.",
                "Which single pairs are reversed, where the groups overlap.",
            ),
            "precision": Guide(
                "Of the k pairs with the highest score at their last visit, the share that is "
                f"reversed ({self.reversed_is}; {ties_out}), with Wilson's band; dotted: the share "
                "among all of them. The margin alone stands beside q_flip.",
                "Far above the dotted line for small k, falling as k grows.",
                "What the routing adds: q_flip is made of the margin, measured from each step's "
                "running mean. Where the bands overlap, neither curve is shown to be better.",
            ),
            "reliable": Guide(
                "The share of pairs that are reversed, against q_flip at the last visit, in ten "
                f"bins with 95 % intervals. Reversed is {self.reversed_is}; {self.tie} counted as "
                "not reversed, so the base rate is over all pairs.",
                "It rises from left to right. Only on the diagonal would q_flip be a probability, "
                "and the method does not promise that.",
                "Anything about single pairs, or about data with another noise rate.",
            ),
        }


BY_STATE = Truth(
    "true state", "the true state flip, marked or not", "one of the state clean", "true ties are"
)
BY_MARKER = Truth(
    "marker",
    "the marker of injected flips, whatever was wrong before",
    "an unmarked one",
    "injected ties are",
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
        dose_response(root, name)


def _one_run(found: Digest) -> None:
    made = _made(str(found.folder), found)
    if made is None:
        st.info(
            "No label of this run is known to be reversed, so there is nothing to find. The page "
            "Label audit needs no known labels."
        )
        return
    routing, ranking, calibration, parts, precision, by_state = made
    truth = BY_STATE if by_state else BY_MARKER
    guides = truth.guides()
    said = _definitions(truth, precision["q_flip"], calibration)
    # Over other pairs the share of reversed ones is another one, and each chart says which it has.
    ties = calibration.n > sum(len(parts[name]) for name in list(parts)[:2])
    with st.container(horizontal=True, gap="medium", key="tiles"):
        for row in ranking.to_dict("records"):
            label = f"{SCORES.get(row['score'], row['score'])}: flip AUROC".replace("_", r"\_")
            bounds = (row["auroc"], row["low"], row["high"])
            st.metric(label, bracketed(bounds, 3), help=f"{row['text']}. {said}", width="content")
    st.caption("AUROC: 0.5 is guessing, 1 ranks every reversed label above all others.")
    left, right = st.columns(2)
    with left:
        figure = figures.routing_by_state(routing)
        chart("Mean weights by group", figure, guides["means"], key="routing_by_state")
    with right:
        figure = distributions(parts, "q_flip at the last visit")
        chart("q_flip in each group", figure, guides["spread"], key="flip_distribution")
    left, right = st.columns(2)
    with left:
        figure = precision_curves(precision)
        if ties:
            figure.update_yaxes(title_text="share reversed, without ties")
        chart("Precision at k", figure, guides["precision"], key="precision")
    with right:
        figure = figures.flip_reliability(calibration).update_layout(height=330)
        figure.update_yaxes(tickformat=".0%")
        if ties:
            figure.update_yaxes(title_text="share reversed, of all pairs")
        guide = replace(guides["reliable"], shows=f"{guides['reliable'].shows} {calibration}.")
        chart("Is q_flip a probability?", figure, guide, key="flip_reliability")


def _definitions(truth: Truth, ranked: pd.DataFrame, calibration: Calibration) -> str:
    """What reversed means in each part of the page, and the share of it there."""
    said = f"**Reversed** is {truth.reversed_is}, in every card on this run. "
    if len(ranked):
        chance = ranked["base_rate"].iloc[0]
        said += (
            f"In the AUROCs and in precision at k {truth.tie} left out ({chance:.1%} of "
            f"{ranked['k'].iloc[-1]:,} pairs are reversed); in “Is q_flip a probability?” "
            f"they count as not reversed ({calibration.base_rate:.1%} of {calibration.n:,}). "
        )
    return said + (
        "The dose response below is over all visits, by the marker of injected flips and with all "
        "unmarked pairs as the others, so its AUROC is another one."
    )


Made = tuple[pd.DataFrame, pd.DataFrame, Calibration, dict, dict, bool]


@st.cache_data(max_entries=8, show_spinner="Comparing with the markers …")
def _made(folder: str, _found: Digest) -> Made | None:
    visits, pairs = audit_tables(_found)
    if not (audit.has_oracle(pairs) or ("flipped" in pairs and pairs["flipped"].notna().any())):
        return None
    joined = audit.join_last_visits(visits, pairs)
    group = groups(joined)
    names = group_names(pairs)
    if not all((group == name).any() for name in names[:2]):
        return None
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
        audit.has_oracle(pairs),
    )


page()
