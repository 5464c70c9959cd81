"""Figures of the routing weights against the true state: reliability and confusion."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from notebooks.studies.true_states import FORECASTS
from plc_core.analysis.audit import STATES
from plc_core.analysis.calibration import Calibration
from plc_core.analysis.figures.style import INK, STATE_COLOURS, empty, finish, whiskers

_STATES = {"clean": "right labels", "flip": "reversed labels", "tie": "ties"}
_SYMBOLS = ("circle", "diamond-open", "square-open", "x", "triangle-up-open")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def reliability(found: Mapping[str, Mapping[str, Calibration]]) -> go.Figure:
    """Observed share of a state against its weight, one panel a weight, with Wilson intervals.

    `found` has the calibrations of `state_calibration` by policy, told apart by line and marker.
    On the dotted diagonal a weight would be a probability; the short dashes at the left are the
    base rate. Point sizes grow with the bin's pairs.
    """
    columns = [c for c in FORECASTS if any(c in own and own[c].n for own in found.values())]
    if not columns:
        return empty("No pair has a known true state.", 120)
    titles = [f"share of {_STATES[FORECASTS[column]]} at each {column}" for column in columns]
    figure = make_subplots(
        rows=1, cols=len(columns), subplot_titles=titles, horizontal_spacing=0.07
    )
    for place, column in enumerate(columns, start=1):
        colour = STATE_COLOURS[FORECASTS[column]]
        _line(figure, place, [0, 1], [0, 1], {"color": INK, "dash": "dot", "width": 1.2})
        for number, (policy, own) in enumerate(found.items()):
            if column not in own or not own[column].n:
                continue
            rows = own[column].table
            rows = rows[rows["n"] > 0]
            base = {"color": INK, "width": 2, "dash": _DASHES[number % len(_DASHES)]}
            edge = 0.06 * _reach(own[column].table)
            _line(figure, place, [0, edge], [own[column].base_rate] * 2, base)
            figure.add_scatter(
                x=rows["forecast"],
                y=rows["share"],
                name=policy,
                legendgroup=policy,
                showlegend=False,
                mode="lines+markers",
                customdata=rows["n"],
                line={"color": colour, "width": 1.8, "dash": _DASHES[number % len(_DASHES)]},
                marker={
                    "symbol": _SYMBOLS[number % len(_SYMBOLS)],
                    "size": 5 + 9 * (rows["n"] / rows["n"].max()) ** 0.5,
                },
                error_y=whiskers(rows["share"], rows["low"], rows["high"], colour)
                | {"thickness": 1, "width": 3},
                hovertemplate=f"{policy}<br>mean {column} %{{x:.2f}}: %{{y:.1%}}, "
                "n = %{customdata:,}<extra></extra>",
                row=1,
                col=place,
            )
        top = max(_reach(own[column].table) for own in found.values() if column in own)
        ends = [-0.03 * top, 1.03 * top]
        figure.update_xaxes(title_text=f"mean {column}", range=ends, row=1, col=place)
        figure.update_yaxes(range=ends, tickformat=".0%", row=1, col=place)
    if len(found) > 1:
        _legend(figure, list(found))
    figure.update_yaxes(title_text="share truly so", col=1)
    return finish(figure, 360).update_layout(legend_y=1.14, margin_t=86)


def _reach(table: pd.DataFrame) -> float:
    """The end of the axes: 1, or less where forecasts and shares are small, as those of ties."""
    rows = table[table["n"] > 0]
    highest = max(rows["forecast"].max(), rows["high"].max()) if len(rows) else 1.0
    return min(1.0, float(1.1 * highest))


def _legend(figure: go.Figure, policies: list[str]) -> None:
    """Line and marker of each policy, in grey, as colours are the states'."""
    for number, policy in enumerate(policies):
        figure.add_scatter(
            x=[None],
            y=[None],
            name=policy,
            mode="lines+markers",
            line={"color": INK, "dash": _DASHES[number % len(_DASHES)]},
            marker={"color": INK, "symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 8},
            row=1,
            col=1,
        )


def _line(
    figure: go.Figure, place: int, x: list[float], y: list[float], line: Mapping[str, object]
) -> None:
    figure.add_scatter(
        x=x, y=y, mode="lines", line=line, showlegend=False, hoverinfo="skip", row=1, col=place
    )


def state_confusion(tables: Mapping[str, pd.DataFrame]) -> go.Figure:
    """True states against the state with the most weight relative to its ceiling, by policy.

    `tables` are those of `relative_states`. Shares are of the true state's pairs, so each
    row adds up to one; on the diagonal the routing found the truth.
    """
    known = {name: table for name, table in tables.items() if table["of"].any()}
    if not known:
        return empty("No pair has a known true state.", 120)
    figure = make_subplots(
        rows=1, cols=len(known), subplot_titles=list(known), horizontal_spacing=0.16
    )
    for place, table in enumerate(known.values(), start=1):
        rows = {(row["true"], row["found"]): row for row in table.to_dict("records")}
        shares = [[float(rows[true, found]["share"]) for found in STATES] for true in STATES]
        counts = [[int(rows[true, found]["n"]) for found in STATES] for true in STATES]
        sizes = table.drop_duplicates("true").set_index("true")["of"]
        figure.add_heatmap(
            z=shares,
            x=[f"read as {name}" for name in STATES],
            y=[f"{name}<br>n = {sizes[name]:,}" for name in STATES],
            text=[
                [f"{s:.0%}<br>{n:,}" if s >= 0 else "–" for s, n in zip(*both, strict=True)]
                for both in zip(shares, counts, strict=True)
            ],
            texttemplate="%{text}",
            textfont={"color": "#2B2F36"},  # plotly would have white on the middle of the scale
            zmin=0,
            zmax=1,
            colorscale=[[0, "#F8F6FC"], [1, "#8F79CD"]],
            showscale=False,
            hovertemplate="truly %{y}, %{x}: %{z:.1%}<extra></extra>",
            row=1,
            col=place,
        )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(showgrid=False)
    return finish(figure, 300)
