"""The look that all figures share: one palette, transparent grounds, small helpers."""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd
import plotly.graph_objects as go

STATE_COLOURS = {"clean": "#0072B2", "flip": "#D55E00", "tie": "#009E73"}
"""The three states' colours everywhere in app and notebooks (Okabe and Ito's colour-blind safe
blue, vermillion and bluish green; each keeps a contrast of 3:1 on white and on near-black)."""

GROUP_COLOURS = STATE_COLOURS | {
    "unmarked": STATE_COLOURS["clean"],
    "marked": STATE_COLOURS["flip"],
    "injected tie": STATE_COLOURS["tie"],
}

RUN_COLOURS = (
    "#7B61C4",
    "#C98A00",
    "#3A9BD1",
    "#C2608F",
    "#8A6D3B",
    "#5B8C2A",
    "#B5473F",
    "#4C7C8A",
    "#A17BD0",
    "#7A7F87",
)
"""Colours of overlaid runs, none of them a state's; they repeat after ten."""

INK = "#7A7F87"
"""A grey that reads on white and on near-black, for what is neither a state nor a run."""

VERDICT_COLOURS = {"yes": "#4B57D6", "no": "#B0307A", "unknown": INK}
"""Of an effect: its interval lies wholly on one side, on the other, or on both; none of them a
state's or a run's."""

GRID = "rgba(128, 128, 128, 0.18)"

MAX_POINTS = 2_000
"""Scatter plots above this many points show an even sample and say so."""

_AXIS = {
    "gridcolor": GRID,
    "zeroline": False,
    "automargin": True,
    "title": {"font": {"size": 13}},
}

TEMPLATE = go.layout.Template(
    layout={
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK, "size": 13},
        "colorway": RUN_COLOURS,
        "xaxis": _AXIS,
        "yaxis": _AXIS | {"exponentformat": "e"},
    }
)


def finish(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """Give `figure` the shared template, a height in pixels and a legend above the plot."""
    figure.update_layout(
        template=TEMPLATE,
        height=height,
        margin={"l": 8, "r": 12, "t": 48, "b": 8},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        hoverlabel={"namelength": -1},
        # The figure keeps zoom and hidden traces when a live run redraws it.
        uirevision="keep",
    )
    figure.update_layout(**layout)
    return figure


_TITLE_LINE = 32
"""Pixels that a title adds above a figure."""


def titled(figure: go.Figure, text: str) -> go.Figure:
    """A finished figure with a title above its legend that says what is seen."""
    figure.update_layout(
        title={
            "text": text, "font": {"size": 15}, "x": 0, "xanchor": "left", "y": 1,
            "yref": "container", "yanchor": "top", "pad": {"t": 8, "l": 8},
        },
        height=figure.layout.height + _TITLE_LINE,
        margin_t=figure.layout.margin.t + _TITLE_LINE,
    )  # fmt: skip
    return figure


def side(low: float, high: float, threshold: float = 0.0) -> str:
    """The key of `VERDICT_COLOURS` for an interval; above the threshold is "yes"."""
    return "yes" if low > threshold else "no" if high < threshold else "unknown"


def literal(text: object) -> str:
    """A name from somebody's data as a figure shows it literally.

    Plotly reads some HTML in names and labels, and %{…} in what stands at the pointer.
    """
    return escape(str(text), quote=False).replace("%{", "&#37;{")


def thin(table: pd.DataFrame, most: int = MAX_POINTS) -> pd.DataFrame:
    """At most `most` rows of `table`, evenly spaced in its order, its ends included."""
    if len(table) <= most:
        return table
    return table.iloc[[round(i * (len(table) - 1) / (most - 1)) for i in range(most)]]


def bar_style(colour: str) -> dict[str, object]:
    """A bar's fill and outline: pale inside, so that whiskers in the full `colour` show on it."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return {"color": f"rgba({red}, {green}, {blue}, 0.45)", "line": {"color": colour, "width": 1}}


def whiskers(mean: pd.Series, low: pd.Series, high: pd.Series, colour: str) -> dict[str, object]:
    """Error bars from `low` to `high` around `mean`."""
    return {
        "type": "data",
        "symmetric": False,
        "array": high - mean,
        "arrayminus": mean - low,
        "color": colour,
        "thickness": 2,
        "width": 5,
    }


def notice(figure: go.Figure, text: str) -> None:
    """Write a short remark above the plot, at its right end."""
    figure.add_annotation(
        text=text,
        xref="paper",
        yref="paper",
        x=1,
        y=1,
        xanchor="right",
        yanchor="bottom",
        showarrow=False,
        font={"size": 11},
    )


def empty(text: str, height: int) -> go.Figure:
    """A figure without axes that says in a sentence why there is nothing to draw."""
    figure = finish(go.Figure(), height)
    figure.add_annotation(text=text, xref="paper", yref="paper", x=0.5, y=0.5, showarrow=False)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure
