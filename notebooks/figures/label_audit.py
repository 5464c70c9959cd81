"""Pictures of label audits, and of what training on audited labels gains."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from plc_core.analysis.figures.style import (
    INK,
    RUN_COLOURS,
    STATE_COLOURS,
    VERDICT_COLOURS,
    empty,
    finish,
    side,
    whiskers,
)

_MARGIN = {"l": 8, "r": 12, "t": 44, "b": 8}


def p_flip_histogram(p_flip: NDArray[np.float64]) -> go.Figure:
    """How many pairs have which probability of a reversed label; the suspicious half in colour."""
    if not len(p_flip):
        return empty("There are no pairs.", 260)
    counts, edges = np.histogram(p_flip, np.linspace(0, 1, 41))
    centres = (edges[1:] + edges[:-1]) / 2
    colours = [STATE_COLOURS["flip" if centre > 0.5 else "clean"] for centre in centres]
    figure = go.Figure(
        go.Bar(
            x=centres,
            y=counts,
            marker={"color": colours},
            hovertemplate="p_flip near %{x:.2f}: %{y:,} pairs<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="p_flip, the probability that a label is reversed", range=[0, 1])
    figure.update_yaxes(title_text="pairs", rangemode="tozero", tickformat=",")
    title = _title("How likely each label is to be reversed")
    return finish(figure, 300, bargap=0.05, showlegend=False, margin=_MARGIN, title=title)


def agreement(table: pd.DataFrame, rate: float | None) -> go.Figure:
    """Share of labels that the evidence agrees with, by its size: it levels off at one minus the
    noise rate.

    Args:
        table: of `audit_report.agreement_by_margin`.
        rate: the noise rate; None where it is not known.
    """
    if table.empty:
        return empty("There are too few pairs.", 260)
    figure = go.Figure(
        go.Scatter(
            x=table["margin"],
            y=table["agrees"],
            mode="lines+markers",
            line={"color": STATE_COLOURS["clean"], "width": 2},
            customdata=table["pairs"],
            hovertemplate="|margin| %{x:.2f}: %{y:.1%} of %{customdata:,}<extra></extra>",
        )
    )
    figure.add_hline(0.5, line={"color": INK, "width": 1, "dash": "dot"})
    if rate is not None:
        line = {"color": STATE_COLOURS["flip"], "width": 1, "dash": "dash"}
        figure.add_hline(1 - rate, line=line, annotation_text="1 − noise rate",
                         annotation_position="bottom right")  # fmt: skip
    figure.update_xaxes(title_text="strength of the evidence, |margin|", rangemode="tozero")
    figure.update_yaxes(title_text="labels that agree", tickformat=".0%")
    title = _title("Labels that agree with the evidence, by its strength")
    return finish(figure, 300, showlegend=False, margin=_MARGIN, title=title)


def precision_by_rank(
    suspicion: Mapping[str, NDArray[np.floating]], flipped: NDArray[np.bool_]
) -> go.Figure:
    """Share of reversed labels among the k most suspicious, a line a ranking; the first stands out.

    Args:
        suspicion: [pairs] by name, larger for more suspicious.
        flipped: [pairs].
    """
    counts = np.arange(1, len(flipped) + 1)
    least = min(20, len(flipped))
    figure = go.Figure()
    for name, own in suspicion.items():
        hits = flipped[np.argsort(-own, kind="stable")].cumsum()
        places = np.unique(np.geomspace(least, len(flipped), 200).astype(int)) - 1
        figure.add_scatter(
            x=counts[places],
            y=(hits / counts)[places],
            name=name,
            mode="lines",
            line=_line(name),
            hovertemplate="of the first %{x:,}: %{y:.0%}",
        )
    figure.add_hline(flipped.mean(), line={"color": INK, "width": 1, "dash": "dot"})
    ticks = [n for ten in (10, 100, 1_000, 10_000, 100_000) for n in (ten, 2 * ten, 5 * ten)]
    figure.update_xaxes(
        title_text="labels looked at, the most suspicious first", type="log", tickformat=",",
        tickvals=[n for n in ticks if least <= n <= len(flipped)],
    )  # fmt: skip
    figure.update_yaxes(title_text="reversed among them", tickformat=".0%", rangemode="tozero")
    return finish(figure, 390, margin_t=40)


def rankings_by_rate(table: pd.DataFrame) -> go.Figure:
    """AUROC for labels reversed at random over their share, a line a ranking; the first stands out.

    Args:
        table: of `studies.label_audit.rankings`.
    """
    table = table[table["kind"] == "at random"]
    if table.empty:
        return empty("No labels were ranked.", 200)
    figure = go.Figure()
    names = list(dict.fromkeys(table["ranking"]))
    for number, name in enumerate(names):
        own = table[table["ranking"] == name].sort_values("rate")
        figure.add_scatter(
            x=own["rate"] + 0.002 * (number - len(names) / 2),
            y=own["value"],
            error_y={"array": own["high"] - own["value"], "thickness": 1, "width": 2},
            name=name,
            mode="lines+markers",
            line=_line(name),
            hovertemplate="%{x:.0%}: %{y:.3f}",
        )
    figure.update_xaxes(title_text="share of reversed labels", tickformat=".0%")
    figure.update_yaxes(title_text="AUROC for reversed labels")
    return finish(figure, 450, margin_t=84)


def gains(
    table: pd.DataFrame, against: tuple[str, ...] = ("DPO", "DPO at the same KL")
) -> go.Figure:
    """Points of accuracy over each of `against`, a row a label, with intervals over seeds.

    A symbol is a rival, a colour what the interval shows.

    Args:
        table: of `studies.audit_gains.gains_by_method` or `gains_side_by_side`.
    """
    table = table[table["against"].isin(against)]
    if table.empty:
        return empty("Nothing was trained on audited labels.", 200)
    labels = list(dict.fromkeys(table["label"]))
    figure = go.Figure()
    for number, name in enumerate(against):
        symbol = ("circle", "diamond-open")[number]
        found = table[table["against"] == name]
        said = [side(low, high) for low, high in zip(found["low"], found["high"], strict=True)]
        for verdict, own in found.groupby(said):
            colour = VERDICT_COLOURS[str(verdict)]
            figure.add_scatter(
                x=own["value"],
                y=[
                    len(labels) - 1 - labels.index(label) + 0.16 - 0.32 * number
                    for label in own["label"]
                ],
                error_x=whiskers(own["value"], own["low"], own["high"], colour),
                mode="markers",
                marker={"color": colour, "size": 9, "symbol": symbol},
                name=f"over {name}, {_VERDICTS[str(verdict)]}",
                showlegend=False,
                customdata=np.stack((own["label"], own["n"].astype(int)), 1),
                hovertemplate="%{customdata[0]}: %{x:+.1f} points (n=%{customdata[1]} seeds)",
            )
        _key(figure, f"over {name}", symbol, INK)
    for key, text in _VERDICTS.items():
        _key(figure, text, "line-ew", VERDICT_COLOURS[key])
    figure.add_vline(0, line={"color": INK, "dash": "dot", "width": 1})
    figure.update_yaxes(tickvals=list(range(len(labels))), ticktext=labels[::-1], showgrid=False)
    figure.update_xaxes(title_text="points of held-out accuracy on clean labels")
    return finish(figure, 120 + 34 * len(labels), margin_t=40)


def _title(text: str) -> dict[str, object]:
    return {"text": text, "x": 0, "font": {"size": 14}}


_VERDICTS = {"yes": "gain", "no": "loss", "unknown": "not shown"}
"""What an interval over seeds says, in the legend."""


def _key(figure: go.Figure, name: str, symbol: str, colour: str) -> None:
    marker = {"symbol": symbol, "size": 10, "color": colour}
    if symbol == "line-ew":
        marker |= {"size": 14, "line": {"width": 4, "color": colour}}
    figure.add_scatter(x=[None], y=[None], name=name, mode="markers", marker=marker)


_OURS = "all added up"
_EVIDENCE = (_OURS, "hidden states", "words", "length", "log length")
_RIVALS = (
    "confident learning", "PerpCorrect's perplexities", "reward model of clean labels",
    "lengths, by what most prefer", "DPO's margin", "q_flip, DPO's shadow", "q_flip, PLC-DPO",
    "RE-PO's reliability",
)  # fmt: skip


def _line(name: str) -> dict[str, object]:
    """The line of a ranking: the same colour in every figure; dotted where it is no evidence of
    the audit; the audit as a whole stands out."""
    own = name.removeprefix("audit, ")
    if own in _EVIDENCE:
        place, dash = _EVIDENCE.index(own), "solid"
    else:
        place = len(_EVIDENCE) + (_RIVALS.index(own) if own in _RIVALS else 0)
        dash = "dot"
    colour = RUN_COLOURS[place % len(RUN_COLOURS)]
    return {"color": colour, "width": 3 if own == _OURS else 1.4, "dash": dash}
