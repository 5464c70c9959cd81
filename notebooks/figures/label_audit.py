"""Pictures of a label audit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from plc_core.analysis.figures.style import INK, STATE_COLOURS, empty, finish

_MARGIN = {"l": 8, "r": 12, "t": 12, "b": 48}


def p_flip_histogram(p_flip: NDArray[np.float64]) -> go.Figure:
    """How many pairs have which probability of a reversed label; the suspicious half in colour."""
    if not len(p_flip):
        return empty("There are no pairs.", 260)
    counts, edges = np.histogram(p_flip, np.linspace(0, 1, 41))
    centres = (edges[1:] + edges[:-1]) / 2
    colours = [STATE_COLOURS["flip" if centre > 0.5 else "clean"] for centre in centres]
    figure = go.Figure(
        go.Bar(
            x=centres,
            y=counts,
            marker={"color": colours},
            hovertemplate="p_flip near %{x:.2f}: %{y:,} pairs<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="p_flip", range=[0, 1])
    figure.update_yaxes(title_text="pairs", rangemode="tozero")
    return finish(figure, 280, bargap=0.05, showlegend=False, margin=_MARGIN)


def agreement(table: pd.DataFrame, rate: float | None) -> go.Figure:
    """Share of labels that the evidence agrees with, by its size: it levels off at one minus the
    noise rate.

    Args:
        table: of `audit_report.agreement_by_margin`.
        rate: the noise rate; None where it is not known.
    """
    if table.empty:
        return empty("There are too few pairs.", 260)
    figure = go.Figure(
        go.Scatter(
            x=table["margin"],
            y=table["agrees"],
            mode="lines+markers",
            line={"color": STATE_COLOURS["clean"], "width": 2},
            customdata=table["pairs"],
            hovertemplate="|margin| %{x:.2f}: %{y:.1%} of %{customdata:,}<extra></extra>",
        )
    )
    figure.add_hline(0.5, line={"color": INK, "width": 1, "dash": "dot"})
    if rate is not None:
        line = {"color": STATE_COLOURS["flip"], "width": 1, "dash": "dash"}
        figure.add_hline(1 - rate, line=line, annotation_text="one minus the noise rate")
    figure.update_xaxes(title_text="size of the evidence, |margin|", rangemode="tozero")
    figure.update_yaxes(title_text="labels that agree", tickformat=".0%")
    return finish(figure, 280, showlegend=False, margin=_MARGIN)
