"""Figures of the routing studies; the paper's numbers are open diamonds in all of them."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.figures.style import (
    INK,
    RUN_COLOURS,
    STATE_COLOURS,
    empty,
    finish,
    whiskers,
)

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_PAPER = {"symbol": "diamond-open", "size": 9}
_PANELS = {
    "mean weight": {
        "q_clean": STATE_COLOURS["clean"],
        "q_flip": STATE_COLOURS["flip"],
        "q_tie": STATE_COLOURS["tie"],
    },
    "mean q_flip": {
        "marked_q_flip": STATE_COLOURS["flip"],
        "unmarked_q_flip": STATE_COLOURS["clean"],
    },
    "AUROC of q_flip": {"marker_auroc": STATE_COLOURS["flip"]},
}


def dose_response(table: pd.DataFrame, paper: pd.DataFrame) -> go.Figure:
    """Routing against the share of reversed labels; methods by line, measures by colour.

    `table` is that of `hard_pairs.hard_pair_table`, of runs that reversed hard pairs or others;
    `paper` of `published_hard_pairs`. Figure "Routing response under hard-pair corruption".
    """
    if table.empty:
        return empty("No run with reversed labels is there yet.", 380)
    figure = make_subplots(
        rows=1,
        cols=3,
        subplot_titles=list(_PANELS),
        column_widths=[0.36, 0.32, 0.32],
        shared_yaxes=True,
        horizontal_spacing=0.06,
    )
    figure.update_annotations(font_size=13)
    methods = list(dict.fromkeys(table["method"]))
    for place, measures in enumerate(_PANELS.values(), start=1):
        for measure, colour in measures.items():
            for number, method in enumerate(methods):
                rows = table[(table["measure"] == measure) & (table["method"] == method)]
                _curve(figure, place, rows.sort_values("noise_rate"), method, number, colour)
            rows = paper[paper["measure"] == measure]
            figure.add_scatter(
                x=rows["noise_rate"],
                y=rows["value"],
                mode="markers",
                marker=_PAPER | {"color": colour},
                showlegend=False,
                hovertemplate=f"paper, η %{{x}}: {measure} %{{y:.3f}}<extra></extra>",
                row=1,
                col=place,
            )
        if place < 3:
            first = table[(table["method"] == methods[0]) & table["measure"].isin(list(measures))]
            _names(figure, place, first)
    figure.add_hline(y=0.5, line={"color": INK, "dash": "dot", "width": 1}, row=1, col=3)
    _keys(figure, methods)
    known = [rate for rates in (table, paper) for rate in rates["noise_rate"]]
    # Room for the names at the lines' ends, and one title for the three.
    figure.update_xaxes(tickformat=".0%", nticks=3, tickangle=0)
    figure.update_xaxes(range=[-0.02, 1.3 * max(known) + 0.02])
    figure.update_xaxes(title_text="share of reversed labels η", row=1, col=2)
    figure.update_yaxes(range=[0, 1])
    return finish(figure, 400).update_layout(legend_y=1.13, margin_t=86)


def _curve(
    figure: go.Figure, place: int, rows: pd.DataFrame, method: str, number: int, colour: str
) -> None:
    measure = rows["measure"].iloc[0] if len(rows) else ""
    figure.add_scatter(
        x=rows["noise_rate"],
        y=rows["value"],
        mode="lines+markers",
        showlegend=False,
        customdata=rows["n"],
        line={"color": colour, "width": 1.8, "dash": _DASHES[number % len(_DASHES)]},
        marker={"size": 6},
        error_y=whiskers(rows["value"], rows["low"], rows["high"], colour) | {"width": 3},
        hovertemplate=f"{method}, η %{{x}}: {measure} %{{y:.3f}}, n = %{{customdata:,}}"
        "<extra></extra>",
        row=1,
        col=place,
    )


def _names(figure: go.Figure, place: int, rows: pd.DataFrame) -> None:
    """Each measure's name beside its last point; two that end near each other, above and below."""
    ends = rows[rows["noise_rate"] == rows["noise_rate"].max()].sort_values("value")
    number = place if place > 1 else ""
    for order, row in enumerate(ends.to_dict("records")):
        measure = str(row["measure"])
        figure.add_annotation(
            x=row["noise_rate"],
            y=row["value"],
            text={"marked_q_flip": "reversed", "unmarked_q_flip": "others"}.get(measure, measure),
            xref=f"x{number}",
            yref=f"y{number}",
            xanchor="left",
            xshift=9,
            yshift=(-9, 9)[order] if len(ends) == 2 else 0,
            showarrow=False,
            font={"size": 12},
        )


def _keys(figure: go.Figure, methods: list[str]) -> None:
    """The legend in grey, as colours are measures: a line for each method, the paper's marker."""
    for number, method in enumerate(methods):
        line = {"color": INK, "dash": _DASHES[number % len(_DASHES)]}
        figure.add_scatter(x=[None], y=[None], name=method, mode="lines", line=line, row=1, col=1)
    marker = _PAPER | {"color": INK}
    figure.add_scatter(
        x=[None], y=[None], name="paper, hard pairs", mode="markers", marker=marker, row=1, col=1
    )


def group_means(
    tables: Mapping[str, pd.DataFrame],
    paper: pd.DataFrame | None = None,
    calibration: str | None = None,
) -> go.Figure:
    """Mean q_tie of groups of agreement, with intervals; one colour a policy.

    `tables` are the rows of one measure in `votes.Agreement.groups`, by policy; `paper` has
    the columns group and mean_q_tie; `calibration` is that of z, "self" or "checkpoint". Table
    "Zero-shot tie routing on MultiPref".
    """
    figure = go.Figure()
    sizes: dict[str, int] = {}
    for table in tables.values():
        sizes |= dict(zip(table["group"], table["n"], strict=True))
    names = {group: f"{group}<br>n = {n:,}" for group, n in sizes.items()}
    for number, (policy, table) in enumerate(tables.items()):
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        figure.add_scatter(
            x=[names[group] for group in table["group"]],
            y=table["mean"],
            name=policy,
            mode="lines+markers",
            line={"color": colour, "width": 1.8},
            marker={"size": 8},
            error_y=whiskers(table["mean"], table["low"], table["high"], colour),
            hovertemplate=f"{policy}, %{{x}}: %{{y:.4f}}<extra></extra>",
        )
    if paper is not None:
        known = paper[paper["group"].isin(names)]
        figure.add_scatter(
            x=[names[group] for group in known["group"]],
            y=known["mean_q_tie"],
            name="paper, MultiPref",
            mode="markers",
            marker=_PAPER | {"color": INK},
            hovertemplate="paper, %{x}: %{y:.4f}<extra></extra>",
        )
    of = f", calibration {calibration}" if calibration else ""
    figure.update_yaxes(title_text=f"mean q_tie{of}", rangemode="tozero")
    return finish(figure, 380)
