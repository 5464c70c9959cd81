"""The part of the page Routing that moves the run's settings over its stored margins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from elements import Guide, chart, heading
from figures.ranking import precision_curves
from figures.routing import recipe_map
from inspection.digest import Digest
from inspection.precision_at_k import precision_at
from inspection.queries import columns
from inspection.rerouting import (
    Routed,
    Settings,
    Stored,
    changed_sides,
    recorded,
    reroute,
    stored,
)
from numpy.typing import NDArray
from reading import config_of, open_training, read_digest, runs_root, shown_errors
from selection import PAIRS_PAGE
from state import RANGE, REAL, kept, set_kept

from plc_core.analysis import audit
from plc_core.runs import Run
from plc_core.typography import minus

SLIDERS = {
    # name: label, lowest, highest, step
    "prior_flip": ("prior of flip", 0.01, 0.49, 0.01),
    "prior_tie": ("prior of tie", 0.0, 0.49, 0.01),
    "tau_dir": ("τ_dir, clean against flip", 0.1, 2.0, 0.05),
    "tau_tie": ("τ_tie", 0.1, 2.0, 0.05),
    "kappa": ("κ, confidence power", 0.1, 3.0, 0.1),
    "gamma_max": ("γ_max, strength", 0.0, 1.0, 0.05),
}
CAVEAT = (
    "The margins stay those of this run. Trained under other settings, the policy would have moved "
    "too."
)
CURVES = Guide(
    "Lines: q against z under the settings on the left; dotted: as logged. Bars: how the pairs' "
    "last z are spread.",
    "Solid on dotted lines until a slider is moved.",
    CAVEAT,
)
PRECISION = Guide(
    "Of the k pairs of the highest w · q_flip, the share known to be reversed, with Wilson's band; "
    "ties are left out.",
    "A curve above the other's band finds more.",
    "The order by q_flip alone is that of z, whatever prior and temperatures: only w changes it.",
)
SIDES = Guide(
    "A pair's side is its largest q. Each line opens its pairs.",
    "None until a slider is moved.",
    CAVEAT,
)
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Base:
    """What no slider changes: the stored pairs, which are reversed, the routing as logged."""

    pairs: Stored
    reversed: NDArray[np.bool_] | None
    ranked: NDArray[np.bool_]
    logged: Routed
    precision: pd.DataFrame
    off: float


def rerouting(name: str) -> None:
    """Draw sliders, and what they change."""
    _moved(name)


@st.fragment
def _moved(name: str) -> None:
    with shown_errors(name):
        run = open_training(runs_root(), name)
        found = read_digest(run)
        config = config_of(run)
        own = recorded(config)
        base = _base(str(found.folder), found, run, own)
        if base.off > TOLERANCE:
            st.info(
                "This run's q do not follow from z and its settings alone, as where pairs have "
                "priors of their own; they cannot be routed anew here."
            )
            return
        st.caption(CAVEAT)
        left, right = st.columns([0.26, 0.74], gap="medium")
        with left:
            settings = _sliders(name, own)
        routed = reroute(base.pairs, config, settings)
        with right:
            _tiles(base.logged.mass(), routed.mass())
            _curves(config, base, own, settings)
        left, right = st.columns([0.34, 0.66])
        with left, st.container(border=True, height="stretch"):
            _sides(name, changed_sides(base.pairs.z, base.logged, routed), len(base.pairs.z))
        if base.reversed is not None:
            with right:
                now = precision_at(routed.reversal[base.ranked], base.reversed)
                both = {"these settings": now, "as logged": base.precision}
                chart("Precision at k by w · q_flip", precision_curves(both), PRECISION, "re_at_k")


@st.cache_resource(max_entries=2, show_spinner="Reading the margins …")
def _base(folder: str, _found: Digest, _run: Run, own: Settings) -> Base:
    names = ["z", "q_clean", "q_flip", "q_tie", "weight", "last_step"]
    names += ["oracle_state", "flipped", "injected_tie"]
    table = columns(_found, names)
    table = table[np.isfinite(table["z"])].reset_index(drop=True)
    total = _run.status.get("total_steps")
    steps = total if isinstance(total, int) else int(table["last_step"].max()) + 1
    pairs = stored(table["z"].to_numpy(), table["last_step"].to_numpy(), steps)
    logged = reroute(pairs, config_of(_run), own)
    q = table[["q_clean", "q_flip", "q_tie"]].to_numpy(np.float32)
    off = float(np.abs(logged.q - q).max()) if len(q) else 0.0
    if not audit.knows_flips(table):
        return Base(pairs, None, np.zeros(len(q), bool), logged, pd.DataFrame(), off)
    group, (clean, flip, *_) = audit.groups(table), audit.group_names(table)
    ranked = group.isin([clean, flip]).to_numpy()
    reversed_ = (group == flip).to_numpy()[ranked]
    precision = precision_at(logged.reversal[ranked], reversed_)
    return Base(pairs, reversed_, ranked, logged, precision, off)


def _sliders(name: str, own: Settings) -> Settings:
    keys = {slider: f"re_{slider}" for slider in SLIDERS}

    def reset() -> None:
        for slider, key in keys.items():
            set_kept(key, getattr(own, slider))

    if st.session_state.setdefault("rerouted", name) != name:  # each run begins with its own
        st.session_state["rerouted"] = name
        reset()
    chosen = {}
    for slider, (label, low, high, step) in SLIDERS.items():
        default = float(getattr(own, slider))
        low, high = min(low, default), max(high, default)
        key = kept(keys[slider], default, REAL)
        st.session_state[key] = min(max(st.session_state[key], low), high)
        chosen[slider] = st.slider(label.replace("_", r"\_"), low, high, step=step, key=key)
    st.button("As logged", on_click=reset, disabled=Settings(**chosen) == own)
    return Settings(**chosen)


def _tiles(before: Mapping[str, float], after: Mapping[str, float]) -> None:
    tiles = st.container(horizontal=True, gap="medium")
    for what, value in after.items():
        form = "{:.2%}" if what.startswith("w") else "{:.3f}"
        tiles.metric(
            f"mean {what}".replace("_", r"\_"),
            form.format(value),
            f"logged {form.format(before[what])}",
            delta_color="off",
            delta_arrow="off",
            width=125,
        )


def _curves(config: Mapping[str, Any], base: Base, own: Settings, settings: Settings) -> None:
    grid = np.linspace(-4, 4, 161)
    names = ["q_clean", "q_flip", "q_tie"]
    now, logged = (
        pd.DataFrame(reroute(stored(grid, grid * 0, 1), config, s).q, columns=names).assign(z=grid)
        for s in (settings, own)
    )
    edges = np.linspace(-4, 4, 65)
    counts, _ = np.histogram(base.pairs.z, edges)
    chart("From z to q", recipe_map(now, edges, counts, logged=logged), CURVES, "re_curves")


def _sides(name: str, changed: pd.DataFrame, total: int) -> None:
    said = f"Pairs that change side: {changed['pairs'].sum():,} of {total:,}"
    heading(said, SIDES)
    if changed.empty:
        st.caption("Move a slider.")
    for row in changed.itertuples():
        said = f"{row.pairs:,} from {row[1]} to {row.to}, z {row.low:.2f} to {row.high:.2f}"
        st.page_link(
            PAIRS_PAGE,
            label=minus(said),
            query_params={"run": name, "range": "z", "in_z": RANGE.encode((row.low, row.high))[0]},
            icon=":material/arrow_forward:",
        )
