"""Win rates over a dose, and over benchmarks."""

from __future__ import annotations

import itertools
import math

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.figures.style import GRID, INK, RUN_COLOURS, empty, finish, whiskers


def win_rates_by_dose(table: pd.DataFrame, dose: str, title: str, control: str) -> go.Figure:
    """Win rates in percent against a dose, one panel a decoding, with 95 % intervals.

    Args:
        table: rows of `over_seeds.win_rates` with a column `dose` of numbers, one a method, dose
            and decoding (`over_seeds.headline`).
        title: what the dose is.
        control: the name of the KL control among the methods, drawn in grey dashes.
    """
    if table.empty:
        return empty("No win rate is there yet.", 380)
    decodings = list(dict.fromkeys(table["decoding"]))
    figure = make_subplots(rows=1, cols=len(decodings), subplot_titles=decodings, shared_yaxes=True)
    methods = list(dict.fromkeys(table["method"]))
    far = ["kl"] if "kl" in table else []
    doses = sorted(set(table[dose]))
    step = min((b - a for a, b in itertools.pairwise(doses)), default=0.0)
    for number, method in enumerate(methods):
        grey = method == control
        colour = INK if grey else RUN_COLOURS[number % len(RUN_COLOURS)]
        for place, decoding in enumerate(decodings, start=1):
            rows = table[(table["method"] == method) & (table["decoding"] == decoding)]
            rows = rows.sort_values(dose)
            # Side by side, so that intervals of one dose do not hide each other.
            shift = (number - (len(methods) - 1) / 2) * 0.08 * step
            figure.add_scatter(
                x=rows[dose] + shift,
                y=rows["win_rate"],
                name=method,
                legendgroup=method,
                showlegend=place == 1,
                mode="lines+markers",
                line={"color": colour, "width": 1.8, "dash": "dash" if grey else "solid"},
                marker={"size": 7},
                error_y=whiskers(rows["win_rate"], rows["low"], rows["high"], colour)
                | {"width": 3},
                customdata=rows[[dose, *far]],
                hovertemplate=f"{method}, %{{customdata[0]:.0%}}: %{{y:.1f}} %"
                + (", KL %{customdata[1]:.2f} nats" if far else "")
                + "<extra></extra>",
                row=1,
                col=place,
            )
    figure.add_hline(y=50, line={"color": INK, "dash": "dot", "width": 1})
    figure.update_xaxes(title_text=title, tickformat=".0%", tickvals=doses)
    figure.update_yaxes(title_text="win rate, %", col=1)
    return finish(figure, 400).update_layout(legend_y=1.12, margin_t=84)


def win_rate_radar(
    table: pd.DataFrame, panels: str, titles: dict[object, str], control: str | None = None
) -> go.Figure:
    """Win rates of every benchmark around a circle, one panel a value of the column `panels`.

    `table` has the rows of `over_seeds.win_rates` by benchmark; greedy and sampled are axes of
    their own. All axes have one scale, in percent, unlike the paper's, whose rings are stretched
    for each axis. The method called `control` is drawn in grey dashes. Figure "Cross-benchmark
    injected-noise robustness".
    """
    if table.empty:
        return empty("No win rate is there yet.", 380)
    values = list(dict.fromkeys(table[panels]))
    cols = min(2, len(values))
    lines = math.ceil(len(values) / cols)
    figure = make_subplots(
        rows=lines,
        cols=cols,
        specs=[[{"type": "polar"}] * cols for _ in range(lines)],
        subplot_titles=[titles.get(value, str(value)) for value in values],
        vertical_spacing=0.2,
        horizontal_spacing=0.2,
    )
    axes = table.assign(axis=table["benchmark"] + "<br>" + table["decoding"])
    order = list(dict.fromkeys(axes.sort_values(["decoding", "benchmark"])["axis"]))
    named: set[str] = set()
    for number, method in enumerate(dict.fromkeys(axes["method"])):
        grey = method == control
        colour = INK if grey else RUN_COLOURS[number % len(RUN_COLOURS)]
        for place, value in enumerate(values):
            rows = axes[(axes["method"] == method) & (axes[panels] == value)]
            if rows.empty:
                continue
            rates = rows.set_index("axis")["win_rate"].reindex(order)
            figure.add_scatterpolar(
                r=[*rates, rates.iloc[0]],
                theta=[*order, order[0]],
                name=method,
                legendgroup=method,
                showlegend=method not in named,
                line={"color": colour, "width": 2, "dash": "dash" if grey else "solid"},
                hovertemplate=f"{method}, %{{theta}}: %{{r:.1f}} %<extra></extra>",
                row=place // cols + 1,
                col=place % cols + 1,
            )
            named.add(method)
    for title in figure.layout.annotations:
        title.update(yshift=38, font={"size": 13})  # above the label of the topmost axis
    low, high = axes["win_rate"].min(), axes["win_rate"].max()
    ends = [10 * math.floor(min(low, 45) / 10), 10 * math.ceil(max(high, 55) / 10)]
    figure.update_polars(
        bgcolor="rgba(0,0,0,0)",
        radialaxis={"range": ends, "gridcolor": GRID, "tickvals": [ends[0], 50, ends[1]]},
        # Turned, so that no label stands between two circles.
        angularaxis={"gridcolor": GRID, "rotation": 180 / len(order)},
    )
    figure = finish(figure, 110 + 370 * lines)
    return figure.update_layout(legend_y=1 + 0.24 / lines, margin_t=140, margin_b=50)
