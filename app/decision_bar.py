"""The bar above a pair: the pair before and after it, and the decision on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import streamlit as st
from marking import plain
from selection import choose_pair

from plc_core.analysis.inspection.digest import Digest
from plc_core.analysis.inspection.queries import Ints, rows
from plc_core.files import RunError
from plc_core.runs import Run
from plc_core.runs.decisions import DECISIONS, Decision, decide

KEYS = {"keep": "K", "flip": "F", "tie": "T", "drop": "D"}
MEANS = {
    "keep": "The label stays as it is",
    "flip": "The label is reversed in the export",
    "tie": "The export says that neither answer is preferred",
    "drop": "The export leaves the pair out",
}


KEYS_SAID = (
    "Keys: K keep, F flip, T tie, D drop; the same key again takes that decision back. ← and → "
    "turn to the pair before and after."
)
_PROBLEM, _TAKEN_BACK = "decision_problem", "decision_taken_back"


@dataclass(frozen=True)
class Steps:
    """The pairs before and after one in the list, its place in it, and how many are listed."""

    before: str | None
    after: str | None
    place: int | None
    total: int


def steps(found: Digest, order: Ints, row: int) -> Steps:
    """What stands around the pair of `row` in the list; nothing where it is not in the list."""
    here = place_in(order, row)
    if here is None:
        return Steps(None, None, None, len(order))

    def at(number: int) -> str | None:
        if not 0 <= number < len(order):
            return None
        return str(rows(found, order[number : number + 1], ["pair_id"])["pair_id"].iloc[0])

    return Steps(at(here - 1), at(here + 1), here, len(order))


def place_in(order: Ints, row: int) -> int | None:
    """How many pairs come before the pair of `row` in the list; None where it is not in it."""
    places = np.flatnonzero(order == row)
    return int(places[0]) if len(places) else None


def decision_bar(run: Run, pair_id: str | None, said: Decision | None, around: Steps) -> None:
    """Previous and next, the four decisions and a note; a decision is on disk at once.

    Without a pair, or while no pair is listed, nothing can be decided and every key is dead.
    """
    nothing = pair_id is None or not around.total
    name = pair_id or ""
    bar = st.container(
        horizontal=True, vertical_alignment="center", gap="small", key="decision_bar"
    )
    for target, says, arrow, key in (
        (around.before, "Previous pair", ":material/arrow_back:", "Left"),
        (around.after, "Next pair", ":material/arrow_forward:", "Right"),
    ):
        bar.button(
            " ",
            icon=arrow,
            help=says,
            key=f"go_{key}",
            shortcut=key,
            disabled=nothing or target is None,
            on_click=choose_pair,
            args=(target,),
        )
    decided = said.decision if said else None
    text = said.note if said else ""
    for decision in DECISIONS:
        bar.button(
            decision.capitalize(),
            key=f"decide_{decision}",
            type="primary" if decided == decision else "secondary",
            help=MEANS[decision] + ". Press it again to take it back.",
            shortcut=KEYS[decision],
            disabled=nothing,
            on_click=_pressed,
            args=(run, name, decision, decided, text),
        )
    key = f"note_{run.name}_{name}"

    def noted() -> None:
        _save(run, name, decided, st.session_state[key])

    bar.text_input(
        "Note",
        value=text,
        key=key,
        placeholder="Note",
        label_visibility="collapsed",
        disabled=nothing,
        on_change=noted,
        width=150,
    )
    if nothing:
        place = "no pair to decide on"
    elif around.place is None:
        place = "not in this list"
    else:
        place = f"{around.place + 1:,} of {around.total:,}"
    bar.caption(place, width="content")
    if taken_back := st.session_state.pop(_TAKEN_BACK, None):
        st.toast(f"Taken back: {taken_back}. This pair is undecided again.")
    if problem := st.session_state.pop(_PROBLEM, None):
        st.error(f"This was not saved. {plain(problem)}")


def _pressed(run: Run, pair_id: str, decision: str, decided: str | None, note: str) -> None:
    if decision != decided:
        _save(run, pair_id, decision, note)
    elif _save(run, pair_id, None, note):
        st.session_state[_TAKEN_BACK] = decision


def _save(run: Run, pair_id: str, decision: str | None, note: str) -> bool:
    """Whether the decision is on disk; why not is said when the bar is drawn."""
    try:
        decide(run, pair_id, decision, note)
    except RunError as error:
        st.session_state[_PROBLEM] = str(error)
        return False
    return True
