"""Losses and gradients of objectives against the margin."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.figures.style import INK, RUN_COLOURS, empty, finish

_ACROSS, _REFERENCE = 5, "dpo"
_OWN = RUN_COLOURS[0]


def objective_curves(table: pd.DataFrame) -> go.Figure:
    """Loss and dL/dm of each objective over the margin m, a panel an objective.

    `table` is that of `studies.objective_curves`. DPO's two lines lie in grey behind the others'.
    """
    if table.empty:
        return empty("No objective to draw.", 460)
    parts = dict(list(table.groupby("objective", sort=False)))
    across = min(_ACROSS, len(parts))
    rows = -(-len(parts) // across)
    figure = make_subplots(
        rows=rows,
        cols=across,
        subplot_titles=list(map(str, parts)),
        shared_xaxes="all",
        shared_yaxes="all",
        horizontal_spacing=0.02,
        vertical_spacing=0.26 / rows,
    )
    behind = 0
    for place, (name, own) in enumerate(parts.items()):
        where = {"row": place // across + 1, "col": place % across + 1}
        lines = [(own, _OWN, 2.2)]
        if _REFERENCE in parts and name != _REFERENCE:
            lines.insert(0, (parts[_REFERENCE], INK, 1.2))
        for rows_of, colour, width in lines:
            for quantity, dash in (("gradient", "solid"), ("loss", "dash")):
                label = {"loss": "loss", "gradient": "gradient dL/dm"}[quantity]
                # One entry a kind of line: the first panel's own, and the first of DPO behind.
                shown = (place if rows_of is own else behind) == 0
                figure.add_scatter(
                    x=rows_of["margin"],
                    y=rows_of[quantity],
                    name=label if rows_of is own else f"{_REFERENCE}, for comparison",
                    showlegend=shown,
                    legendgroup=quantity if rows_of is own else _REFERENCE,
                    mode="lines",
                    line={"color": colour, "width": width, "dash": dash},
                    hovertemplate=f"{rows_of['objective'].iloc[0]}, {quantity}<br>"
                    "m %{x:.2f}: %{y:.3f}<extra></extra>",
                    **where,
                )
                behind += rows_of is not own
    figure.add_hline(y=0, line={"width": 1, "color": INK, "dash": "dot"})
    figure.update_xaxes(title_text="margin m", row=rows)
    span = float(table["margin"].max())
    # None at the ends, where those of two panels would touch.
    figure.update_xaxes(tickvals=[-span / 2, 0, span / 2])
    # IPO's squares and SimPO's target dwarf the others; what matters is the shape near the rest.
    figure.update_yaxes(range=[-1.6, 4.0])
    figure.update_annotations(font_size=13)
    return finish(figure, 60 + 200 * rows).update_layout(legend_y=1.0 + 0.14 / rows, margin_t=70)
