"""What a page shows while the visits of a large run are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from elements import Guide, chart
from figures.overlay import GROUPS, run_curves
from inspection.preparing import Preparation
from marking import plain

from plc_core.runs import Run

MEANWHILE = Guide(
    "Mean weights of each step's pairs, and γ, as training logged them: they are there before any "
    "visit is read.",
    "γ is 0 during warm-up and then rises; mean q moves slowly.",
    "Anything about single pairs: those come with the visits.",
)


def wait_for(run: Run, task: Preparation, metrics: Callable[[Run], pd.DataFrame]) -> NoReturn:
    """Show how far reading is and what is known without it; the page is drawn anew at its end."""
    with st.container(border=True, key="waiting"):
        st.markdown(
            "**This run is opened for the first time.** Its visits are read once; the page goes on "
            "by itself when they are."
        )
        _progress(task)
    table = metrics(run)
    if len(table):
        figure = curves({run.name: table}, GROUPS["Routing"], None)
        title = f"Routing of {plain(run.name)}, step by step"
        chart(title, figure, MEANWHILE, key="meanwhile")
    st.stop()


@st.cache_resource(max_entries=32, show_spinner=False)
def curves(
    tables: dict[str, pd.DataFrame], columns: Sequence[str], baseline: str | None
) -> go.Figure:
    """`run_curves`, drawn once for all who look at these tables."""
    return run_curves(tables, columns, baseline)


@st.fragment(run_every=0.7)
def _progress(task: Preparation) -> None:
    if task.ended.is_set():
        st.rerun()
    share = task.done / task.total if task.total else 0.0
    text = f"{task.done:,} of {task.total:,} files of visits" if task.total else "Reading the pairs"
    st.progress(min(share, 1.0), text=text)
