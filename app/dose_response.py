"""The dose response: routing weights of runs that reversed different shares of the labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from elements import Guide, chart
from listing import listed, training_runs
from marking import plain
from reading import config_of, open_training, read_digest, shown_errors
from state import TEXTS, kept

from plc_core.analysis import figures
from plc_core.analysis.routing.hard_pairs import (
    hard_pair_table,
    hard_pairs_shown,
    published_hard_pairs,
)
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


def dose_response(root: Path, name: str) -> None:
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
