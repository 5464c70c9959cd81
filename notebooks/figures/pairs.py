"""Pictures of pairs before training."""

from __future__ import annotations

import html

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from plc_core.analysis.figures.style import RUN_COLOURS, empty, finish


def length_differences(sizes: pd.DataFrame, bins: int = 41) -> go.Figure:
    """How much longer the chosen answer is, by source, each source's bars adding up to one.

    `sizes` has the columns source, chosen and rejected, in characters. The axis ends at the
    largest of the central 98 %; what lies beyond is counted in the last bars.
    """
    if not len(sizes):
        return empty("There are no pairs.", 300)
    difference = sizes["chosen"] - sizes["rejected"]
    span = max(1.0, float(difference.abs().quantile(0.98)))
    edges = np.linspace(-span, span, bins + 1)
    figure = go.Figure()
    largest = sizes["source"].value_counts().index[: len(RUN_COLOURS)]
    for source, colour in zip(largest, RUN_COLOURS, strict=False):
        values = difference[sizes["source"] == source].clip(-span, span)
        counts, _ = np.histogram(values, edges)
        figure.add_scatter(
            x=edges,
            y=[*(counts / len(values)), 0],
            name=f"{html.escape(str(source))} (n = {len(values):,})",
            mode="lines",
            line={"color": colour, "width": 2, "shape": "hv"},
            hovertemplate="from %{x:.0f} characters: %{y:.1%}<extra></extra>",
        )
    figure.add_vline(0, line={"color": "#888888", "width": 1, "dash": "dot"})
    figure.update_xaxes(title_text="chosen longer than rejected, characters")
    figure.update_yaxes(title_text="share of the source", tickformat=".0%", rangemode="tozero")
    return finish(figure, 300)
