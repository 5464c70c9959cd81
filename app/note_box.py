"""The note on a pair."""

from __future__ import annotations

import streamlit as st
from marking import plain

from plc_core.runs import Run
from plc_core.runs.decisions import Decision, decide, read_decisions
from plc_core.storage.files import RunError

_PROBLEM = "note_problem"


def note_box(run: Run, pair_id: str, said: Decision | None) -> None:
    """The note on the pair, kept with the decision on it when it is entered."""
    key = f"note_{run.name}_{pair_id}"

    def noted() -> None:
        try:
            now = read_decisions(run).get(pair_id)
            decide(run, pair_id, now.decision if now else None, st.session_state[key])
        except RunError as error:
            st.session_state[_PROBLEM] = str(error)

    st.text_input(
        "Note",
        value=said.note if said else "",
        key=key,
        placeholder=f"Note on {pair_id}",
        label_visibility="collapsed",
        on_change=noted,
    )
    if problem := st.session_state.pop(_PROBLEM, None):
        st.error(f"This was not saved. {plain(problem)}")
