"""The figure of a label audit."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from plc_core.analysis.figures.style import STATE_COLOURS, bar_style, finish

BINS = 10


def p_flip_histogram(p_flip: NDArray[np.float64]) -> go.Figure:
    """How many pairs have which p_flip, in tenths; those more likely reversed than not stand out.

    Every bar bears its count, as the few suspicious pairs are too low to be seen beside the others.
    """
    counts, edges = np.histogram(p_flip, bins=BINS, range=(0, 1))
    figure = go.Figure()
    for state, part in (("clean", edges[:-1] < 0.5), ("flip", edges[:-1] >= 0.5)):
        figure.add_bar(
            x=(edges[:-1] + 0.5 / BINS)[part],
            y=counts[part],
            width=0.9 / BINS,
            marker=bar_style(STATE_COLOURS[state]),
            text=[f"{count:,}" for count in counts[part]],
            textposition="outside",
            cliponaxis=False,
            customdata=np.stack([edges[:-1][part], edges[1:][part]], axis=1),
            hovertemplate="p_flip %{customdata[0]:.1f} to %{customdata[1]:.1f}: %{y:,} pairs"
            "<extra></extra>",
        )
    figure.update_xaxes(title_text="p_flip", range=[0, 1], dtick=0.25, showgrid=False)
    figure.update_yaxes(title_text="pairs", rangemode="tozero", nticks=4)
    return finish(figure, 300, showlegend=False, margin={"l": 8, "r": 8, "t": 24, "b": 8})
