"""Routing: where the pairs of one run went, when, and with what weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from elements import Guide, chart
from figures.routing import (
    MAP_POINTS,
    RECIPE_POINTS,
    SAMPLED,
    cartography,
    recipe_map,
    z_strip,
)
from figures.routing_over_time import (
    correction_by_phase,
    cumulative_mass,
    over_training,
    phases_of,
)
from figures.triangle import TERNARY_POINTS, ternary
from inspection.aggregate import MEASURES
from inspection.digest import Digest
from inspection.queries import Filter, histogram, means, sample
from inspection.step_metrics import noise_of, records_noise
from marking import plain
from reading import config_of, is_shadow, open_training, read_digest, shown_errors
from recipe_curves import prior_of, recipe_curve
from rerouting_view import rerouting
from selection import head, point_clicked
from state import FLAG, TEXT, kept

from plc_core.analysis import audit
from plc_core.analysis.audit import STATES
from plc_core.analysis.noise import NoiseEstimate
from plc_core.runs import Run
from plc_core.storage.files import RunError

SECTIONS = ("As logged", "Other settings")

TRIANGLE = Guide(
    "Each dot is a pair at its last visit; a corner is a weight of 1. q depends on z alone, so all "
    "dots lie on the curve that z traces; circles: how many. The diamond is the prior, where z "
    "says nothing. Click a dot to read its pair.",
    "Most dots near the clean corner, a tail towards flip, and no dot off the curve.",
    "That a pair is what its nearest corner says. No z makes tie the largest weight.",
)
STRIP = Guide(
    "Lines: how z at the last visit is spread in each group. Ticks: single pairs; click one to "
    "read it. Dotted: where the largest q changes.",
    "Reversed pairs lie further left than clean ones; ties between them.",
    "Which single pairs are reversed, where the lines overlap.",
)
RECIPE = Guide(
    "Lines: the weights that the run's recipe gives each z. Dots: some pairs as recorded. Bars: "
    "how the pairs' last z are spread.",
    "Dots on the lines; z centred near 0 with a tail to the left where labels are noisy.",
    "Where the border between right and wrong labels lies: the lines are set before training.",
)
MAP = Guide(
    "Each dot is a pair: its mean z, and how much z moved between visits. Colour is q_flip at the "
    "last visit. Click a dot to read its pair.",
    "A large calm group above 0; calm pairs far below 0 are what the model keeps disagreeing with.",
    "Why it disagrees: a wrong label, a hard pair, or a bias of the model look alike.",
)
MAP_OF_ONE_VISIT = Guide(
    "Each pair was visited once, so z has no spread: each dot is a pair's z at the step of its "
    "visit. Colour is q_flip. Click a dot to read its pair.",
    "The cloud keeps its height while training goes on, with more above 0 than below.",
    MAP.silent,
)
SPREAD = Guide(
    "How the values of all visits were spread at each stage: stronger colour is more visits. "
    "Line: median; dotted: 5th and 95th percentile.",
    "z keeps its width while m grows, as it is standardised; w is 0 in warm-up, then rises.",
    "Whether the policy is better: margins grow under any objective.",
)
MASS = Guide(
    "Left: each state's share of all routing weight so far. Right: how many pairs' worth of loss "
    "was taken with the label reversed (flip) or as a tie.",
    "Shares settle after warm-up; corrections start with γ and stay far below the pairs seen.",
    "How many labels are wrong: clean pairs add to the mass of flip too.",
)
SHADOW_MASS = Guide(
    "Left: each state's share of all routing weight so far. Right: how many pairs' worth of loss "
    "PLC-DPO would have taken with the label reversed (flip) or as a tie. Hatched and dotted: it "
    "was logged, not applied.",
    "It looks like that of a PLC-DPO run on the same data: then the correction changes little of "
    "what the routing sees.",
    "Anything about this run's training: the routing did not touch its loss.",
)
PHASE = Guide(
    "How much of all correction weight w each fifth of the training steps gave; hover a bar for "
    "the mean w there. The paper reports 1.9 % in the first fifth.",
    "Little in the first fifth, most at the end.",
    "That correcting late is right, only that it happened late.",
)


SHADOW_PHASE = Guide(
    "How much of all weight w that PLC-DPO would have given fell in each fifth of the training "
    "steps. Hatched: it was logged, not applied.",
    PHASE.healthy,
    "Anything about this run's training: nothing was corrected.",
)


def page() -> None:
    """Draw the page."""
    chosen = head("Routing", "What did the method do to the data, and when?")
    if chosen is None:
        return
    root, name = chosen
    with shown_errors(name):
        run = open_training(root, name)
        found = read_digest(run)
        if not found.visits:
            st.info("No pair of this run has been visited yet.")
            return
        bar = st.container(horizontal=True, vertical_alignment="center")
        section = bar.segmented_control(
            "Settings",
            SECTIONS,
            key=kept("settings", SECTIONS[0], TEXT, SECTIONS),
            required=True,
            label_visibility="collapsed",
        )
        if section == SECTIONS[1]:
            rerouting(name)
            return
        triangle = bar.toggle("Triangle of q", key=kept("triangle", False, FLAG))
        _summary(run, found, _means(str(found.folder), found))
        _charts(run, found, triangle)


@st.cache_data(max_entries=8, show_spinner=False)
def _means(folder: str, _found: Digest) -> dict[str, float]:
    return means(_found, ["q_clean", "q_flip", "q_tie"])


def _summary(run: Run, found: Digest, mean: dict[str, float]) -> None:
    steps = found.steps()
    reversed_ = steps["weight_flip"].sum() / max(steps["visits"].sum(), 1)
    shadow = is_shadow(run)
    if shadow:
        with st.container(horizontal=True, vertical_alignment="center", key="shadow"):
            st.badge("Shadow routing", icon=":material/visibility:", color="gray")
            st.caption(plain(shadow_note(run)), width="content")
    cells = {"loss that would be reversed" if shadow else "loss taken reversed": f"{reversed_:.2%}"}
    noise = None
    try:
        noise = noise_of(run)
        if records_noise(run):
            cells["reversed labels, estimate"] = noise.short if noise else "not known yet"
    except RunError as error:  # the other numbers need no metrics
        st.warning(f"The estimate of reversed labels cannot be read. {plain(str(error))}")
    cells |= {f"mean q_{state}": f"{mean[f'q_{state}']:.3f}" for state in STATES}
    cells["pairs visited"] = f"{int(mean['visited']):,} of {found.size:,}"
    cells["visits"] = f"{found.visits:,}"
    helps = dict.fromkeys((f"mean q_{state}" for state in STATES), "Over pairs, at the last visit")
    helps["visits"] = f"Up to step {found.last_step:,}"
    if noise is not None:
        helps["reversed labels, estimate"] = noise_sentence(noise)
    tiles = st.container(
        horizontal=True, gap="medium", horizontal_alignment="distribute", key="tiles"
    )
    for label, value in cells.items():
        tiles.metric(label.replace("_", r"\_"), value, help=helps.get(label), width="content")


def shadow_note(run: Run) -> str:
    """What a run did instead of correcting, whose routing is a shadow."""
    objective = str(config_of(run).get("objective", "?"))
    if objective == "plc":
        return "This run only takes weight from pairs: it reverses no label and makes no tie."
    return (
        f"Trained with {objective.upper()}, which reverses nothing: these are the weights that "
        "PLC-DPO would have given."
    )


def noise_sentence(noise: NoiseEstimate) -> str:
    """How noisy the data are by the run's own estimate, and what the estimate is of."""
    return (
        f"Estimated share of reversed labels: **{noise.rate:.1%}** "
        f"\\[{noise.low:.1%}, {noise.high:.1%}\\] (95 %), from the margins alone, "
        f"at the end of the first epoch (step {noise.step:,}): later the policy remembers "
        "its labels. Pairs that were visited later than the first steps have a p\\_flip each."
    )


