"""The figure of pairs in the triangle of the routing weights q."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from plc_core.analysis.audit import STATES
from plc_core.analysis.figures.style import (
    GRID,
    INK,
    STATE_COLOURS,
    empty,
    finish,
    notice,
)
from plc_core.typography import minus

TERNARY_POINTS = 2_000
"""Most points that are drawn: the triangle is drawn without WebGL."""

_MARKS_OF_Z = (-2, -1, -0.5, 1)
"""Not 0: there q is the prior, which has a mark of its own."""


def ternary(
    points: pd.DataFrame,
    curve: pd.DataFrame,
    prior: tuple[float, float, float] | None,
    total: int,
    beads: pd.DataFrame | None = None,
) -> go.Figure:
    """Pairs in the triangle of routing weights, the curve that z traces in it, and the prior.

    Args:
        points: pair_id, z and q of some pairs, at most `TERNARY_POINTS`.
        curve: `recipes.recipe_curve` of the run; empty where its recipe is not known.
        prior: of clean, flip and tie.
        total: pairs of which the points are a sample.
        beads: places on the curve (z and q) with the pairs `n` near each, drawn as circles whose
            area is n.

    q depends on z alone (equation "posterior"), so the pairs lie on one curve.
    """
    known = points[np.isfinite(points[["q_clean", "q_flip", "q_tie"]].to_numpy(float)).all(axis=1)]
    if known.empty:
        return empty("No pair has been visited yet.", 430)
    figure = go.Figure()
    if len(curve):
        figure.add_scatterternary(
            **_corners(curve),
            mode="lines",
            line={"color": INK, "width": 2},
            name="z from −4 to 4",
            hoverinfo="skip",
        )
    if beads is not None and len(beads):
        figure.add_scatterternary(
            **_corners(beads),
            mode="markers",
            name="how many",
            marker={
                "size": 42 * np.sqrt(beads["n"] / beads["n"].max()),
                "color": "rgba(122,127,135,0.16)",
                "line": {"width": 1, "color": "rgba(122,127,135,0.55)"},
            },
            customdata=beads[["n", "z"]].to_numpy(),
            hovertemplate="%{customdata[0]:,} pairs near z %{customdata[1]:.2f}<extra></extra>",
        )
    figure.add_scatterternary(
        **_corners(known),
        mode="markers",
        name="pairs",
        customdata=known[["pair_id", "z"]].to_numpy(),
        marker={"size": 6, "opacity": 0.6, "color": _mixed(known), "line": {"width": 0}},
        hovertemplate="%{customdata[0]}<br>z %{customdata[1]:.2f} · clean %{c:.2f}, "
        "flip %{b:.2f}, tie %{a:.2f}<extra></extra>",
    )
    if len(curve):
        marks = curve.iloc[[int((curve["z"] - z).abs().argmin()) for z in _MARKS_OF_Z]]
        figure.add_scatterternary(
            **_corners(marks),
            mode="markers+text",
            text=[minus(f"z = {z:g}") for z in _MARKS_OF_Z],
            textposition="bottom center",
            textfont={"size": 11},
            marker={"size": 4, "color": INK},
            showlegend=False,
            hoverinfo="skip",
        )
    if prior is not None:
        figure.add_scatterternary(
            a=[prior[2]],
            b=[prior[1]],
            c=[prior[0]],
            mode="markers",
            name="prior π⁰, at z = 0",
            marker={
                "symbol": "diamond-open",
                "size": 13,
                "color": INK,
                "line": {"width": 2.5, "color": INK},
            },
            hovertemplate="prior: clean %{c:.2f}, flip %{b:.2f}, tie %{a:.2f}<extra></extra>",
        )
    axis: dict[str, Any] = {"gridcolor": GRID, "linecolor": GRID, "tickfont": {"size": 10}}
    # No tick at 0 and 1: at a corner the ends of two axes and its name would meet.
    axis |= {"tickvals": [0.25, 0.5, 0.75], "tickformat": ".2f", "ticks": ""}
    figure = finish(figure, 400, margin={"l": 40, "r": 40, "t": 44, "b": 30})
    figure.update_layout(
        ternary={
            "sum": 1,
            "bgcolor": "rgba(0,0,0,0)",
            "aaxis": axis | {"title": _title("tie")},
            "baxis": axis | {"title": _title("flip")},
            "caxis": axis | {"title": _title("clean")},
        },
        legend={"y": 1.06},
        clickmode="event+select",
    )
    if len(known) < total:
        notice(figure, f"dots: {len(known):,} of<br>{total:,} pairs,<br>at random")
        figure.layout.annotations[-1].update(y=0.8, align="right")
    return figure


def _corners(table: pd.DataFrame) -> dict[str, pd.Series]:
    return {"a": table["q_tie"], "b": table["q_flip"], "c": table["q_clean"]}


def _mixed(table: pd.DataFrame) -> list[str]:
    """The states' colours mixed by q: the colour says again what the place says."""
    colours = np.array(
        [[int(STATE_COLOURS[s][i : i + 2], 16) for i in (1, 3, 5)] for s in STATES], float
    )
    mixed = table[[f"q_{s}" for s in STATES]].to_numpy(float) @ colours
    return [f"rgb({r:.0f},{g:.0f},{b:.0f})" for r, g, b in mixed]


def _title(state: str) -> dict[str, object]:
    return {"text": f"<b>{state}</b>", "font": {"color": STATE_COLOURS[state], "size": 14}}
