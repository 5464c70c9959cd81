"""One decision on every pair of the list, after its number was said and confirmed once."""

from __future__ import annotations

import hashlib

import streamlit as st
from inspection.digest import Digest
from inspection.queries import Ints, rows
from marking import plain

from plc_core.runs import Run
from plc_core.runs.decisions import DECISIONS, decide_all, read_decisions
from plc_core.storage.files import RunError

_SAID, _PROBLEM = "bulk_said", "bulk_problem"


def bulk_box(run: Run, found: Digest, order: Ints, made: int, searching: bool) -> None:
    """Decide on all pairs that the filters let through.

    `made` of them are decided already; while `searching`, more may be found yet.
    """
    box = st.popover(
        "Decide all",
        icon=":material/done_all:",
        key="bulk_box",
        disabled=searching or not len(order),
        help="Not while the search goes on." if searching else None,
    )
    with box:
        decision = st.radio("Decision", DECISIONS, horizontal=True, key="bulk_decision")
        again = st.checkbox("Also those that are decided already", False, key="bulk_again")
        chosen = len(order) if again else len(order) - made
        are = "1 is" if made == 1 else f"{made:,} are"
        stay = "" if again or not made else f" {are} decided already and stay as they are."
        st.caption(
            f"This list has {len(order):,} pairs.{stay} The next Undo (U) takes all of it back."
        )
        # The name of these very pairs: a click that comes when the list has changed does nothing.
        # Their ids are read when it comes.
        said = f"{run.path} {decision} {again} {chosen}".encode("utf-8", "surrogateescape")
        name = hashlib.blake2b(order.tobytes() + said, digest_size=6).hexdigest()
        pairs = "1 pair" if chosen == 1 else f"{chosen:,} pairs"
        st.button(
            f"{decision.capitalize()} {pairs}",
            key=f"bulk_go_{name}",
            type="primary",
            disabled=not chosen,
            on_click=_go,
            args=(run, found, order, decision, again),
        )
    if said := st.session_state.pop(_SAID, None):
        st.toast(said)
    if problem := st.session_state.pop(_PROBLEM, None):
        st.error(f"This was not saved. {plain(problem)}")


def _go(run: Run, found: Digest, order: Ints, decision: str, again: bool) -> None:
    chosen = [str(name) for name in rows(found, order, ["pair_id"])["pair_id"]]
    try:
        if not again:
            made = read_decisions(run)
            chosen = [i for i in chosen if i not in made or not made[i].decision]
        decide_all(run, chosen, decision)
    except RunError as error:
        st.session_state[_PROBLEM] = str(error)
        return
    pairs = "1 pair" if len(chosen) == 1 else f"{len(chosen):,} pairs"
    st.session_state[_SAID] = f"{decision.capitalize()}: {pairs}. Undo takes it back."
