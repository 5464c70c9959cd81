"""One pair: its numbers, its texts side by side, its way through training."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from elements import Guide, chart
from marking import STYLE, literal, marked, numbers_line, prompt_turns
from reading import config_of, metrics, shown_errors

from plc_core.analysis import figures
from plc_core.analysis.audit import STATES
from plc_core.analysis.inspection.digest import Digest
from plc_core.analysis.inspection.pair import read_pair, read_visits
from plc_core.analysis.inspection.queries import Filter, sample
from plc_core.analysis.recipes import recipe_curve
from plc_core.runs import Run

TRAJECTORY = Guide(
    "This pair's q, z and margin m at each step that used it; one epoch is one dot. The grey band "
    "is the running mean of m ± one deviation, from which z is measured.",
    "Over several epochs, a clean pair's margin rises and its q_flip falls.",
    "Why. A low margin may be a wrong label, a hard pair, or one that the policy has not learnt.",
)
MAP = Guide(
    "How this run turns z into routing weights; the dots are this pair at its last visit.",
    "q_clean wins to the right, q_flip to the left. q_tie peaks near z = 0, below both.",
    "That the pair is what its largest q says: the weights steer the update, they do not audit "
    "the label.",
)
SHOWN = {"z": ".2f", "margin": ".3g", "weight": ".3f"}


def pair_texts(run: Run, found: Digest, row: int) -> pd.DataFrame:
    """The numbers and texts of the pair in one row of the run, nobody else's; its visits."""
    pair, visits = _read(str(found.folder), row, found)
    last = visits.iloc[-1] if len(visits) else None
    st.html(STYLE)
    known = len(visits) and "p_flip" in visits and pd.notna(visits["p_flip"].iloc[0])
    _numbers(pair, last, float(visits["p_flip"].iloc[0]) if known else math.nan)
    shown = prompt_turns(pair.get("prompt")) or "This pair has no prompt."
    st.html(f'<div class="plc-prompt">{shown}</div>')
    whole = bool(st.session_state.get("whole_texts"))
    answers = marked(text_of(pair.get("chosen")), text_of(pair.get("rejected")), whole)
    for column, kind, html in zip(st.columns(2), ("chosen", "rejected"), answers[:2], strict=True):
        score = pair.get(f"score_{kind}")
        known = isinstance(score, float) and not math.isnan(score)
        said = kind + (f" · score {score:.2f}" if known else "")
        column.html(f'<div class="plc-role">{said}</div>{html}')
    if answers.cut:
        st.toggle("Show the whole of long answers", key="whole_texts")
    st.caption(answers.note)
    _marks(run, pair)
    return visits


@st.cache_resource(max_entries=8, show_spinner=False)
def _read(folder: str, row: int, _found: Digest) -> tuple[dict[str, Any], pd.DataFrame]:
    """What the run holds of a pair, which stays on the screen while the list around it changes."""
    return read_pair(_found, row), read_visits(_found, row)


def pair_charts(run: Run, found: Digest, row: int, visits: pd.DataFrame) -> None:
    """The pair's way through training, and its place on the run's curves."""
    trajectory, curves = _figures(str(found.folder), row, run, found, visits)
    left, right = st.columns(2)
    with left:
        chart("Its way through training", trajectory, TRAJECTORY, "pair_trajectory")
    with right:
        chart("Where it stands on the run's curves", curves, MAP, "q_against_z")


@st.cache_resource(max_entries=32, show_spinner=False)
def _figures(
    folder: str, row: int, _run: Run, _found: Digest, _visits: pd.DataFrame
) -> tuple[go.Figure, go.Figure]:
    """Both pictures of a pair, which stays on the screen while filters around it change."""
    curve = recipe_curve(config_of(_run))
    if curve.empty:
        curve = sample(_found, Filter(), ["pair_id", "z", "q_clean", "q_flip", "q_tie"], 2_000)
    here = None
    if len(_visits):
        here = {str(name): value for name, value in _visits.iloc[-1].items()}
    return (
        figures.pair_trajectory(_visits, metrics(_run)),
        # Its labels are known, so that a browser need not measure them to find room.
        figures.q_against_z(curve, here).update_layout(
            height=450,
            margin={"l": 60, "b": 48},
            xaxis={"automargin": False},
            yaxis={"automargin": False},
        ),
    )


def text_of(value: Any) -> str | None:
    """An answer as text: that of the last turn where it is messages, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        content = value[-1].get("content")
        if isinstance(content, str):
            return content
    return json.dumps(value, default=str)


def _numbers(pair: dict[str, Any], last: pd.Series | None, p_flip: float) -> None:
    known = {} if last is None else last.to_dict()
    shown = {} if math.isnan(p_flip) else {"p_flip at first": f"{p_flip:.3f}"}
    shown |= {
        name: format(known[name], form) if pd.notna(known.get(name)) else "–"
        for name, form in SHOWN.items()
    }
    scores = [pair.get("score_chosen"), pair.get("score_rejected")]
    chosen, rejected = (score if isinstance(score, float) else math.nan for score in scores)
    if not math.isnan(chosen - rejected):
        shown["score gap"] = f"{chosen - rejected:+.2f}"
    if pair.get("votes"):
        votes = [str(vote) for vote in pair["votes"]]
        shown["votes for chosen"] = f"{votes.count('chosen')} of {len(votes)}"
        if "tie" in votes:
            shown["votes for a tie"] = f"{votes.count('tie')} of {len(votes)}"
    if pair.get("flipped") is not None:
        shown["label swapped"] = "yes" if pair["flipped"] else "no"
    if pair.get("injected_tie"):
        shown["injected"] = "exact tie"
    if pair.get("oracle_state"):
        shown["true state"] = str(pair["oracle_state"])
    q = {state: known.get(f"q_{state}") for state in STATES}
    line = numbers_line(shown, {s: v for s, v in q.items() if pd.notna(v)})
    st.html(f'<div class="plc-id">{literal(str(pair.get("pair_id")))}</div>{line}')


def _marks(run: Run, pair: dict[str, Any]) -> None:
    found = pd.DataFrame()
    with shown_errors(run.name):
        found = run.findings(str(pair.get("pair_id")))
    if len(found):
        st.caption("What validation found in this pair")
        for rule, reason in zip(found["rule"], found["reason"], strict=True):
            st.text(f"{rule}: {reason}")  # reasons quote the data: text, never markup
