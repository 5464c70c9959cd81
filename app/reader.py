"""The pair on the screen and the decision on it: keys and buttons act in the browser at once.

Each decision comes with the id of the pair that was shown when it was made (`reader.js`), however
late it arrives here; it is on disk before the browser hears that it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from inspection.digest import Digest
from inspection.queries import Ints, rows
from key_log import acknowledged, take_new
from marking import CSS, plain
from pair_view import pair_html
from reading import open_below, runs_root
from selection import choose_pair, chosen_runs
from state import value_of

from plc_core.runs import Run
from plc_core.runs.decisions import Decision, decide, read_decisions, undo

KEY = "reader"
KEYS_SAID = (
    "Keys: K keep, F flip, T tie, D drop, then the next pair; the same key again takes a decision "
    "back. U undoes, step by step. ← and → turn the page."
)
MEANS = {
    "keep": ("K", "The label stays as it is"),
    "flip": ("F", "The label is reversed in the export"),
    "tie": ("T", "The export says that neither answer is preferred"),
    "drop": ("D", "The export leaves the pair out"),
}
BEHIND, AHEAD = 30, 150
"""So many ids before and after the pair on the screen are known to the browser."""

LEAST_TEXTS, MOST_TEXTS = 1, 32
MOST_BYTES = 400_000
"""Of the pairs ahead, so many texts are sent along, more of them while decisions come quickly."""

_PROBLEM, _SAID, _PACE = "reader_problem", "reader_said", "reader_pace"


def _button(action: str, label: str, key: str, means: str) -> str:
    shown = f"{label}<kbd>{key}</kbd>" if key else label
    return f'<button data-action="{action}" title="{means}" aria-label="{action}">{shown}</button>'


HTML = (
    '<div class="plc-reader" data-at="root"><div class="plc-bar">'
    + _button("back", "←", "", "Previous pair")
    + _button("on", "→", "", "Next pair")
    + "".join(
        _button(name, name.capitalize(), key, f"{means}. Press it again to take it back.")
        for name, (key, means) in MEANS.items()
    )
    + _button("undo", "Undo", "U", "Take back the last decision, then the one before it, …")
    + '<span data-at="place"></span>'
    '<span class="plc-progress" data-at="progress"></span></div>'
    '<div class="plc-track"><div data-at="bar"></div></div>'
    '<div class="plc-saving" data-at="saving" role="status"></div>'
    '<div data-at="pane"></div></div>'
)
_HERE = Path(__file__).parent
_component = st.components.v2.component(
    "plc_reader",
    html=HTML,
    css=CSS + (_HERE / "reader.css").read_text(encoding="utf-8"),
    js=(_HERE / "reader.js").read_text(encoding="utf-8"),
    isolate_styles=False,
)


@dataclass(frozen=True)
class Progress:
    """How many of the pairs that the filter lets through are decided on."""

    decided: int
    total: int


def place_in(order: Ints, row: int) -> int | None:
    """How many pairs come before the pair of `row` in the list; None where it is not in it."""
    places = np.flatnonzero(order == row)
    return int(places[0]) if len(places) else None


def reader(
    run: Run,
    found: Digest,
    order: Ints,
    row: int | None,
    decisions: Mapping[str, Decision],
    progress: Progress,
) -> None:
    """The pair of `row` with the bar above it; without one nothing can be decided."""
    here = None if row is None else place_in(order, row)
    first = 0 if here is None else max(0, here - BEHIND)
    places = order[first : here + AHEAD] if here is not None else order[:0]
    ids = _ids(found, places)
    current = None if row is None or not len(order) else _ids(found, [row])[0]
    if row is not None and here is None:
        ids, first = [], 0
    _component(
        key=KEY,
        data={
            "run": run.name,
            "current": current,
            "nothing": "No pair is shown." if len(order) else "No pair is left to show.",
            "ids": ids,
            "first": first,
            "total": len(order),
            "pairs": {} if current is None else _texts(run, found, places, row, ids, current),
            "decided": {
                i: decisions[i].decision
                for i in [*ids, current]
                if i in decisions and decisions[i].decision
            },
            "progress": [progress.decided, progress.total],
            "words": value_of("q") or "",
            "undoable": bool(decisions),
            "acked": acknowledged(KEY),
        },
        on_log_change=_apply,
    )
    if said := st.session_state.pop(_SAID, None):
        st.toast(said)
    if problem := st.session_state.pop(_PROBLEM, None):
        st.error(f"This was not saved. {plain(problem)}")


def _ids(found: Digest, places: Sequence[int] | Ints) -> list[str]:
    return [str(name) for name in rows(found, places, ["pair_id"])["pair_id"]]


def _texts(
    run: Run, found: Digest, places: Ints, row: int | None, ids: list[str], current: str
) -> dict[str, str]:
    """The pair on the screen and those ahead; those before it the browser has seen and keeps."""
    assert row is not None
    whole = bool(st.session_state.get("whole_texts"))
    texts = {current: pair_html(run, found, row, whole).html}
    if current not in ids:
        return texts
    here = ids.index(current)
    ahead = min(MOST_TEXTS, LEAST_TEXTS + 2 * int(st.session_state.pop(_PACE, 0)))
    size = 0
    for place in range(here + 1, min(len(ids), here + 1 + ahead)):
        if size < MOST_BYTES:
            texts[ids[place]] = pair_html(run, found, int(places[place]), False).html
            size += len(texts[ids[place]])
    return texts


def _apply() -> None:
    """Take what was done in the browser since it was last heard, in that order, each thing once."""
    taken = take_new(KEY, _take)
    st.session_state[_PACE] = taken.entries
    if taken.refused is not None:
        st.session_state[_PROBLEM] = taken.problem
        if taken.refused.get("pair"):
            choose_pair(str(taken.refused["pair"]))


def _take(entry: Mapping[str, Any]) -> None:
    root = runs_root()
    run = open_below(root, str(entry["run"]))
    target = entry.get("to")
    if entry["kind"] == "undo":
        undone = undo(run)
        if undone is None:
            return
        what = undone.decision or "a note"
        of = "1 pair" if len(undone.pairs) == 1 else f"{len(undone.pairs):,} pairs"
        st.session_state[_SAID] = f"Undone: {what}, of {of}."
        target = undone.pairs[0]
    elif entry["kind"] == "decide":
        pair_id, decision = str(entry["pair"]), entry["decision"]
        before = read_decisions(run).get(pair_id)
        decide(run, pair_id, decision, before.note if before else "")
        if decision is None and before and before.decision:
            st.session_state[_SAID] = f"Taken back: {before.decision}. The pair is undecided again."
    if target and chosen_runs(root)[:1] == [run.name]:
        choose_pair(str(target))
