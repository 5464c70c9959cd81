"""Losses and gradients of objectives against the margin."""

from __future__ import annotations

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.figures.style import empty, finish

_COLOURS = px.colors.qualitative.Dark24
_DASHES = ("solid", "dash", "dot")
_EMPHASISED = {"dpo": "#555555", "plc": "#D55E00"}


def objective_curves(table: pd.DataFrame) -> go.Figure:
    """Loss and dL/dm of each objective over the margin m, side by side.

    `table` is that of `evaluation.objectives.objective_curves`. DPO and PLC-DPO are drawn thick;
    a click in the legend hides a line, a double click shows it alone.
    """
    if table.empty:
        return empty("No objective to draw.", 460)
    figure = make_subplots(
        rows=1, cols=2, subplot_titles=("loss", "gradient dL/dm"), horizontal_spacing=0.08
    )
    # The two that the reader compares are drawn last, on top of what coincides with them.
    parts = list(enumerate(table.groupby("objective", sort=False)))
    for number, (name, rows) in sorted(parts, key=lambda part: part[1][0] in _EMPHASISED):
        for column, quantity in enumerate(("loss", "gradient"), start=1):
            figure.add_scatter(
                x=rows["margin"],
                y=rows[quantity],
                name=str(name),
                legendgroup=str(name),
                showlegend=column == 1,
                mode="lines",
                line={
                    "color": _EMPHASISED.get(str(name), _COLOURS[number % len(_COLOURS)]),
                    "width": 3.5 if name in _EMPHASISED else 1.6,
                    "dash": "solid" if name in _EMPHASISED else _DASHES[number % len(_DASHES)],
                },
                hovertemplate=f"{name}<br>m %{{x:.2f}}: %{{y:.3f}}<extra></extra>",
                row=1,
                col=column,
            )
    figure.add_hline(y=0, line={"width": 1, "color": "rgba(128,128,128,0.6)"}, row=1, col=2)
    figure.update_xaxes(title_text="margin m, in standard deviations")
    # IPO's squares and SimPO's target dwarf the others; what matters is the shape near the rest.
    figure.update_yaxes(range=[-1.5, 5.0], col=1)
    figure.update_yaxes(range=[-1.6, 0.6], col=2)
    return finish(figure, 480).update_layout(legend_y=1.16, margin_t=110)
