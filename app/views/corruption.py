"""Corruption: do the weights find the labels that were reversed on purpose?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from elements import Guide, chart
from figures.ranking import distributions, precision_curves
from inspection.digest import Digest
from inspection.precision_at_k import precision_at
from listing import listed, training_runs
from marking import plain
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
from plc_core.analysis.routing.hard_pairs import (
    hard_pair_table,
    hard_pairs_shown,
    published_hard_pairs,
)
from plc_core.evaluation.results import bracketed
from plc_core.runs import Run

# Visits that are pooled for the dose response: more would not fit beside the rest in memory.
MOST_VISITS = 3_000_000

DOSE = Guide(
    "Each run at the share of labels that it was to reverse: mean weights, mean q_flip of reversed "
    "and other pairs, AUROC of q_flip, over all visits. Reversed is here the marker of injected "
    "flips; all pairs without it are the others. Diamonds are the paper's, which reversed hard "
    "pairs.",
    "Reversed pairs get more q_flip than the others, and the AUROC stays above 0.5; below it the "
    "routing takes reversed pairs for the cleaner ones.",
    "What the noise rate is: z is centred, so mean q_flip need not follow the share reversed.",
)
SCORES = {
    "q_flip": "q_flip",
    "-margin": "−margin",
    audit.AGAINST_LENGTH: "Length-only baseline",
}
KINDS = {
    "random": "pairs drawn at random",
    "lowest-margin": "hard pairs, by the lowest margin",
    "largest-gap": "hard pairs, by the largest score gap",
    "smallest-gap": "hard pairs, by the smallest score gap",
}
DOSE_OF = (
    "data",
    "num_pairs",
    "seed",
    "model",
    "objective",
    "beta",
    "recipe",
    "flips",
    "tie_rate",
    "annotator",
)
ANNOTATOR = "what a simulated annotator gets wrong"


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
                "running mean. Where the bands overlap, neither curve is shown to be the better.",
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
        _dose(root, name)


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
        chart("Precision at k", figure, guides["precision"], key="precision")
    with right:
        figure = figures.flip_reliability(calibration).update_layout(height=330)
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


def _dose(root: Path, name: str) -> None:
    """The dose response over the runs that are chosen here, at first those like the one above."""
    st.subheader("Dose response", anchor=False)
    runs = [run for run in training_runs(listed(root)) if run.state == "done"]
    names = [run.name for run in runs]
    own = next((run.config for run in runs if run.name == name), {})
    like = [run.name for run in runs if _comparable(run.config) and _is_dose_of(own, run.config)]
    picked = st.multiselect(
        "Runs, each at its flip rate", names, key=kept("dose", like, TEXTS, names)
    )
    found_runs: list[tuple[str, str, float, Run]] = []
    betas: dict[str, set[str]] = {}
    visits = 0
    for one in picked:
        with shown_errors(one):
            run = open_training(root, one)
            found = read_digest(run)
            if not found.visits:
                continue
            visits += found.visits
            config = config_of(run)
            rate = float(config.get("flip_rate") or 0.0)
            objective, beta = str(config.get("objective", "?")), f"β={config.get('beta')}"
            betas.setdefault(objective, set()).add(beta)
            found_runs.append((f"{objective} {beta}", _kind(config), rate, run))
    if not found_runs:
        st.info("Choose the runs of a sweep over flip rates.")
        return
    if visits > MOST_VISITS:
        st.warning(
            f"These runs hold {visits:,} visits, and at most {MOST_VISITS:,} are pooled here; "
            "choose fewer, or use the notebook."
        )
        return
    kinds = list(dict.fromkeys(kind for _, kind, _, _ in found_runs if kind))
    opened: dict[str, dict[float, list[Run]]] = {}
    for method, kind, rate, run in found_runs:
        # Only runs of one β that reversed labels in the same way are one line.
        if len(betas[objective := method.split()[0]]) == 1:
            method = objective
        if len(kinds) > 1:
            method = f"{method}: {kind or 'none'}"
        opened.setdefault(method, {}).setdefault(rate, []).append(run)
    table = _pooled(tuple(picked), visits, opened)
    reversed_ = f"Reversed: {'; '.join(kinds) or 'nothing'}."
    if len({rate for _, _, rate, _ in found_runs}) > 1:
        figure = figures.dose_response(table, published_hard_pairs())
        guide = replace(DOSE, shows=f"{DOSE.shows} {reversed_}")
        chart("Routing against the share of reversed labels", figure, guide, key="dose_response")
    else:
        st.caption(f"{reversed_} Add runs of other flip rates for a curve.")
    st.dataframe(
        hard_pairs_shown(table).reset_index(), key="hard_pairs", hide_index=True, height="content"
    )


@st.cache_data(max_entries=8, show_spinner="Pooling the visits …")
def _pooled(
    names: tuple[str, ...], visits: int, _opened: dict[str, dict[float, list[Run]]]
) -> pd.DataFrame:
    return hard_pair_table(_opened)


def _kind(config: Mapping[str, Any]) -> str:
    """Which labels a run reversed, in words; empty where it reversed none."""
    kinds = [ANNOTATOR] if config.get("annotator") else []
    if config.get("flip_rate"):
        flips = str(config.get("flips", "random"))
        kinds.append(KINDS.get(flips, plain(flips)))
    return " and ".join(kinds)


def _is_dose_of(own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs differ in nothing but their flip rate, as far as `DOSE_OF` goes."""
    return all(own.get(name) == other.get(name) for name in DOSE_OF)


def _comparable(config: object) -> bool:
    return isinstance(config, dict) and isinstance(config.get("flip_rate"), (int, float))


page()
