"""Win rates over a dose, and over benchmarks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.figures.style import GRID, INK, RUN_COLOURS, empty, finish, whiskers


def win_rates_by_dose(table: pd.DataFrame, dose: str, title: str, control: str) -> go.Figure:
    """Win rates in percent against a dose, one panel a decoding, with 95 % intervals.

    Args:
        table: rows of `seed_win_rates.win_rates` with a column `dose` of numbers, one a method,
            dose and decoding (`seed_win_rates.headline`).
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

    `table` has the rows of `seed_win_rates.win_rates` by benchmark; greedy and sampled are axes of
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
        subplot_titles=[titles.get(value, str(value)) for value in values],
        vertical_spacing=0.12,
        horizontal_spacing=0.02,
    )
    figure.update_annotations(yshift=6, font_size=13)
    axes = table.assign(axis=table["benchmark"] + "<br>" + table["decoding"])
    order = list(dict.fromkeys(axes.sort_values(["decoding", "benchmark"])["axis"]))
    low, high = axes["win_rate"].min(), axes["win_rate"].max()
    ends = 10 * math.floor(min(low, 45) / 10), 10 * math.ceil(max(high, 55) / 10)
    places = [(n // cols + 1, n % cols + 1) for n in range(len(values))]
    for row, col in places:
        _web(figure, order, ends, row, col)
    named: set[str] = set()
    for number, method in enumerate(dict.fromkeys(axes["method"])):
        grey = method == control
        colour = INK if grey else RUN_COLOURS[number % len(RUN_COLOURS)]
        for (row, col), value in zip(places, values, strict=True):
            rows = axes[(axes["method"] == method) & (axes[panels] == value)]
            if rows.empty:
                continue
            rates = rows.set_index("axis")["win_rate"].reindex([*order, order[0]])
            x, y = _around((rates - ends[0]) / (ends[1] - ends[0]))
            figure.add_scatter(
                x=x,
                y=y,
                name=method,
                legendgroup=method,
                showlegend=method not in named,
                mode="lines+markers",
                line={"color": colour, "width": 2, "dash": "dash" if grey else "solid"},
                marker={"size": 5},
                customdata=list(zip(rates.index, rates, strict=True)),
                hovertemplate=f"{method}, %{{customdata[0]}}: %{{customdata[1]:.1f}} %"
                "<extra></extra>",
                row=row,
                col=col,
            )
            named.add(method)
    figure.update_xaxes(visible=False, range=[-1.5, 1.5], constrain="domain")
    figure.update_yaxes(visible=False, range=[-1.3, 1.3], constrain="domain")
    for number in range(1, len(values) + 1):
        place = number if number > 1 else ""
        figure.layout[f"yaxis{place}"].update(scaleanchor=f"x{place}")
    figure = finish(figure, 110 + 370 * lines)
    return figure.update_layout(legend_y=1 + 0.1 / lines, margin_t=100)


def _around(radii: Sequence[float] | pd.Series) -> tuple[list[float], list[float]]:
    """Points at these distances around a circle; the last one stands where the first one does."""
    steps = len(radii) - 1
    # Turned by half a step, so that no label stands between two circles.
    angles = [2 * math.pi * (n % steps + 0.5) / steps for n in range(len(radii))]
    return (
        [r * math.cos(angle) for r, angle in zip(radii, angles, strict=True)],
        [r * math.sin(angle) for r, angle in zip(radii, angles, strict=True)],
    )


def _web(figure: go.Figure, order: list[str], ends: tuple[int, int], row: int, col: int) -> None:
    """Rings at both ends and at 50 %, a spoke an axis, and their labels.

    On axes that meet at right angles: polar ones are not in the small part of plotly that a report
    has.
    """
    for rate in (50, ends[1]):
        radius = (rate - ends[0]) / (ends[1] - ends[0])
        turns = [2 * math.pi * n / 90 for n in range(91)]
        xs = [radius * math.cos(turn) for turn in turns]
        ys = [radius * math.sin(turn) for turn in turns]
        dash = "dot" if rate == 50 else "solid"
        _thin(figure, xs, ys, row, col, dash)
        figure.add_annotation(
            x=radius, y=0, text=f"{rate} %", showarrow=False, xanchor="left",
            font={"size": 11, "color": INK}, row=row, col=col,
        )  # fmt: skip
    for x, y, name in zip(*_around([1.0] * (len(order) + 1)), [*order, ""], strict=True):
        if name:
            _thin(figure, [0, x], [0, y], row, col, "solid")
            figure.add_annotation(
                x=1.08 * x, y=1.08 * y, text=name, showarrow=False, font={"size": 12},
                xanchor="left" if x > 0.1 else "right" if x < -0.1 else "center",
                yanchor="bottom" if y > 0.9 else "top" if y < -0.9 else "middle",
                row=row, col=col,
            )  # fmt: skip


def _thin(figure: go.Figure, x: list[float], y: list[float], row: int, col: int, dash: str) -> None:
    line = {"color": INK if dash == "dot" else GRID, "width": 1, "dash": dash}
    figure.add_scatter(
        x=x, y=y, mode="lines", line=line, showlegend=False, hoverinfo="skip", row=row, col=col
    )
