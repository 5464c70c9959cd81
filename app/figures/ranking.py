"""Figures of rankings and of distributions by group."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from plc_core.analysis.figures.style import (
    GROUP_COLOURS,
    INK,
    STATE_COLOURS,
    empty,
    finish,
    literal,
    whiskers,
)

_SYMBOLS = ("circle", "diamond-open", "square-open")
_MEANS = {"label swapped": "marked", "label not swapped": "unmarked"}


def precision_curves(tables: Mapping[str, pd.DataFrame]) -> go.Figure:
    """The share of reversed pairs among the k that rank first, with Wilson's band, against k.

    `tables` are those of `inspection.precision_at_k.precision_at`, by the name of the score: the
    first in the colour of flip, as it is a routing weight, its rivals in grey.
    """
    drawn = {name: table for name, table in tables.items() if len(table)}
    if not drawn:
        return empty("No pair has a score and a known label, so no precision can be measured.", 330)
    figure = go.Figure()
    for number, (name, table) in enumerate(drawn.items()):
        colour = INK if number else STATE_COLOURS["flip"]
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        figure.add_scatter(
            x=[*table["k"], *table["k"][::-1]],
            y=[*table["high"], *table["low"][::-1]],
            fill="toself",
            fillcolor=f"rgba({red},{green},{blue},0.15)",
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
        )
        figure.add_scatter(
            x=table["k"],
            y=table["precision"],
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 2, "dash": ("solid", "dash", "dot")[number % 3]},
            marker={"size": 5},
            customdata=table[["low", "high", "recall"]].to_numpy(),
            hovertemplate=f"{name}, first %{{x:,}}: %{{y:.1%}} [%{{customdata[0]:.1%}}, "
            "%{customdata[1]:.1%}], %{customdata[2]:.1%} of all found<extra></extra>",
        )
    base = next(iter(drawn.values()))["base_rate"].iloc[0]
    figure.add_hline(
        y=base,
        line={"color": INK, "dash": "dot", "width": 1.2},
        annotation={"text": f"by chance {base:.1%}", "font": {"size": 11}},
        annotation_position="bottom right",
    )
    figure.update_xaxes(title_text="first k of the ranking", type="log", dtick=1)
    figure.update_yaxes(title_text="share reversed", tickformat=".0%", rangemode="tozero")
    return finish(figure, 330, margin_t=40)


def area_intervals(areas: pd.DataFrame) -> go.Figure:
    """AUROCs with their intervals, a row a comparison: q_tie in its colour, its rivals in grey.

    `areas` is the table of `inspection.verdicts.tie_areas`.
    """
    if areas.empty:
        return empty("This run has neither known ties nor scores to find them by.", 330)
    figure = go.Figure()
    where = areas["ties"] + "<br>against " + areas["others"]
    rows = {name: row for row, name in enumerate(where.unique())}
    scores = areas["score"].unique()
    for number, score in enumerate(scores):
        own = areas[areas["score"] == score]
        beside = 0.24 * (number - (len(scores) - 1) / 2)
        colour = STATE_COLOURS["tie"] if score == "q_tie" else INK
        figure.add_scatter(
            x=own["auroc"],
            y=where[areas["score"] == score].map(rows) + beside,
            name=score,
            mode="markers",
            marker={"color": colour, "size": 10, "symbol": _SYMBOLS[number % len(_SYMBOLS)]},
            error_x=whiskers(own["auroc"], own["low"], own["high"], colour),
            customdata=own[["low", "high", "n_tie", "n_other"]].to_numpy(),
            hovertemplate=f"{score}: %{{x:.3f}} [%{{customdata[0]:.3f}}, %{{customdata[1]:.3f}}], "
            "n = %{customdata[2]:,} and %{customdata[3]:,}<extra></extra>",
        )
    figure.add_vline(
        x=0.5,
        line={"color": INK, "dash": "dot", "width": 1.2},
        annotation={"text": "guessing", "font": {"size": 11}},
        annotation_position="bottom left",
    )
    figure.update_xaxes(title_text="AUROC")
    figure.update_yaxes(
        tickvals=list(rows.values()),
        ticktext=list(rows),
        range=[len(rows) - 0.5, -0.5],
        showgrid=False,
    )
    return finish(figure, 330, margin_t=40)


def distributions(
    groups: Mapping[str, np.ndarray], measure: str, bins: int = 40, height: int = 330
) -> go.Figure:
    """How a measure is spread in some groups, each group's steps adding up to one.

    `groups` are arrays of values by name; NaN are left out, and values beyond the central 99.8 %
    are counted in the last bins.
    """
    known = {name: values[np.isfinite(values)] for name, values in groups.items()}
    known = {name: values for name, values in known.items() if len(values)}
    if not known:
        return empty("No group has a value.", height)
    together = np.concatenate(list(known.values()))
    low, high = np.quantile(together, [0.001, 0.999])
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, bins + 1)
    figure = go.Figure()
    for number, (name, values) in enumerate(known.items()):
        counts, _ = np.histogram(values.clip(low, high), edges)
        colour = GROUP_COLOURS.get(_MEANS.get(name, name.removeprefix("true state ")), INK)
        figure.add_scatter(
            x=edges,
            y=[*(counts / len(values)), 0],
            name=f"{literal(name)} (n = {len(values):,})",
            mode="lines",
            line={
                "color": colour,
                "width": 2,
                "shape": "hv",
                "dash": ("solid", "dash", "dot")[number % 3],
            },
            hovertemplate=f"{literal(name)}, from %{{x:.3g}}: %{{y:.1%}}<extra></extra>",
        )
    figure.update_xaxes(title_text=literal(measure))
    figure.update_yaxes(title_text="share of the group", tickformat=".0%", rangemode="tozero")
    return finish(figure, height, margin_t=40)
