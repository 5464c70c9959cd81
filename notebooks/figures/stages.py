"""Figures of the stages before preference training."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.figures.style import RUN_COLOURS, empty, finish, thin

_PANELS = {
    "loss": "loss, nats per token",
    "mean_token_accuracy": "share of tokens that were the likeliest",
}


def sft_curves(metrics: pd.DataFrame) -> go.Figure:
    """Loss and token accuracy of the supervised stage over optimizer steps."""
    if "loss" not in metrics or metrics.empty:
        return empty("No optimizer step has been logged yet.", 320)
    shown = {name: title for name, title in _PANELS.items() if name in metrics}
    figure = make_subplots(rows=1, cols=len(shown), subplot_titles=list(shown.values()))
    table = thin(metrics.sort_values("step"), 2_000)
    for place, column in enumerate(shown, start=1):
        figure.add_scatter(
            x=table["step"],
            y=table[column],
            mode="lines",
            line={"color": RUN_COLOURS[0]},
            showlegend=False,
            row=1,
            col=place,
        )
        figure.update_xaxes(title="step", row=1, col=place)
    return finish(figure, 320)
