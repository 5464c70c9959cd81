"""The paper's claims at a glance: its numbers beside the study's intervals, and how many hold."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from notebooks.evidence.claims import CLAIMS, Claim
from notebooks.evidence.estimates import FEWEST, METHOD, Estimate, Study, over_seeds
from plc_core.analysis.figures.style import INK, empty, finish, whiskers

LOOKS = {
    "yes": ("circle", "#332288"),
    "no": ("x", "#882255"),
    "unknown": ("circle-open-dot", INK),
    "by construction": ("square-open", INK),
}
"""Symbol and colour of the verdict on an effect: of Tol's colour-blind safe ones two that no state
and no run has."""


def effect(claim: Claim, found: Estimate) -> str:
    """Whether the effect is there: yes or no where the interval lies on one side of the claim's
    threshold, else unknown, as with fewer than `FEWEST` seeds.
    """
    if claim.by_construction:
        return "by construction"
    if found.n < FEWEST or math.isnan(found.low):
        return "unknown"
    above, below = found.low > claim.threshold, found.high < claim.threshold
    if not (above or below):
        return "unknown"
    return "yes" if above == claim.above else "no"


def forest_table(model: Study) -> pd.DataFrame:
    """The claims that the paper makes, one row each, in the units that they are shown in.

    Columns: claim, unit, value, low, high, threshold, paper (its number, NaN without one), effect
    (see `effect`), excluded (whether the paper's number lies outside the interval).
    """
    rows = []
    for claim in CLAIMS:
        found = over_seeds(claim.values(model, METHOD))
        if claim.paper in ("–", "not measured") or found is None:
            continue
        value, low, high = (claim.scale * x for x in (found.value, found.low, found.high))
        paper = math.nan if claim.published is None else claim.published
        rows.append(
            {"claim": claim.text, "unit": _unit(claim), "value": value, "low": low, "high": high}
            | {"threshold": claim.scale * claim.threshold, "paper": paper}
            | {"effect": effect(claim, found), "excluded": not low <= paper <= high}
        )
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    return table.assign(excluded=table["excluded"] & table["paper"].notna() & table["low"].notna())


def tally(table: pd.DataFrame) -> str:
    """How many effects are there, and how many of the paper's sizes are excluded, in a sentence."""
    counts = table.loc[table["effect"] != "by construction", "effect"].value_counts()
    yes, no, unknown = (int(counts.get(name, 0)) for name in ("yes", "no", "unknown"))
    known = table[table["paper"].notna() & table["low"].notna()]
    outside = int(known["excluded"].sum())
    return (
        f"Of {yes + no + unknown} effects that the paper claims, {yes} are there, {no} are not and "
        f"{unknown} are unknown; of {len(known)} sizes that it prints, {outside} lie outside our "
        "interval."
    )


def forest(table: pd.DataFrame) -> go.Figure:
    """The study's intervals with the paper's numbers, a panel a unit, a row a claim.

    `table` is that of `forest_table`. Dotted: no effect.
    """
    if table.empty:
        return empty("The study has no results yet.", 200)
    units = list(table["unit"].unique())
    sizes = [int((table["unit"] == unit).sum()) for unit in units]
    figure = make_subplots(
        rows=len(units), cols=1, row_heights=sizes, vertical_spacing=0.1, subplot_titles=units
    )
    shown: set[str] = set()
    for row, unit in enumerate(units, start=1):
        own = table[table["unit"] == unit]
        for said, part in own.groupby("effect", sort=False):
            symbol, colour = LOOKS[str(said)]
            figure.add_scatter(
                x=part["value"],
                y=part["claim"],
                name=f"effect: {said}",
                legendgroup=str(said),
                showlegend=said not in shown,
                mode="markers",
                marker={"symbol": symbol, "size": 11, "color": colour},
                error_x=whiskers(part["value"], part["low"], part["high"], colour),
                customdata=part[["low", "high"]].to_numpy(),
                hovertemplate="%{y}: %{x:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]"
                "<extra></extra>",
                row=row,
                col=1,
            )
            shown.add(str(said))
        figure.add_scatter(
            x=own["paper"],
            y=own["claim"],
            name="the paper",
            legendgroup="paper",
            showlegend=row == 1,
            mode="markers",
            marker={"symbol": "diamond-open", "size": 10, "color": INK, "line": {"width": 2}},
            hovertemplate="the paper: %{x:.3f}<extra></extra>",
            row=row,
            col=1,
        )
        for threshold in own["threshold"].unique():
            figure.add_vline(x=threshold, line={"color": INK, "dash": "dot"}, row=row, col=1)
        figure.update_yaxes(categoryorder="array", categoryarray=own["claim"], row=row)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_annotations(font_size=13)
    return finish(figure, 150 + 34 * len(table) + 40 * len(units), margin_t=70, legend_y=1.06)


_COLUMNS = ("claim", "unit", "value", "low", "high", "threshold", "paper", "effect", "excluded")


def _unit(claim: Claim) -> str:
    if claim.threshold == 50:
        return "win rate, %"
    if claim.threshold == 0.5:
        return "AUROC"
    return "difference" if claim.threshold == 0 else "share, or ratio to DPO"
