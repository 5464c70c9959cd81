"""One pair: its numbers, its texts side by side, its way through training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from elements import Guide, chart
from inspection.digest import Digest
from inspection.pair import read_pair, read_visits
from inspection.queries import Filter, rows, sample
from marking import literal, marked, numbers_line, prompt_turns
from reading import config_of, metrics
from recipe_curves import recipe_curve

from plc_core.analysis import figures
from plc_core.analysis.audit import STATES
from plc_core.runs import Run
from plc_core.storage.files import RunError
from plc_core.typography import minus

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
NUMBERS = ("p_flip", *SHOWN, *(f"q_{state}" for state in STATES))


class Shown(NamedTuple):
    """A pair as HTML that shows its texts literally; whether an answer is `cut`."""

    html: str
    cut: bool


def pair_html(run: Run, found: Digest, row: int, whole: bool) -> Shown:
    """The numbers and texts of the pair in one row of the run; long answers whole or cut."""
    try:
        findings_changed = (run.path / "findings.parquet").stat().st_mtime_ns
    except OSError:
        findings_changed = None
    return _html(str(found.folder), row, whole, findings_changed, run, found)


@st.cache_resource(max_entries=200, show_spinner=False)
def _html(
    folder: str, row: int, whole: bool, findings_changed: int | None, _run: Run, _found: Digest
) -> Shown:
    # The digest, whose folder is new when pairs or visits change, knows nothing of findings.
    pair = read_pair(_found, row)
    numbers = rows(_found, [row], NUMBERS).iloc[0].to_dict()
    prompt = prompt_turns(pair.get("prompt")) or "This pair has no prompt."
    answers = marked(text_of(pair.get("chosen")), text_of(pair.get("rejected")), whole)
    columns = ""
    for kind, html in zip(("chosen", "rejected"), answers[:2], strict=True):
        score = "" if pair.get("oracle_state") else _score(pair, kind)  # else see `truth`
        said = kind + (f" · score {score}" if score else "")
        columns += f'<div><div class="plc-role">{said}</div>{html}</div>'
    # A file of findings may be large, and is not asked about pairs that it says nothing of.
    marks = _marks(_run, pair) if pair.get("marks") or "marks" not in pair else ""
    return Shown(
        f'<div class="plc-id">{literal(str(pair.get("pair_id")))}</div>'
        f"{_numbers(pair, numbers)}"
        f'<div class="plc-note">{why(numbers)}</div>'
        f'<div class="plc-prompt">{prompt}</div><div class="plc-answers">{columns}</div>'
        f'<div class="plc-note">{literal(answers.note)}</div>{truth(pair)}{marks}',
        answers.cut,
    )


LOOKS = {
    "clean": "the label looks right",
    "flip": "the label looks reversed",
    "tie": "it may be a tie",
}


def why(numbers: Mapping[str, float]) -> str:
    """Why a pair was routed as it was at its last visit, in a sentence; empty before the first."""
    z, margin = numbers.get("z", math.nan), numbers.get("margin", math.nan)
    if math.isnan(z) or math.isnan(margin):
        return ""
    side = "rejected" if margin < 0 else "chosen"
    where = "below" if z < 0 else "above"
    state = max(STATES, key=lambda name: numbers[f"q_{name}"])
    return (
        f"The policy moved towards the {side} answer, {abs(z):.2f} deviations {where} the average: "
        f"{LOOKS[state]}."
    )


def pair_charts(run: Run, found: Digest, row: int, drawn: bool) -> None:
    """The pair's way through training, and its place on the run's curves; `drawn`, or room."""
    trajectory = curves = None
    if drawn:
        trajectory, curves = _figures(str(found.folder), row, run, found)
    visited = rows(found, [row], ["visits", "last_step"]).iloc[0]
    if visited["visits"] == 1:  # one dot a panel would show what stands above in figures
        chart("On the run's curves", curves, MAP, "q_against_z")
        st.caption(
            f"Over training: visited once, at step {visited['last_step']:,.0f}. Its path takes a "
            "second visit."
        )
        return
    left, right = st.columns(2)
    with left:
        chart("Over training", trajectory, TRAJECTORY, "pair_trajectory")
    with right:
        chart("On the run's curves", curves, MAP, "q_against_z")


@st.cache_resource(max_entries=32, show_spinner=False)
def _figures(folder: str, row: int, _run: Run, _found: Digest) -> tuple[go.Figure, go.Figure]:
    """Both pictures of a pair, which stays on the screen while filters around it change."""
    visits = read_visits(_found, row)
    curve = recipe_curve(config_of(_run))
    if curve.empty:
        curve = sample(_found, Filter(), ["pair_id", "z", "q_clean", "q_flip", "q_tie"], 2_000)
    here = None
    if len(visits):
        here = {str(name): value for name, value in visits.iloc[-1].items()}
    return (
        figures.pair_trajectory(visits, metrics(_run)),
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


def _numbers(pair: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    shown = {}
    if pd.notna(known.get("p_flip")):
        shown["p_flip, first visit"] = f"{known['p_flip']:.3f}"
    shown |= {
        name: minus(format(known[name], form)) if pd.notna(known.get(name)) else "–"
        for name, form in SHOWN.items()
    }
    if not pair.get("oracle_state") and _score(pair, "chosen") and _score(pair, "rejected"):
        shown["score gap"] = minus(f"{pair['score_chosen'] - pair['score_rejected']:+.2f}")
    if pair.get("votes"):
        votes = [str(vote) for vote in pair["votes"]]
        shown["votes for chosen"] = f"{votes.count('chosen')} of {len(votes)}"
        if "tie" in votes:
            shown["votes for a tie"] = f"{votes.count('tie')} of {len(votes)}"
    q = {state: known.get(f"q_{state}") for state in STATES}
    return numbers_line(shown, {s: v for s, v in q.items() if pd.notna(v)})


def _score(pair: Mapping[str, Any], kind: str) -> str:
    """An answer's score as text; empty where it is not known."""
    score = pair.get(f"score_{kind}")
    return minus(f"{score:.2f}") if isinstance(score, float) and not math.isnan(score) else ""


def truth(pair: Mapping[str, Any]) -> str:
    """What is known of the label, shut until it is asked for; empty where nothing is known.

    Beside the keys that decide on the pair it would be the answer to what is judged. Where the true
    state is known, the scores that it was made from would be too.
    """
    shown = {}
    if pair.get("flipped") is not None:
        shown["label swapped"] = "yes" if pair["flipped"] else "no"
    if pair.get("injected_tie"):
        shown["injected"] = "exact tie"
    if pair.get("oracle_state"):
        shown["true state"] = str(pair["oracle_state"])
        if (chosen := _score(pair, "chosen")) and (rejected := _score(pair, "rejected")):
            shown["scores, chosen and rejected"] = f"{chosen}, {rejected}"
    if not shown:
        return ""
    summary = "<summary>Show what is known</summary>"
    return f'<details class="plc-truth">{summary}{numbers_line(shown, {})}</details>'


def _marks(run: Run, pair: Mapping[str, Any]) -> str:
    """What validation found in the pair; its reasons quote the data."""
    try:
        found = run.findings(str(pair.get("pair_id")))
    except RunError as error:
        return f'<div class="plc-note">{literal(str(error))}</div>'
    if not len(found):
        return ""
    lines = "".join(
        f"<div>{literal(f'{rule}: {reason}')}</div>"
        for rule, reason in zip(found["rule"], found["reason"], strict=True)
    )
    return f'<div class="plc-note">What validation found in this pair{lines}</div>'
