"""Figures of where pairs are routed: along z, by the recipe's curves, on the map of pairs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.audit import STATES
from plc_core.analysis.figures.style import (
    GROUP_COLOURS,
    INK,
    STATE_COLOURS,
    empty,
    finish,
    notice,
)

Q_SCALE = [[0.0, "rgba(128,128,128,0.45)"], [0.5, "#E39A6A"], [1.0, STATE_COLOURS["flip"]]]
"""From grey to the colour of flip: how large q_flip is."""

SAMPLED, MAP_POINTS, RECIPE_POINTS = 6_000, 3_000, 150
"""Pairs that a spread is drawn from; dots of the map and on the recipe's curves: twice as many take
a browser without a GPU a fifth longer for the whole page."""

RUG_POINTS = 300
"""Pairs of a group that the strip marks singly."""

Z_END = 4.0
"""Where the axis of z ends; pairs beyond it are drawn at its end."""


def z_strip(
    points: pd.DataFrame, group: pd.Series | None, curve: pd.DataFrame, total: int
) -> go.Figure:
    """How z is spread, a line a group of pairs, over a rug of single pairs.

    Args:
        points: pair_id, z, q_clean, q_flip and q_tie of some pairs at their last visit.
        group: the true state or the marker of each point; None where neither is known.
        curve: as in `ternary`; where its largest q changes there is a border.
        total: pairs of which the points are a sample.
    """
    known = np.isfinite(points["z"].to_numpy(float))
    if not known.any():
        return empty("No pair has been visited yet.", 400)
    points = points[known]
    named = pd.Series("pairs", points.index) if group is None else group[known]
    names = [name for name in (*GROUP_COLOURS, "pairs") if (named == name).any()]
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, row_heights=[0.66, 0.34], vertical_spacing=0.03
    )
    edges = np.linspace(-Z_END, Z_END, 65)
    for name in names:
        own, colour = points[named == name], GROUP_COLOURS.get(name, INK)
        counts, _ = np.histogram(own["z"].clip(-Z_END, Z_END), edges)
        figure.add_scatter(
            x=edges,
            y=[*(counts / len(own)), 0],
            name=name,
            mode="lines",
            line={"color": colour, "width": 2, "shape": "hv"},
            hovertemplate=f"{name}, z from %{{x:.2f}}: %{{y:.1%}}<extra></extra>",
            row=1,
            col=1,
        )
        rug = own.head(RUG_POINTS)
        figure.add_scatter(
            x=rug["z"].clip(-Z_END, Z_END),
            y=[name] * len(rug),
            mode="markers",
            marker={"symbol": "line-ns", "size": 16, "opacity": 0.5}
            | {"line": {"color": colour, "width": 1.2}},
            customdata=rug[["pair_id", "z", "q_clean", "q_flip", "q_tie"]].to_numpy(),
            hovertemplate="%{customdata[0]}<br>z %{customdata[1]:.2f} · clean %{customdata[2]:.2f},"
            " flip %{customdata[3]:.2f}, tie %{customdata[4]:.2f}<extra></extra>",
            showlegend=False,
            row=2,
            col=1,
        )
    for at, left, right in borders(curve):
        figure.add_vline(x=at, line={"color": INK, "dash": "dot", "width": 1.2})
        figure.add_annotation(
            text=f"{left} | {right}",
            x=at,
            y=1,
            yref="y domain",
            showarrow=False,
            yanchor="bottom",
            font={"size": 11},
        )
    figure.update_yaxes(title_text="share of the group", tickformat=".0%", row=1)
    figure.update_yaxes(autorange="reversed", showgrid=False, row=2)
    figure.update_xaxes(title_text="standardised margin z, last visit", row=2)
    figure.update_xaxes(range=[-Z_END - 0.1, Z_END + 0.1])
    figure = finish(figure, 400, margin_t=52, legend_y=1.08, clickmode="event+select")
    return figure.update_layout(showlegend=len(names) > 1)


def borders(curve: pd.DataFrame) -> list[tuple[float, str, str]]:
    """Where the largest q changes along z: z, and the states on its left and right."""
    if curve.empty:
        return []
    side = curve[[f"q_{s}" for s in STATES]].to_numpy().argmax(axis=1)
    places = np.flatnonzero(np.diff(side))
    return [
        (float(curve["z"].iloc[i : i + 2].mean()), STATES[side[i]], STATES[side[i + 1]])
        for i in places
    ]


def recipe_map(
    curve: pd.DataFrame,
    edges: np.ndarray,
    counts: np.ndarray,
    points: pd.DataFrame | None = None,
    logged: pd.DataFrame | None = None,
) -> go.Figure:
    """q against z by the run's recipe, over how the pairs' last z are spread.

    Args:
        curve: `recipes.recipe_curve`; empty where the recipe is not known.
        edges, counts: the histogram of z at the last visit.
        points: some pairs (z and q as the run recorded them), which lie on the curves where the
            run followed its recipe.
        logged: the run's own curve, dotted, where `curve` is that of other settings.
    """
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, row_heights=[0.72, 0.28], vertical_spacing=0.04
    )
    for state in STATES:
        if len(curve):
            figure.add_scatter(
                x=curve["z"],
                y=curve[f"q_{state}"],
                name=f"q_{state}",
                mode="lines",
                line={"color": STATE_COLOURS[state], "width": 2.4},
                hovertemplate=f"z %{{x:.2f}}: q_{state} %{{y:.3f}}<extra></extra>",
                row=1,
                col=1,
            )
        if logged is not None:
            figure.add_scatter(
                x=logged["z"],
                y=logged[f"q_{state}"],
                mode="lines",
                line={"color": STATE_COLOURS[state], "width": 1.4, "dash": "dot"},
                showlegend=False,
                hovertemplate=f"z %{{x:.2f}}: q_{state} %{{y:.3f}}, as logged<extra></extra>",
                row=1,
                col=1,
            )
        if points is not None and len(points):
            figure.add_scatter(
                x=points["z"],
                y=points[f"q_{state}"],
                mode="markers",
                marker={"color": STATE_COLOURS[state], "size": 4, "opacity": 0.45},
                name=f"q_{state}",
                showlegend=not len(curve),
                hovertemplate=f"z %{{x:.2f}}: q_{state} %{{y:.3f}}, as recorded<extra></extra>",
                row=1,
                col=1,
            )
    share = counts / max(int(counts.sum()), 1)
    figure.add_bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=share,
        marker={"color": "rgba(122,127,135,0.55)", "line": {"width": 0}},
        showlegend=False,
        customdata=counts,
        hovertemplate="z near %{x:.2f}: %{customdata:,} pairs (%{y:.1%})<extra></extra>",
        row=2,
        col=1,
    )
    figure.update_yaxes(title_text="q", range=[-0.03, 1.03], row=1)
    figure.update_yaxes(title_text="pairs", tickformat=".0%", nticks=3, row=2)
    figure.update_xaxes(title_text="standardised margin z, last visit", range=[-4, 4], row=2)
    return finish(figure, 430, bargap=0.04, margin_t=36)


def cartography(points: pd.DataFrame, total: int) -> go.Figure:
    """Each pair's mean z against its spread over visits, coloured by q_flip at the last one.

    `points` has pair_id, mean_z, sd_z, visits, last_step, z and q_flip of some pairs. Where every
    pair was visited once there is no spread, and z is drawn against the step of the visit.
    The data map of Swayamdipta et al. 2020, with z in place of a class's probability.
    """
    spread = "sd_z" in points and points["sd_z"].notna().any()
    x, y = ("sd_z", "mean_z") if spread else ("last_step", "z")
    known = points.dropna(subset=[x, y])
    if known.empty:
        return empty("No pair has been visited yet.", 430)
    figure = go.Figure()
    figure.add_hline(y=0, line={"color": INK, "dash": "dot", "width": 1})
    figure.add_scattergl(
        x=known[x],
        y=known[y],
        mode="markers",
        customdata=known[["pair_id", "q_flip", "visits"]].to_numpy(),
        marker={
            "size": 5,
            "opacity": 0.7,
            "color": known["q_flip"],
            "colorscale": Q_SCALE,
            "cmin": 0,
            "cmax": 1,
            "colorbar": {
                "title": {"text": "q_flip", "side": "right"},
                "thickness": 8,
                "outlinewidth": 0,
                "len": 0.8,
                "tickvals": [0, 0.5, 1],
            },
        },
        hovertemplate="%{customdata[0]}<br>%{y:.2f} at %{x:.3g}, q_flip %{customdata[1]:.2f}, "
        "%{customdata[2]} visits<extra></extra>",
        showlegend=False,
    )
    names = {
        "sd_z": "spread of z over visits (standard deviation)",
        "mean_z": "mean z over visits",
        "last_step": "optimizer step of the visit",
        "z": "z at the one visit",
    }
    figure.update_xaxes(title_text=names[x], rangemode="tozero")
    figure.update_yaxes(title_text=names[y])
    figure = finish(figure, 400, margin_t=16, clickmode="event+select", dragmode="zoom")
    if len(known) < total:
        notice(figure, f"{len(known):,} of {total:,} pairs, a random sample")
    return figure