def _charts(run: Run, found: Digest, triangle: bool) -> None:
    config, shadow = config_of(run), is_shadow(run)
    total = run.status.get("total_steps")
    figures = _figures(
        str(found.folder),
        shadow,
        total if isinstance(total, int) else None,
        config,
        triangle,
        found,
    )
    left, right = st.columns(2)
    with left:
        if triangle:
            guide, title = TRIANGLE, "Pairs in the triangle of q"
        else:
            guide, title = STRIP, "Pairs along z"
        chart(title, figures["strip"], guide, "strip", clicked=point_clicked)
    with right:
        guide = MAP if "sd_z" in found.columns else MAP_OF_ONE_VISIT
        chart("A map of the pairs", figures["map"], guide, "map", clicked=point_clicked)
    left, right = st.columns(2)
    with left:
        title = f"From z to q: {recipe_name(config)}"
        chart(title, figures["recipe_map"], RECIPE, "recipe_map")
    with right:
        chart("Values over training", figures["over_training"], SPREAD, "over_training")
    left, right = st.columns([0.62, 0.38])
    with left:
        title = "Cumulative routing weight" + (" · shadow" if shadow else "")
        chart(title, figures["mass"], SHADOW_MASS if shadow else MASS, "mass")
    with right:
        title = "Would-be correction by phase · shadow" if shadow else "Correction by phase"
        chart(title, figures["phases"], SHADOW_PHASE if shadow else PHASE, "phases")


