"""The paper's claims at a glance: its numbers beside the studies' intervals, how many hold."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from notebooks.evidence.claims import CLAIMS, Claim
from notebooks.evidence.estimates import FEWEST, METHOD, Estimate, Study, over_seeds
from plc_core.analysis.figures.style import (
    INK,
    VERDICT_COLOURS,
    empty,
    finish,
    titled,
    whiskers,
)

CONSTRUCTED = "by construction"
"""Is drawn open and not in a colour of its own: no data speak there."""
VERDICTS = {
    "yes": "effect found",
    "no": "absent or reversed",
    "unknown": "unknown",
    CONSTRUCTED: CONSTRUCTED,
}
"""What `effect` finds, in the legend."""
SYMBOLS = ("circle", "square", "triangle-up")
"""Of the studies, in their order."""
_SPREAD = 0.56
"""Of the studies of one claim, in rows."""


def effect(claim: Claim, found: Estimate) -> str:
    """Whether the effect is there: yes or no where the interval lies on one side of the claim's
    threshold, else unknown, as with fewer than `FEWEST` seeds.
    """
    if claim.by_construction:
        return CONSTRUCTED
    if found.n < FEWEST or math.isnan(found.low):
        return "unknown"
    above, below = found.low > claim.threshold, found.high < claim.threshold
    if not (above or below):
        return "unknown"
    return "yes" if above == claim.above else "no"


def forest_table(studies: Mapping[str, Study]) -> pd.DataFrame:
    """The paper's claims, a row a claim and study, in the units that they are shown in.

    Columns: claim, study (its name in `studies`), unit, value, low, high, threshold, paper (its
    number, NaN without one), effect (see `effect`), excluded (whether the paper's number lies
    outside the interval).
    """
    rows = []
    for claim in CLAIMS:
        if claim.paper in ("–", "not measured"):
            continue
        for name, study in studies.items():
            if (found := over_seeds(claim.values(study, METHOD))) is None:
                continue
            value, low, high = (claim.scale * x for x in (found.value, found.low, found.high))
            paper = math.nan if claim.published is None else claim.published
            rows.append(
                {"claim": claim.text, "study": name, "unit": _unit(claim), "value": value}
                | {"low": low, "high": high, "threshold": claim.scale * claim.threshold}
                | {"paper": paper, "effect": effect(claim, found)}
                | {"excluded": not low <= paper <= high}
            )
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    return table.assign(excluded=table["excluded"] & table["paper"].notna() & table["low"].notna())


def tally(table: pd.DataFrame) -> list[str]:
    """A sentence a study: how many effects are found, how many of the paper's sizes excluded."""
    said = []
    for name, own in table.groupby("study", sort=False):
        counts = own.loc[own["effect"] != CONSTRUCTED, "effect"].value_counts()
        yes, no, unknown = (int(counts.get(word, 0)) for word in ("yes", "no", "unknown"))
        known = own[own["paper"].notna() & own["low"].notna()]
        said.append(
            f"On {name}, of {yes + no + unknown} effects that the paper claims, {yes} "
            f"{_are(yes)} found, {no} {_are(no)} absent or reversed and {unknown} {_are(unknown)} "
            f"unknown; {int(known['excluded'].sum())} of {len(known)} sizes that it prints lie "
            "outside our 95 % interval."
        )
    return said


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def forest(table: pd.DataFrame) -> go.Figure:
    """The studies' intervals with the paper's numbers, a panel a unit, a row a claim.

    `table` is that of `forest_table`. Dotted: no effect.
    """
    if table.empty:
        return empty("The study has no results yet.", 200)
    units = list(table["unit"].unique())
    claims = {unit: list(table.loc[table["unit"] == unit, "claim"].unique()) for unit in units}
    figure = make_subplots(
        rows=len(units),
        cols=1,
        row_heights=[len(own) for own in claims.values()],
        vertical_spacing=0.07,
        subplot_titles=[_AXES[unit] for unit in units],
    )
    for row, unit in enumerate(units, start=1):
        own = table[table["unit"] == unit]
        places = own["claim"].map(claims[unit].index)
        _draw_studies(figure, own.assign(place=places), list(table["study"].unique()), row)
        papers = own.assign(place=places).drop_duplicates("claim")
        figure.add_scatter(
            x=papers["paper"],
            y=papers["place"],
            name="the paper",
            legendgroup="paper",
            showlegend=row == 1,
            mode="markers",
            marker={"symbol": "diamond-open", "size": 10, "color": INK, "line": {"width": 2}},
            hovertemplate="the paper: %{x:.3~f}<extra></extra>",
            row=row,
            col=1,
        )
        for threshold in own["threshold"].unique():
            figure.add_vline(x=threshold, line={"color": INK, "dash": "dot"}, row=row, col=1)
        names = [name.removesuffix(", win rate in %").removesuffix(", AUROC")
                 for name in claims[unit]]  # fmt: skip
        figure.update_yaxes(
            tickvals=list(range(len(names))), ticktext=names, range=[len(names) - 0.5, -0.5],
            showgrid=False, zeroline=False, row=row,
        )  # fmt: skip
    _explain(figure, table)
    figure.update_annotations(font_size=13)
    rows = sum(map(len, claims.values()))
    height = 170 + rows * (20 + 14 * table["study"].nunique()) + 40 * len(units)
    finish(figure, height, margin_t=96, legend_y=1 + 40 / height)
    return titled(figure, "The paper's numbers, and ours with 95 % intervals over training seeds")


