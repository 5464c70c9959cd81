"""Which runs and which pair are chosen: in the URL, so that a reload or a link shows the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st
from elements import page_title
from listing import audits, default_run, listed, training_runs
from reading import runs_root
from state import keep_alive

PAIRS_PAGE = "views/pairs.py"
AUDIT_PAGE = "views/label_audit.py"
_GO = "go_to_pair"


def restore() -> None:
    """Take the selection from the URL, or put it back after a page switch, which clears the URL."""
    for key in ("run", "pair", "audit"):
        given = st.query_params.get_all(key)
        if given:
            st.session_state[f"chosen_{key}"] = given
        elif stored := st.session_state.get(f"chosen_{key}"):
            st.query_params[key] = stored
    keep_alive()


def chosen_runs(root: Path) -> list[str]:
    """The chosen runs, the first being the one that the other pages show.

    At first it is the default one, which stays when another run starts later.
    """
    if "chosen_run" not in st.session_state and (name := default_run(root)):
        choose_runs([name])
    return list(st.session_state.get("chosen_run", []))


def choose_runs(names: list[str]) -> None:
    """Make `names` the chosen runs."""
    _store("run", names)


def chosen_pair() -> str | None:
    """The id of the chosen pair."""
    stored = st.session_state.get("chosen_pair")
    return stored[-1] if stored else None


def choose_pair(pair_id: str) -> None:
    """Make `pair_id` the chosen pair; it stays chosen when another run is opened."""
    _store("pair", [pair_id])


def head(title: str, question: str = "") -> tuple[Path, str] | None:
    """A page's title, the question it answers, and its run picker; directory and chosen run."""
    left, right = st.columns([0.7, 0.3], vertical_alignment="bottom")
    with left:
        page_title(title, question)
    root = runs_root()
    with right:
        name = pick_run(root)
    if name is None:
        st.info("No run can be read; the page Runs says why.")
        return None
    return root, name


def pick_run(root: Path) -> str | None:
    """A select box with every run below `root` but the analyses; the name of the chosen one."""
    names = [run.name for run in training_runs(listed(root))]
    chosen = chosen_runs(root)
    current = chosen[0] if chosen else None
    # A run that the URL names and the directory lacks stays in the list: the page says so.
    options = names if current is None or current in names else [current, *names]
    st.session_state["run_picker"] = current

    def changed() -> None:
        picked = st.session_state["run_picker"]
        choose_runs([picked, *(name for name in chosen[1:] if name != picked)])

    st.selectbox("Run", options, key="run_picker", on_change=changed, label_visibility="collapsed")
    return current


def pick_audit(root: Path) -> str | None:
    """A select box with every label audit below `root`; the name of the chosen one.

    At first it is the chosen run where that is an audit, else the newest.
    """
    names = [run.name for run in audits(listed(root))]
    of_run = [name for name in st.session_state.get("chosen_run", []) if name in names]
    current = next(iter([*st.session_state.get("chosen_audit", [])[-1:], *of_run, *names]), None)
    if current is None:
        return None
    _store("audit", [current])
    options = names if current in names else [current, *names]
    st.session_state["audit_picker"] = current

    def changed() -> None:
        _store("audit", [st.session_state["audit_picker"]])

    st.selectbox(
        "Audit", options, key="audit_picker", on_change=changed, label_visibility="collapsed"
    )
    return current


def select_rows(key: str, rows: list[int]) -> None:
    """Let the table `key` show these rows as selected, when it does not already."""
    state = st.session_state.get(key)
    kept = {"rows": rows, "columns": [], "cells": []}
    if state is None or {name: list(state["selection"][name]) for name in kept} != kept:
        st.session_state[key] = {"selection": kept}


def selected_rows(key: str) -> list[int]:
    """The rows that the user selected in the table `key`."""
    return list(st.session_state[key]["selection"]["rows"])


def clicked_rows(key: str) -> list[int]:
    """The rows that the user selected or clicked into in the table `key`, the click first."""
    selection = st.session_state[key]["selection"]
    return [int(row) for row, _ in selection["cells"]] + list(selection["rows"])


def selected_columns(key: str) -> list[str]:
    """The columns that the user selected in the table `key`, by name."""
    return list(st.session_state[key]["selection"]["columns"])


def point_clicked(key: str) -> None:
    """Choose the pair of the point that was clicked in the chart `key`, and open it."""
    points: list[dict[str, Any]] = st.session_state[key]["selection"]["points"]
    for point in points:
        named = point.get("customdata")
        # Streamlit gives the data of a point as a list, or as a mapping by place.
        first = named.get("0") if isinstance(named, dict) else (named or [None])[0]
        if isinstance(first, str):
            choose_pair(first)
            st.session_state[_GO] = True
            return


def follow_click() -> None:
    """Go to the page of pairs where a point was just clicked."""
    if st.session_state.pop(_GO, False):
        st.switch_page(
            PAIRS_PAGE,
            query_params={
                "run": st.session_state.get("chosen_run", []),
                "pair": st.session_state["chosen_pair"],
            },
        )


def _store(key: str, values: list[str]) -> None:
    st.session_state[f"chosen_{key}"] = values
    st.query_params[key] = values