# Drawing takes longer than sending, and everybody who opens the page sees the same figures.
@st.cache_resource(max_entries=4, show_spinner=False)
def _figures(
    folder: str,
    shadow: bool,
    total: int | None,
    config: dict[str, Any],
    triangle: bool,
    _found: Digest,
) -> dict[str, go.Figure]:
    """The figures of the page by their keys."""
    curve = recipe_curve(config)
    names = ["oracle_state", "flipped", "injected_tie"]
    names += ["pair_id", "z", "q_clean", "q_flip", "q_tie", "mean_z", "sd_z", "visits", "last_step"]
    points = sample(_found, Filter(), names, SAMPLED)
    edges = np.linspace(-4, 4, 65)
    cells = {}
    for measure in MEASURES:
        counted = _found.counts(measure)
        cells[measure] = (counted.table, counted.low, counted.high, counted.width)
    steps = _found.steps()
    if triangle:
        some, beads = points.head(TERNARY_POINTS), _beads(config, _found)
        strip = ternary(some, curve, prior_of(config), _found.size, beads)
    else:
        strip = z_strip(points, _groups(points), curve, _found.size)
    return {
        "strip": strip,
        "map": cartography(points.head(MAP_POINTS), _found.size),
        "recipe_map": recipe_map(
            curve, edges, histogram(_found, "z", Filter(), edges), points.head(RECIPE_POINTS)
        ),
        "over_training": over_training(cells, shadow),
        "mass": cumulative_mass(steps, shadow),
        "phases": correction_by_phase(phases_of(steps, total), shadow),
    }


def _groups(points: pd.DataFrame) -> pd.Series | None:
    """The true state of each pair, or its marker; None where neither is known."""
    return audit.groups(points) if audit.knows_flips(points) else None


def _beads(config: dict[str, object], found: Digest) -> pd.DataFrame:
    edges = np.linspace(-4, 4, 33)
    counts = histogram(found, "z", Filter(), edges)
    beads = recipe_curve(config, (edges[:-1] + edges[1:]) / 2)
    return beads.assign(n=counts)[counts > 0] if len(beads) else beads


def recipe_name(config: dict[str, object]) -> str:
    """The run's recipe and prior in a few words."""
    prior = prior_of(config)
    said = f"recipe {config.get('recipe', '?')}"
    return said + (f", prior {', '.join(f'{p:.2f}' for p in prior)}" if prior else "")


page()
