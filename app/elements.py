"""What every page is built from: a card with a chart and its guide, and dates as ages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from state import TEXT, kept, value_of

FORMATS, SAVED_AS = ("SVG", "PNG"), "save"
TEXT_COLOUR = "#000037"
"""What Streamlit draws in a chart in the text colour of the theme that is on: its own axes are in a
grey that stands out from white by 3.7:1 only."""

STYLE = """<style>
.block-container {padding: 4.1rem 2.2rem 4rem}
h1 {padding: .2rem 0 .35rem !important}
[data-testid="stCaptionContainer"] p {line-height: 1.45}
[data-testid="stMetricLabel"] p {font-size: .8rem}
[data-testid="stMetricValue"] {font-size: 1.45rem}
[data-testid="stMetricValue"] > div {white-space: normal}
[data-testid="stVerticalBlock"] {gap: .7rem}
[data-testid="stElementContainer"]:has(> * [data-testid="stPlotlyChart"]), .js-plotly-plot {
  overflow: visible !important}
.js-plotly-plot .modebar-container {top: -2.5rem !important}
.plc-room {height: 450px}
.st-key-tiles, .st-key-tiles > [data-testid="stHorizontalBlock"] {row-gap: .5rem !important}
[data-testid="stButtonGroup"] button {color: inherit !important}
@media (hover: none) {[data-testid="stElementToolbar"] {display: none}}
.block-container:not(:has([data-testid="stPlotlyChart"])) .st-key-save_format {display: none}
[data-plc-ahead] :is(.st-key-pair_charts, .st-key-beside) {opacity: .25; pointer-events: none}
@media (max-width: 640px) {.block-container {padding: 4.1rem .8rem 4rem}}
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

    def __str__(self) -> str:
        said = {"Shows": self.shows, "Healthy": self.healthy, "Does not show": self.silent}
        return "\n\n".join(f"**{name}** · {text}" for name, text in said.items())


def chart(
    title: str,
    figure: go.Figure | None,
    guide: Guide,
    key: str,
    *,
    clicked: Callable[[str], None] | None = None,
) -> None:
    """A card with `figure`, its guide behind a question mark; without a figure, room for one.

    `clicked` is called with the key when a point was clicked.
    """
    with st.container(border=True, height="stretch"):
        heading(title, guide)
        if figure is None:
            st.html('<div class="plc-room"></div>')
        else:
            draw(title, figure, key, clicked)


def page_title(title: str, question: str) -> None:
    """A page's title and, beside it, the question that the page answers."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.title(title, anchor=False, width="content")
        if question:
            st.caption(question, width="content")


def heading(title: str, guide: Guide | None = None) -> None:
    """The title of a card, and how to read it behind a question mark."""
    st.markdown(f"**{title}**", help=None if guide is None else str(guide))


def _config(title: str) -> dict[str, object]:
    """A button at the pointer that saves the chart; drag to zoom, double-click to zoom out."""
    form = value_of(SAVED_AS) or FORMATS[0]
    name = "-".join(re.findall(r"\w+", title)).lower()[:60] or "chart"
    image = {"format": form.lower(), "filename": name, "scale": 3 if form == "PNG" else 1}
    return {
        "displaylogo": False,
        "modeBarButtons": [["toImage"]],
        "toImageButtonOptions": image,
    }


def save_format() -> None:
    """As what a chart's button saves it: one choice for all charts, at the foot of the page.

    `STYLE` hides it while the page has no chart, as parts of a page come and go by themselves.
    """
    with st.container(key="save_format"):
        st.segmented_control(
            "Save charts as",
            FORMATS,
            key=kept(SAVED_AS, FORMATS[0], TEXT, FORMATS),
            required=True,
            help="The camera at a chart's upper right corner saves it.",
        )


def draw(
    title: str, figure: go.Figure, key: str, clicked: Callable[[str], None] | None = None
) -> None:
    """A figure alone; `title` names it to a reader of screens, and the file it is saved as."""
    config = _config(title)
    _write_readably(figure)
    if clicked is None:
        st.plotly_chart(figure, key=key, config=config, alt=title)
        return

    def on_select() -> None:
        clicked(key)

    st.plotly_chart(
        figure, key=key, config=config, alt=title, on_select=on_select, selection_mode="points"
    )


def _write_readably(figure: go.Figure) -> None:
    """Write all that has no colour of its own in that of the theme's text; the same twice."""
    if figure.layout.font.color == TEXT_COLOUR:
        return
    axis = {"tickfont": {"color": TEXT_COLOUR}, "title": {"font": {"color": TEXT_COLOUR}}}
    figure.update_xaxes(axis).update_yaxes(axis)
    corner = {"tickfont": {"color": TEXT_COLOUR}}
    figure.update_ternaries(dict.fromkeys(("aaxis", "baxis", "caxis"), corner))
    figure.update_layout(font={"color": TEXT_COLOUR})


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
