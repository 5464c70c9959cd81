"""Figures of the audit's tables: routing by state, flips, ties."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.audit import STATES, group_names, groups
from plc_core.analysis.calibration import Calibration
from plc_core.analysis.figures.style import (
    GROUP_COLOURS,
    INK,
    STATE_COLOURS,
    bar_style,
    empty,
    finish,
    literal,
    whiskers,
)


def routing_by_state(table: pd.DataFrame) -> go.Figure:
    """Mean q_clean, q_flip and q_tie of each group of pairs, with 95 % intervals and n.

    `table` is that of `audit.routing_by_state`. Appendix table "Routing response under hard-pair
    label corruption".
    """
    figure = go.Figure()
    names = list(dict.fromkeys(table["group"]))
    sizes = table.groupby("group")["n"].max()
    for state in STATES:
        rows = table[table["state"] == state].set_index("group").reindex(names)
        figure.add_bar(
            x=[_with_n(name, int(sizes[name])) for name in names],
            y=rows["mean"],
            name=f"q_{state}",
            marker=bar_style(STATE_COLOURS[state]),
            error_y=whiskers(rows["mean"], rows["low"], rows["high"], STATE_COLOURS[state]),
            hovertemplate=f"%{{x}}<br>mean q_{state} %{{y:.3f}}<extra></extra>",
        )
    # Of a few pairs an interval reaches beyond what a weight can be.
    figure.update_yaxes(title_text="mean routing weight", range=[0, 1])
    return finish(figure, 340, barmode="group", bargap=0.3)


def flip_distribution(joined: pd.DataFrame, bins: int = 25) -> go.Figure:
    """How q_flip is distributed in each group, each group's bars adding up to one.

    `joined` is the table of `audit.join_last_visits`. The picture behind the flip AUROC of figure
    "Routing response under hard-pair corruption".
    """
    edges = np.linspace(0, 1, bins + 1)
    group = groups(joined)
    figure = go.Figure()
    for name in group_names(joined):
        values = joined.loc[group == name, "q_flip"].dropna().to_numpy()
        if not len(values):
            continue
        counts, _ = np.histogram(values.clip(0, 1), edges)
        figure.add_scatter(
            x=edges,
            y=[*(counts / len(values)), 0],
            name=f"{name} (n = {len(values):,})",
            mode="lines",
            line={"color": GROUP_COLOURS[name], "width": 2, "shape": "hv"},
            hovertemplate="q_flip from %{x:.2f}: %{y:.1%}<extra></extra>",
        )
    if not figure.data:
        return empty("No pair with a known group has been visited yet.", 300)
    figure.update_xaxes(title_text="q_flip at the last visit", range=[0, 1])
    figure.update_yaxes(title_text="share of the group", tickformat=".0%", rangemode="tozero")
    return finish(figure, 300)


def flip_reliability(calibration: Calibration) -> go.Figure:
    """Observed share of flips against mean q_flip, by bins, with Wilson intervals.

    On the dotted diagonal q_flip would be a probability; the paper claims no such thing ("not as
    calibrated probabilities", section "Margin-Based Routing Distribution").
    """
    rows = calibration.table[calibration.table["n"] > 0]
    if rows.empty:
        return empty("Not drawn: no visited pair's label is known to be reversed or not.", 120)
    figure = go.Figure()
    figure.add_scatter(
        x=[0, 1],
        y=[0, 1],
        name="calibrated",
        mode="lines",
        line={"color": INK, "dash": "dot", "width": 1.5},
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=[0, 1],
        y=[calibration.base_rate] * 2,
        name=f"base rate {calibration.base_rate:.1%}",
        mode="lines",
        line={"color": INK, "dash": "dash", "width": 1.5},
        hovertemplate="base rate %{y:.3f}<extra></extra>",
    )
    figure.add_scatter(
        x=rows["forecast"],
        y=rows["share"],
        name="q_flip",
        mode="lines+markers",
        customdata=rows["n"],
        line={"color": STATE_COLOURS["flip"], "width": 2},
        marker={"size": 8},
        error_y=whiskers(rows["share"], rows["low"], rows["high"], STATE_COLOURS["flip"]),
        hovertemplate="mean q_flip %{x:.2f}, flipped %{y:.1%}, n = %{customdata:,}<extra></extra>",
    )
    figure.update_xaxes(title_text="mean q_flip", range=[-0.02, 1.02])
    figure.update_yaxes(title_text="share reversed", range=[-0.02, 1.02])
    return finish(figure, 300)


def tie_selectivity(slices: pd.DataFrame, share: float = 0.2) -> go.Figure:
    """Mean and median q_tie and |margin| of the weakest and the strongest score gaps.

    `slices` are the rows of one source in `audit.TieSelectivity.slices`, made with `share`.
    Figure "Tie-state selectivity" of the paper, its two scales side by side.
    """
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.14)
    colours = {"bottom": STATE_COLOURS["tie"], "top": INK}
    for _, row in slices.iterrows():
        for column, measure in enumerate(("q_tie", "abs_margin"), start=1):
            label = "|m|" if measure == "abs_margin" else measure
            figure.add_bar(
                x=[f"mean {label}", f"median {label}"],
                y=[row[f"{measure}_mean"], row[f"{measure}_median"]],
                name=f"{row['slice']} {share:.0%} of the score gap (n = {row['n']:,})",
                legendgroup=row["slice"],
                showlegend=column == 1,
                marker=bar_style(colours[row["slice"]]),
                text=[f"{row[f'{measure}_{kind}']:#.3g}" for kind in ("mean", "median")],
                textposition="outside",
                cliponaxis=False,
                hovertemplate="%{x}: %{y:.4g}<extra></extra>",
                row=1,
                col=column,
            )
    figure.update_yaxes(rangemode="tozero", exponentformat="power")
    return finish(figure, 340, barmode="group", bargap=0.35)


def tie_ceiling(table: pd.DataFrame, ceiling: float) -> go.Figure:
    """Mean q_tie of each group against the largest q_tie seen in the run.

    `table` is that of `audit.routing_by_state`, `ceiling` that of `audit.tie_ceiling`. Energies
    of section "Margin-Based Routing Distribution": q_tie peaks near z = 0, far below 1.
    """
    rows = table[(table["state"] == "tie") & (table["n"] > 0)]
    if rows.empty or not np.isfinite(ceiling):
        return empty("No pair with a known group has been visited yet.", 220)
    figure = go.Figure()
    figure.add_bar(
        x=rows["mean"],
        y=[_with_n(name, n) for name, n in zip(rows["group"], rows["n"], strict=True)],
        orientation="h",
        marker=bar_style(STATE_COLOURS["tie"]),
        error_x=whiskers(rows["mean"], rows["low"], rows["high"], STATE_COLOURS["tie"]),
        hovertemplate="%{y}<br>mean q_tie %{x:.4f}<extra></extra>",
        width=0.5,
    )
    figure.add_vline(
        x=ceiling,
        line={"color": INK, "dash": "dash", "width": 1.5},
        annotation={
            "text": f"largest seen {ceiling:.3f}",
            "yanchor": "bottom",
        },
        annotation_position="top left",
    )
    figure.update_xaxes(title_text="mean q_tie", range=[0, 1.08 * ceiling])
    figure.update_yaxes(autorange="reversed")
    return finish(figure, 110 + 55 * len(rows), showlegend=False)


def _with_n(name: str, n: int) -> str:
    return f"{literal(name)}<br>n = {n:,}"
