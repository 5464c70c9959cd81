"""Figures of routing over training: values, mass by state, correction by phase."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.audit import STATES
from plc_core.analysis.figures.style import INK, STATE_COLOURS, empty, finish

DENSITY = [
    [0.0, "rgba(122,127,135,0)"],
    [0.15, "rgba(122,127,135,0.3)"],
    [1.0, "rgba(122,127,135,0.6)"],
]

_VISITS_A_CELL = 12


def over_training(
    cells: Mapping[str, tuple[np.ndarray, float, float, int]], shadow: bool = False
) -> go.Figure:
    """How z, margin, confidence and weight are spread at each stage of training.

    `cells` maps a measure to its counts [steps, values], the bounds of the values and the steps
    in a row of cells. Darker is a larger share of the visits of these steps; the line is their
    median, dotted the 5th and 95th percentile, to the width of a cell. Of `shadow` routing the
    weight's title says that it was not applied.
    """
    drawn = {name: cell for name, cell in cells.items() if cell[0].sum()}
    if not drawn:
        return empty("No pair has been visited yet.", 460)
    titles = {"margin": "margin m", "z": "z", "confidence": "confidence C", "weight": "weight w"}
    if shadow:
        titles["weight"] += ", not applied"
    figure = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=[titles.get(name, name) for name in drawn],
        vertical_spacing=0.2,
        horizontal_spacing=0.07,
    )
    for number, (table, low, high, width) in enumerate(drawn.values()):
        row, col = number // 2 + 1, number % 2 + 1
        table, width = _coarser(table, width)
        used = np.flatnonzero(table.sum(axis=1))
        table = table[: used[-1] + 1]
        steps = (np.arange(len(table)) + 0.5) * width - 0.5
        edges = np.linspace(low, high, table.shape[1] + 1)
        middle = (edges[:-1] + edges[1:]) / 2
        total = table.sum(axis=1, keepdims=True)
        share = np.divide(table, total, out=np.full(table.shape, np.nan), where=total > 0)
        figure.add_heatmap(
            x=steps,
            y=middle,
            z=np.sqrt(share.T),
            customdata=100 * share.T,
            colorscale=DENSITY,
            showscale=False,
            hovertemplate="step %{x:.0f}, near %{y:.3g}: %{customdata:.1f} % of visits"
            "<extra></extra>",
            row=row,
            col=col,
        )
        for quantile, dash in ((0.05, "dot"), (0.5, "solid"), (0.95, "dot")):
            figure.add_scatter(
                x=steps,
                y=_quantile(table, middle, quantile),
                mode="lines",
                line={"color": INK, "width": 2.4 if quantile == 0.5 else 1.4, "dash": dash},
                name={0.05: "5 %", 0.5: "median", 0.95: "95 %"}[quantile],
                showlegend=number == 0,
                hoverinfo="skip",
                row=row,
                col=col,
            )
        seen = middle[np.flatnonzero(table.sum(axis=0))]
        step = edges[1] - edges[0]
        figure.update_yaxes(range=[seen[0] - step, seen[-1] + step], row=row, col=col)
    figure.update_xaxes(title_text="optimizer step", row=2)
    figure.update_yaxes(side="right", col=2)  # on a phone they would lie on the left panel
    figure.update_annotations(font_size=13)
    return finish(figure, 430, margin_t=60).update_layout(legend_y=1.1)


def cumulative_mass(steps: pd.DataFrame, shadow: bool = False) -> go.Figure:
    """Routing weight added up over visits by state, and the correction that was taken.

    `steps` has step, visits and the sums q_clean, q_flip, q_tie, weight, weight_flip, weight_tie
    of each step, as `inspection.Tally.step_columns`. Left the share of each state in all q so far;
    right the part of the loss, in pairs, that was taken reversed (w q_flip) and as ties (w q_tie),
    or would have been where the routing is a `shadow`: then everything is hatched or dotted.
    """
    if steps.empty:
        return empty("No pair has been visited yet.", 330)
    added = steps.drop(columns="step").cumsum()
    places = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 600)).astype(int))
    step, added = steps["step"].iloc[places], added.iloc[places]
    figure = make_subplots(
        rows=1,
        cols=2,
        subplot_titles=[
            "share of all q",
            f"{'would-be corrections' if shadow else 'corrected pairs'}, w · q",
        ],
        horizontal_spacing=0.09,
    )
    whole = added[[f"q_{s}" for s in STATES]].sum(axis=1)
    for state in STATES:
        figure.add_scatter(
            x=step,
            y=added[f"q_{state}"] / whole,
            name=f"q_{state}",
            stackgroup="q",
            fillpattern={"shape": "/", "size": 7} if shadow else None,
            mode="lines",
            line={"color": STATE_COLOURS[state], "width": 1},
            hovertemplate=f"to step %{{x}}: q_{state} %{{y:.1%}}<extra></extra>",
            row=1,
            col=1,
        )
    for state in ("flip", "tie"):
        figure.add_scatter(
            x=step,
            y=added[f"weight_{state}"],
            name=f"w · q_{state}",
            showlegend=False,  # the colour is that of the state on the left
            mode="lines",
            line={"color": STATE_COLOURS[state], "width": 2.2, "dash": "dot" if shadow else "dash"},
            hovertemplate=f"to step %{{x}}: %{{y:,.1f}} pairs by w q_{state}<extra></extra>",
            row=1,
            col=2,
        )
    figure.update_yaxes(tickformat=".0%", range=[0, 1], col=1)
    figure.update_yaxes(rangemode="tozero", side="right", col=2)
    figure.update_xaxes(title_text="optimizer step")
    figure.update_annotations(font_size=13)
    return finish(figure, 330, margin_t=60).update_layout(legend_y=1.1)


def correction_by_phase(phases: pd.DataFrame, shadow: bool = False) -> go.Figure:
    """Each fifth of training's share of all correction weight; the mean weight there is hovered.

    `phases` is the table of `phases_of`. Appendix "Self-confirmation": the paper reports 1.9 % of
    the correction weight in the first fifth, and means of 0.026 there against 0.286 over the run.
    Of `shadow` routing the bars are hatched: they say what PLC-DPO would have done.
    """
    if phases.empty or not phases["visits"].sum():
        return empty("No pair has been visited yet.", 330)
    figure = go.Figure()
    figure.add_bar(
        x=phases["phase"],
        y=phases["share"],
        marker={
            "color": "rgba(122,127,135,0.5)",
            "line": {"color": INK, "width": 1},
            "pattern": {"shape": "/" if shadow else ""},
        },
        text=[f"{100 * s:.1f} %" if pd.notna(s) else "" for s in phases["share"]],
        textposition="outside",
        cliponaxis=False,
        customdata=phases[["visits", "mean_weight"]].to_numpy(),
        hovertemplate="%{x} % of the steps: %{y:.1%} of all w, mean w %{customdata[1]:.3f} over "
        "%{customdata[0]:,.0f} visits<extra></extra>",
    )
    figure.update_yaxes(
        title_text="share of all w, not applied" if shadow else "share of all weight w",
        tickformat=".0%",
        rangemode="tozero",
    )
    figure.update_xaxes(title_text="part of the training steps, %", type="category", tickangle=0)
    return finish(figure, 330, margin_t=36, bargap=0.35, showlegend=False)


def phases_of(steps: pd.DataFrame, total: int | None = None, parts: int = 5) -> pd.DataFrame:
    """Correction weight by part of training: phase, visits, mean_weight and share of all weight.

    `total` are the steps that training takes; without it the last step seen ends it. A part that
    a run has not reached has no visits and NaN.
    """
    if steps.empty:
        return pd.DataFrame(columns=["phase", "visits", "mean_weight", "share"])
    end = max(total or 0, int(steps["step"].max()) + 1)
    part = (steps["step"] * parts // end).clip(upper=parts - 1)
    sums = steps.groupby(part)[["visits", "routed", "weight"]].sum()
    sums = sums.reindex(range(parts), fill_value=0.0)
    whole = sums["weight"].sum()
    return pd.DataFrame(
        {
            "phase": [f"{100 * i // parts}–{100 * (i + 1) // parts}" for i in range(parts)],
            "visits": sums["visits"].to_numpy(),
            "mean_weight": (sums["weight"] / sums["routed"].where(sums["routed"] > 0)).to_numpy(),
            "share": (sums["weight"] / whole if whole else sums["weight"] * np.nan).to_numpy(),
        }
    )


def _coarser(table: np.ndarray, width: int) -> tuple[np.ndarray, int]:
    """Neighbouring cells joined until one holds a few visits: fewer would show chance alone."""
    while (table > 0).sum() * _VISITS_A_CELL > table.sum() and min(table.shape) > 16:
        table = table[0::2] + table[1::2]
        width *= 2
        if table.shape[1] > table.shape[0] / 2:
            table = table[:, 0::2] + table[:, 1::2]
    return table, width


def _quantile(table: np.ndarray, middle: np.ndarray, share: float) -> np.ndarray:
    """The value of each row's cell that reaches `share` of its counts; NaN for an empty row."""
    total = table.sum(axis=1)
    place = (np.cumsum(table, axis=1) >= share * total[:, None]).argmax(axis=1)
    return np.where(total > 0, middle[place], np.nan)
