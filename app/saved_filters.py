"""Filters of the page Pairs that were kept under a name: the page Tests has them as groups.

They stand in the address of that page, each as its name and what the address of Pairs says of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs, quote, unquote, urlencode

import streamlit as st
from inspection.digest import Digest
from inspection.queries import MARKERS, NUMBERS, Filter
from inspection.text_search import search
from marking import plain
from pair_filter import DECIDED, UNDECIDED, Asked, first_page
from state import RANGE, TEXTS, kept, set_kept, value_of

from plc_core.runs import Run
from plc_core.runs.decisions import DECISIONS, read_decisions

GROUPS = "group"
_PARTS = ("q", "source", "label", "decision", "range", "state", "mark")
_SECONDS, _SAID = 20, "group_saved"


def filter_buttons() -> None:
    """Clear the filter, or keep it as a group of the page Tests; nothing where none is set."""
    if said := st.session_state.pop(_SAID, None):
        st.toast(said)
    parts = (*_PARTS, *(f"in_{name}" for name in st.query_params.get_all("range")))
    asked = {name: st.query_params.get_all(name) for name in parts if name in st.query_params}
    if not asked:
        return

    def clear() -> None:
        for name in asked:
            if name.startswith("in_"):
                del st.query_params[name]
            else:
                set_kept(name, "" if name in ("q", "label", "decision") else [])
        first_page()

    def keep() -> None:
        name = str(st.session_state["group_name"]).strip()
        others = [said for said in value_of(GROUPS) or [] if _name(said) != name]
        set_kept(GROUPS, [*others, f"{quote(name)}?{urlencode(asked, doseq=True)}"])
        st.session_state[_SAID] = f"{plain(name)} is a group of the page Tests."

    st.button("Clear filters", icon=":material/filter_alt_off:", key="clear", on_click=clear)
    with st.popover("Save as group", icon=":material/bookmark:"):
        st.text_input("Name", key="group_name", max_chars=40)
        st.button(
            "Save", key="save_group", on_click=keep, disabled=not st.session_state.get("group_name")
        )


def saved_groups(run: Run, found: Digest) -> dict[str, Filter]:
    """The groups that were kept, by name; those of a link too."""
    key = kept(GROUPS, [], TEXTS)
    parts = [(_name(said), parse_qs(said.partition("?")[2])) for said in st.session_state[key]]
    return {name: _filter(run, found, asked) for name, asked in parts if name and asked}


def _name(said: str) -> str:
    return unquote(said.partition("?")[0])


def _filter(run: Run, found: Digest, asked: Mapping[str, list[str]]) -> Filter:
    ranges = []
    for name in asked.get("range", []):
        if name in NUMBERS and name in found.columns and f"in_{name}" in asked:
            ranges.append((name, *RANGE.decode(asked[f"in_{name}"])))
    rows = None
    if words := "".join(asked.get("q", [])[-1:]):
        task = search(run.path, words)
        task.wait(_SECONDS, whole=True)
        rows = task.rows()
    marker = "".join(asked.get("label", [])[-1:])
    decision = "".join(asked.get("decision", [])[-1:])
    chosen = Filter(
        ranges=tuple(ranges),
        sources=tuple(asked.get("source", [])),
        states=tuple(asked.get("state", [])),
        marks=tuple(asked.get("mark", [])),
        marker=marker if marker in MARKERS else None,
        rows=rows,
    )
    if decision not in (UNDECIDED, DECIDED, *DECISIONS):
        return chosen
    return Asked(chosen, decision).given(read_decisions(run))