def _draw_studies(figure: go.Figure, table: pd.DataFrame, studies: list[str], row: int) -> None:
    for keys, part in table.groupby(["study", "effect"], sort=False):
        name, said = map(str, keys)
        number = studies.index(name)
        shift = _SPREAD * (number / (len(studies) - 1) - 0.5) if len(studies) > 1 else 0.0
        colour, symbol = _look(said, number)
        figure.add_scatter(
            x=part["value"],
            y=part["place"] + shift,
            name=f"{name}, effect: {said}",
            showlegend=False,
            mode="markers",
            marker={"symbol": symbol, "size": 10, "color": colour},
            error_x=whiskers(part["value"], part["low"], part["high"], colour),
            customdata=part[["claim", "low", "high"]].to_numpy(),
            hovertemplate=f"{name}, effect: {said}<br>"
            "%{customdata[0]}: %{x:.3f} [%{customdata[1]:.3f}, %{customdata[2]:.3f}]"
            "<extra></extra>",
            row=row,
            col=1,
        )


def _look(effect: str, study: int) -> tuple[str, str]:
    """Colour and symbol of an estimate, by its verdict and the place of its study."""
    symbol = SYMBOLS[study % len(SYMBOLS)]
    if effect == CONSTRUCTED:
        return INK, f"{symbol}-open"
    return VERDICT_COLOURS[effect], symbol


def _explain(figure: go.Figure, table: pd.DataFrame) -> None:
    """Entries of the legend: a symbol is a study, a colour a verdict."""
    studies = {name: (SYMBOLS[number % len(SYMBOLS)], INK)
               for number, name in enumerate(table["study"].unique())}  # fmt: skip
    verdicts = {text: ("circle-open" if said == CONSTRUCTED else "line-ew", _look(said, 0)[0])
                for said, text in VERDICTS.items() if said in set(table["effect"])}  # fmt: skip
    for name, (symbol, colour) in (studies | verdicts).items():
        marker = {"symbol": symbol, "size": 10, "color": colour}
        if symbol == "line-ew":
            marker |= {"size": 14, "line": {"width": 4, "color": colour}}
        figure.add_scatter(x=[None], y=[None], name=name, mode="markers", marker=marker)


_COLUMNS = (
    "claim", "study", "unit", "value", "low", "high", "threshold", "paper", "effect", "excluded",
)  # fmt: skip


_AXES = {
    "win rate, %": "win rate, % (dotted: 50, no difference)",
    "AUROC": "AUROC (dotted: 0.5, chance)",
    "difference": "difference (dotted: none)",
    "share, or ratio to DPO": "share, or ratio to DPO (dotted: the bound that is claimed)",
}


def _unit(claim: Claim) -> str:
    if claim.threshold == 50:
        return "win rate, %"
    if claim.threshold == 0.5:
        return "AUROC"
    return "difference" if claim.threshold == 0 else "share, or ratio to DPO"
