"""Routing of many runs: direction kept at ties, disagreement with a reward, weight by phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.figures.style import (
    INK,
    RUN_COLOURS,
    STATE_COLOURS,
    bar_style,
    empty,
    finish,
    whiskers,
)


def direction_kept(table: pd.DataFrame) -> go.Figure:
    """Mean q_clean − q_flip of injected ties and of the other pairs against the tie rate.

    `table` is that of `ties.direction_kept`; a panel a method.
    """
    methods = list(dict.fromkeys(table["method"]))
    if not methods:
        return empty("No run with injected ties is there yet.", 340)
    figure = make_subplots(rows=1, cols=len(methods), subplot_titles=methods, shared_yaxes=True)
    for place, method in enumerate(methods, start=1):
        own = table[table["method"] == method].sort_values("tie_rate")
        for group, name, colour in (
            ("clean", "unmodified pairs", STATE_COLOURS["clean"]),
            ("injected", "injected ties", STATE_COLOURS["tie"]),
        ):
            rows = own[own[f"n_{group}"] > 0]
            figure.add_scatter(
                x=rows["tie_rate"],
                y=rows[group],
                name=name,
                legendgroup=name,
                showlegend=place == 1,
                mode="lines+markers",
                line={"color": colour, "width": 1.8},
                marker={"size": 7},
                error_y=whiskers(rows[group], rows[f"{group}_low"], rows[f"{group}_high"], colour),
                customdata=rows[f"n_{group}"],
                hovertemplate="%{x:.0%} ties: %{y:.3f}, n = %{customdata:,}<extra></extra>",
                row=1,
                col=place,
            )
        figure.update_xaxes(title_text="share of injected ties", tickformat=".0%", col=place)
    figure.update_yaxes(title_text="mean q_clean − q_flip", rangemode="tozero", col=1)
    return finish(figure, 360).update_layout(legend_y=1.12, margin_t=84)


def disagreement(found: Mapping[str, Any]) -> go.Figure:
    """How often an independent reward disagrees with the label, by tenths of q_flip.

    `found` are `confirmation.Disagreement` by policy. On the diagonal q_flip would be the chance
    of disagreement.
    """
    figure = go.Figure()
    line = {"color": INK, "dash": "dot", "width": 1.2}
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line=line, name="equal", hoverinfo="skip")
    for number, (policy, own) in enumerate(found.items()):
        rows = own.curve[own.curve["n"] > 0]
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        figure.add_scatter(
            x=rows["q_flip"],
            y=rows["share"],
            name=f"{policy} (n = {own.n:,})",
            mode="lines+markers",
            line={"color": colour, "width": 1.8},
            marker={"size": 7},
            error_y=whiskers(rows["share"], rows["low"], rows["high"], colour),
            customdata=rows["n"],
            hovertemplate="mean q_flip %{x:.2f}: %{y:.1%}, n = %{customdata:,}<extra></extra>",
        )
    figure.update_xaxes(title_text="mean q_flip of a tenth of the pairs", range=[-0.02, 1.02])
    figure.update_yaxes(title_text="reward prefers the rejected answer", tickformat=".0%")
    return finish(figure, 380)


def correction_phases(table: pd.DataFrame) -> go.Figure:
    """Share of the whole correction weight in each phase of training, and the mean weight.

    `table` is that of `confirmation.correction_by_phase`.
    """
    figure = make_subplots(
        rows=1, cols=2, subplot_titles=["share of the correction weight", "mean weight w"]
    )
    for number, (method, own) in enumerate(table.groupby("method", sort=False)):
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        phases = [f"{a:.0%} to {b:.0%}" for a, b in zip(own["from"], own["to"], strict=True)]
        for place, column in enumerate(("share", "mean"), start=1):
            bars = whiskers(own["mean"], own["low"], own["high"], colour) if place == 2 else None
            figure.add_bar(
                x=phases,
                y=own[column],
                name=str(method),
                legendgroup=str(method),
                showlegend=place == 1,
                marker=bar_style(colour),
                error_y=bars,
                hovertemplate=f"{method}, %{{x}}: %{{y:.3f}}<extra></extra>",
                row=1,
                col=place,
            )
    figure.update_xaxes(title_text="of training")
    figure.update_yaxes(tickformat=".0%", col=1)
    return finish(figure, 360, barmode="group").update_layout(legend_y=1.12, margin_t=84)
