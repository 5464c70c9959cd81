"""Pictures of what was timed."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from plc_core.analysis.figures.style import RUN_COLOURS, empty, finish, whiskers


def throughput_dots(table: pd.DataFrame) -> go.Figure:
    """Pairs a second of each of those timed: the median step, from the slowest to the fastest.

    `table` is of `notebooks.overhead.table.overhead_table`; what could not be run is left out.
    """
    known = table[table["pairs/s"].notna()].iloc[::-1]
    if known.empty:
        return empty("Nothing could be timed.", 300)
    rate = known["pairs/s"]
    figure = go.Figure()
    figure.add_scatter(
        x=rate,
        y=known.index,
        error_x=whiskers(rate, known["slowest step"], known["fastest step"], RUN_COLOURS[0]),
        mode="markers",
        marker={"color": RUN_COLOURS[0], "size": 9},
        showlegend=False,
        hovertemplate="%{y}: %{x:.1f} pairs a second<extra></extra>",
    )
    figure.update_yaxes(showgrid=False, automargin=True)
    figure.update_xaxes(title_text="pairs a second, median step with the slowest and the fastest",
                        rangemode="tozero")  # fmt: skip
    return finish(figure, 110 + 32 * len(known))
