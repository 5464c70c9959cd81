"""What every page is built from: a chart with its reading guide, and dates as ages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import plotly.graph_objects as go
import streamlit as st


@dataclass(frozen=True)
class Guide:
    """How to read a chart: what it shows, what a healthy run looks like, what it does not say."""

    shows: str
    healthy: str
    silent: str


def chart(figure: go.Figure, guide: Guide, key: str) -> None:
    """`figure` with its guide beside it."""
    left, right = st.columns([0.76, 0.24], gap="medium")
    with left:
        st.plotly_chart(figure, key=key, config={"displaylogo": False, "displayModeBar": False})
    with right:
        explain(guide)


def explain(guide: Guide) -> None:
    """The guide's three sentences, small."""
    st.caption(
        f"**How to read this**  \n{guide.shows}\n\n**Healthy**  \n{guide.healthy}\n\n"
        f"**It does not say**  \n{guide.silent}"
    )


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
