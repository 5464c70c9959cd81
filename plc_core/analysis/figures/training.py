"""Figures over optimizer steps, and the map from z to the routing weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.audit import STATES
from plc_core.analysis.curves import LEAST_SMOOTHED, SMOOTHED, in_words, last_tenth, smoothed
from plc_core.analysis.figures.style import (
    INK,
    MAX_POINTS,
    RUN_COLOURS,
    STATE_COLOURS,
    empty,
    finish,
    notice,
    thin,
)

_PANELS = {
    "loss": "loss",
    "margin_mean": "mean margin m",
    "gamma": "correction strength γ",
    "q_clean": "mean q_clean",
    "q_flip": "mean q_flip",
    "q_tie": "mean q_tie",
}
_ABSENT = {"gamma": "no correction under this objective"}


def training_curves(metrics: pd.DataFrame) -> go.Figure:
    """Loss, mean margin, correction strength and mean routing weights over optimizer steps.

    What varies with the pairs of a step is a running mean with the single steps behind it, and its
    title ends in the mean of the last tenth of the steps ± its standard error. A column that was
    not logged, as γ under objectives without a correction, is said to be missing. Figure
    "Routing response under hard-pair corruption" (mean q) and equation "total" (γ).
    """
    if "step" not in metrics or metrics.empty:
        return empty("No optimizer step has been logged yet.", 460)
    logged = [name for name in _PANELS if name in metrics]
    ends = last_tenth({"run": metrics}, [name for name in logged if name in SMOOTHED]).iloc[0]
    titles = [
        f"{title}: {in_words(ends[name], ends[f'± {name}'])}" if name in ends else title
        for name, title in _PANELS.items()
    ]
    figure = make_subplots(
        rows=2,
        cols=3,
        subplot_titles=titles,
        shared_xaxes="all",
        vertical_spacing=0.13,
        horizontal_spacing=0.06,
    )
    figure.update_annotations(font_size=13)
    table = metrics.sort_values("step")
    for place, column in enumerate(_PANELS):
        panel = {"row": place // 3 + 1, "col": place % 3 + 1}
        if column not in logged:
            _say_absent(figure, place, table["step"], _ABSENT.get(column, "not logged"))
            continue
        colour = STATE_COLOURS.get(column.removeprefix("q_"), RUN_COLOURS[0])
        smooth = column in SMOOTHED and len(table) >= LEAST_SMOOTHED
        curves = table.assign(mean=smoothed(table[column]) if smooth else table[column])
        curves = thin(curves, MAX_POINTS)
        if smooth:
            figure.add_scatter(
                x=curves["step"],
                y=curves[column],
                showlegend=False,
                mode="lines",
                opacity=0.3,
                line={"color": colour, "width": 1},
                hoverinfo="skip",
                **panel,
            )
        figure.add_scatter(
            x=curves["step"],
            y=curves["mean"],
            name=column,
            showlegend=False,
            mode="lines" if len(table) > 1 else "markers",
            line={"color": colour, "width": 2},
            hovertemplate="step %{x}: %{y:.4g}" + (", running mean" if smooth else ""),
            **panel,
        )
    figure.update_xaxes(title_text="optimizer step", row=2)
    figure.update_yaxes(rangemode="tozero", row=2)
    return finish(figure, 460, hovermode="closest", margin_t=36)


def _say_absent(figure: go.Figure, place: int, steps: pd.Series, text: str) -> None:
    row, col = place // 3 + 1, place % 3 + 1
    # Plotly leaves out axes without a trace, and puts what belongs to them elsewhere.
    nothing = [None] * len(steps)
    figure.add_scatter(x=steps, y=nothing, showlegend=False, hoverinfo="skip", row=row, col=col)
    number = place + 1 if place else ""
    figure.add_annotation(
        text=text,
        xref=f"x{number} domain",
        yref=f"y{number} domain",
        x=0.5,
        y=0.5,
        showarrow=False,
        font={"size": 11},
    )
    figure.update_yaxes(range=[0, 1], showticklabels=False, showgrid=False, row=row, col=col)


def q_against_z(table: pd.DataFrame, pair: Mapping[str, Any] | None = None) -> go.Figure:
    """The routing weights as functions of the standardised margin z (equation "posterior").

    `table` has columns z, q_clean, q_flip, q_tie: visits (with a pair_id; drawn as points, an even
    sample above 2,000, which is said) or a recipe's curve (without; drawn as lines). `pair` is
    one visit to point out.
    """
    known = table.dropna(subset=["z"]).sort_values("z")
    if known.empty:
        return empty("No pair has been visited yet.", 300)
    shown = thin(known, MAX_POINTS)
    points = "pair_id" in table
    figure = go.Figure()
    for state in STATES:
        figure.add_scatter(
            x=shown["z"],
            y=shown[f"q_{state}"],
            name=f"q_{state}",
            mode="markers" if points else "lines",
            marker={"color": STATE_COLOURS[state], "size": 4, "opacity": 0.6},
            line={"color": STATE_COLOURS[state], "width": 2},
            hovertemplate=f"z %{{x:.2f}}: q_{state} %{{y:.3f}}<extra></extra>",
        )
    if pair is not None and pd.notna(pair["z"]):
        figure.add_vline(x=pair["z"], line={"color": INK, "dash": "dot", "width": 1.5})
        figure.add_scatter(
            x=[pair["z"]] * 3,
            y=[pair[f"q_{state}"] for state in STATES],
            name="this pair",
            mode="markers",
            showlegend=False,
            marker={
                "color": list(STATE_COLOURS.values()),
                "size": 11,
                "line": {"color": INK, "width": 1.5},
            },
            hovertemplate="this pair: q %{y:.3f} at z %{x:.2f}<extra></extra>",
        )
    if len(shown) < len(known):
        notice(figure, f"an even sample of {len(shown):,} of {len(known):,} visits")
    figure.update_xaxes(title_text="standardised margin z")
    figure.update_yaxes(title_text="routing weight q", range=[-0.03, 1.03])
    return finish(figure, 300)


def pair_trajectory(visits: pd.DataFrame, metrics: pd.DataFrame | None = None) -> go.Figure:
    """One pair's q, z and margin m at each of its visits.

    `visits` are the rows of one pair. With the run's `metrics`, the band behind the margin is the
    EMA mean ± one deviation that z is measured with (equation "standardized-margin").
    """
    if visits.empty:
        return empty("This pair has not been visited yet.", 450)
    visits = visits.sort_values("step")
    lines = [
        {
            "x": visits["step"],
            "y": visits[column],
            "name": column,
            "yaxis": axis,
            "showlegend": axis == "y",
            "mode": "lines+markers",
            "marker": {"color": colour, "size": 9},
            "line": {"color": colour, "width": 1.6},
            "hovertemplate": f"step %{{x}}: {column} %{{y:.3g}}<extra></extra>",
        }
        for column, axis, colour in (
            *((f"q_{state}", "y", STATE_COLOURS[state]) for state in STATES),
            ("z", "y2", INK),
            ("margin", "y3", INK),
        )
    ]
    zero = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y2", "y0": 0, "y1": 0}
    # Made at once: a person steps from pair to pair, and subplots made in turn take twice as long.
    figure = go.Figure(
        [go.Scatter(line) for line in (*_ema_band(metrics), *lines)],
        {
            "xaxis": {"title": {"text": "optimizer step"}, "anchor": "y3"},
            "yaxis": {"title": {"text": "q"}, "range": [-0.05, 1.05], "domain": [0.67, 1.0]},
            "yaxis2": {"title": {"text": "z"}, "domain": [0.335, 0.58]},
            "yaxis3": {"title": {"text": "margin m"}, "domain": [0.0, 0.245]},
            "shapes": [zero | {"line": {"color": INK, "dash": "dot", "width": 1}}],
        },
    )
    # Room for the labels, so that a browser need not draw twice to find it.
    return finish(figure, 450, margin={"l": 68, "r": 12, "t": 48, "b": 48})


def _ema_band(metrics: pd.DataFrame | None) -> list[dict[str, Any]]:
    """The band of `pair_trajectory`, where the metrics hold what it is made of."""
    if metrics is None or not {"step", "ema_mean", "ema_std"} <= set(metrics.columns):
        return []
    band = thin(metrics.dropna(subset=["ema_mean", "ema_std"]), 200)
    upper, lower = band["ema_mean"] + band["ema_std"], band["ema_mean"] - band["ema_std"]
    return [
        {
            "x": np.concatenate([band["step"], band["step"][::-1]]),
            "y": np.concatenate([upper, lower[::-1]]),
            "yaxis": "y3",
            "name": "EMA mean ± sd",
            "fill": "toself",
            "fillcolor": "rgba(128, 128, 128, 0.22)",
            "mode": "lines",
            "line": {"width": 0},
            "hoverinfo": "skip",
        }
    ]
