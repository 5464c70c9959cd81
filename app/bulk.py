"""One decision on every pair of the list, after its number was said and confirmed once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import streamlit as st
from marking import plain

from plc_core.analysis.inspection.digest import Digest
from plc_core.analysis.inspection.queries import Ints, rows
from plc_core.files import RunError
from plc_core.runs import Run
from plc_core.runs.decisions import DECISIONS, Decision, decide_all

_SAID, _PROBLEM = "bulk_said", "bulk_problem"


def bulk_box(
    run: Run, found: Digest, order: Ints, decisions: Mapping[str, Decision], searching: bool
) -> None:
    """Decide on all pairs that the filters let through; `searching`: more may be found yet."""
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
        ids = [str(name) for name in rows(found, order, ["pair_id"])["pair_id"]]
        made = {i for i in ids if i in decisions and decisions[i].decision}
        chosen = ids if again else [i for i in ids if i not in made]
        are = "1 is" if len(made) == 1 else f"{len(made):,} are"
        stay = "" if again or not made else f" {are} decided already and stay as they are."
        st.caption(
            f"This list has {len(ids):,} pairs.{stay} The next Undo (U) takes all of it back."
        )
        # The name of these very pairs: a click that comes when the list has changed does nothing.
        name = hashlib.sha256(f"{run.path} {decision} {chosen}".encode()).hexdigest()[:12]
        pairs = "1 pair" if len(chosen) == 1 else f"{len(chosen):,} pairs"
        st.button(
            f"{decision.capitalize()} {pairs}",
            key=f"bulk_go_{name}",
            type="primary",
            disabled=not chosen,
            on_click=_go,
            args=(run, chosen, decision),
        )
    if said := st.session_state.pop(_SAID, None):
        st.toast(said)
    if problem := st.session_state.pop(_PROBLEM, None):
        st.error(f"This was not saved. {plain(problem)}")


def _go(run: Run, chosen: list[str], decision: str) -> None:
    try:
        decide_all(run, chosen, decision)
    except RunError as error:
        st.session_state[_PROBLEM] = str(error)
        return
    pairs = "1 pair" if len(chosen) == 1 else f"{len(chosen):,} pairs"
    st.session_state[_SAID] = f"{decision.capitalize()}: {pairs}. Undo takes it back."
