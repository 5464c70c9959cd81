"""What every page is built from: a card with a chart and its guide, and dates as ages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

STYLE = """<style>
.block-container {padding: 4.1rem 2.2rem 4rem}
h1 {padding: .2rem 0 .35rem !important}
[data-testid="stCaptionContainer"] p {line-height: 1.45}
[data-testid="stMetricLabel"] p {font-size: .8rem}
[data-testid="stMetricValue"] {font-size: 1.45rem}
[data-testid="stMetricValue"] > div {white-space: normal}
[data-testid="stVerticalBlock"] {gap: .7rem}
[data-plc-ahead] :is(.st-key-pair_charts, .st-key-beside) {opacity: .25; pointer-events: none}
@media (max-width: 1000px) {
  .st-key-split > [data-testid="stLayoutWrapper"] > [data-testid="stHorizontalBlock"],
  .st-key-split > [data-testid="stHorizontalBlock"] {flex-wrap: wrap}
  .st-key-split > div > [data-testid="stHorizontalBlock"] > [data-testid="stColumn"],
  .st-key-split > [data-testid="stHorizontalBlock"] > [data-testid="stColumn"] {
    min-width: 100%; flex: 1 1 100%}
}
</style>"""
"""More of a laptop's screen for the data than Streamlit leaves."""


@dataclass(frozen=True)
class Guide:
    """How to read a chart: what it shows, what a healthy run looks like, what it does not say."""

    shows: str
    healthy: str
    silent: str


def chart(
    title: str,
    figure: go.Figure,
    guide: Guide,
    key: str,
    *,
    beside: bool = False,
    clicked: Callable[[str], None] | None = None,
) -> None:
    """A card with `figure` and its guide, below it or beside it.

    `clicked` is called with the key when a point was clicked.
    """
    with st.container(border=True, height="stretch"):
        heading(title)
        if beside:
            left, right = st.columns([0.76, 0.24], gap="medium")
        else:
            left = right = st.container()
        with left:
            _draw(title, figure, key, clicked)
        with right:
            explain(guide, stacked=beside)


def page_title(title: str, question: str) -> None:
    """A page's title and, beside it, the question that the page answers."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.title(title, anchor=False, width="content")
        st.caption(question, width="content")


def heading(title: str) -> None:
    """The title of a card."""
    st.markdown(f"**{title}**")


def explain(guide: Guide, stacked: bool = True) -> None:
    """The guide's three sentences, small."""
    between = "\n\n" if stacked else "  \n"
    st.caption(
        f"**How to read this**{'  ' + chr(10) if stacked else ' · '}{guide.shows}{between}"
        f"**Healthy** · {guide.healthy}{between}**Caveat** · {guide.silent}"
    )


def _draw(title: str, figure: go.Figure, key: str, clicked: Callable[[str], None] | None) -> None:
    config = {"displaylogo": False, "displayModeBar": False}
    if clicked is None:
        st.plotly_chart(figure, key=key, config=config, alt=title)
        return

    def on_select() -> None:
        clicked(key)

    st.plotly_chart(
        figure, key=key, config=config, alt=title, on_select=on_select, selection_mode="points"
    )


def table(frame: pd.DataFrame, key: str, **columns: object) -> None:
    """A small table of numbers, as high as its rows."""
    st.dataframe(
        frame, key=key, hide_index=True, height="content", placeholder="–", column_config=columns
    )


def number(form: str = "%.3f", label: str | None = None) -> object:
    """The column of a number."""
    return st.column_config.NumberColumn(label, format=form)


def moment(when: str | None) -> str:
    """The ISO time `when` to the minute, as 2026-11-27 23:47 UTC; other text as it is."""
    try:
        return datetime.fromisoformat(str(when)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return str(when or "")


def age(when: str | None) -> str:
    """How long ago the ISO time `when` was, in the largest fitting unit."""
    try:
        then = datetime.fromisoformat(str(when))
        seconds = (datetime.now(UTC) - then).total_seconds()
    except (ValueError, TypeError):
        return "–"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"
