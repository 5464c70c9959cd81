"""Which runs and which pair are chosen: in the URL, so that a reload or a link shows the same."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import streamlit as st
from listing import default_run, listed, training_runs
from reading import runs_root

_KEPT = "kept"


def restore() -> None:
    """Take the selection from the URL, or put it back after a page switch, which clears the URL.

    Widgets whose page is not shown would lose their values; naming them again keeps them.
    """
    for key in ("run", "pair"):
        given = st.query_params.get_all(key)
        if given:
            st.session_state[f"chosen_{key}"] = given
        elif stored := st.session_state.get(f"chosen_{key}"):
            st.query_params[key] = stored
    for name in list(st.session_state):
        if str(name).startswith(_KEPT):
            st.session_state[name] = st.session_state[name]


def kept(name: str, default: object = None) -> str:
    """The key of a filter widget that keeps its value while another page is shown.

    A `default` is set here and not in the widget: Streamlit warns of values from both.
    """
    key = f"{_KEPT}_{name}"
    if default is not None:
        st.session_state.setdefault(key, default)
    return key


def chosen_runs(root: Path) -> list[str]:
    """The chosen runs, the first being the one that Pairs and Ties show.

    At first it is the default one, which stays when another run starts later.
    """
    if "chosen_run" not in st.session_state:
        _choose_default(root)
    return list(st.session_state.get("chosen_run", []))


def choose_runs(names: list[str]) -> None:
    """Make `names` the chosen runs."""
    _store("run", names)


def chosen_pair() -> str | None:
    """The id of the chosen pair."""
    stored = st.session_state.get("chosen_pair")
    return stored[0] if stored else None


def choose_pair(pair_id: str) -> None:
    """Make `pair_id` the chosen pair; it stays chosen when another run is opened."""
    _store("pair", [pair_id])


def permalink(run: str, pair_id: str) -> str:
    """The address that shows this pair of this run."""
    base = (st.context.url or "").rstrip("/")
    page = "" if base.endswith("/pairs") else "/pairs"
    return f"{base}{page}?{urlencode({'run': run, 'pair': pair_id})}"


def head(title: str) -> tuple[Path, str] | None:
    """A page's title and its run picker; the runs directory and the chosen run, if there is one."""
    left, right = st.columns([0.65, 0.35], vertical_alignment="bottom")
    left.title(title)
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
    if not chosen_runs(root):
        _choose_default(root)
    chosen = chosen_runs(root)
    current = chosen[0] if chosen else None
    # A run that the URL names and the directory lacks stays in the list: the page says so.
    options = names if current is None or current in names else [current, *names]
    st.session_state["run_picker"] = current

    def changed() -> None:
        picked = st.session_state["run_picker"]
        choose_runs([picked, *(name for name in chosen[1:] if name != picked)])

    st.selectbox("Run", options, key="run_picker", on_change=changed)
    return current


def select_rows(key: str, rows: list[int]) -> None:
    """Let the table `key` show these rows as selected, when it does not already."""
    state = st.session_state.get(key)
    if state is None or list(state["selection"]["rows"]) != rows:
        st.session_state[key] = {"selection": {"rows": rows, "columns": [], "cells": []}}


def selected_rows(key: str) -> list[int]:
    """The rows that the user selected in the table `key`."""
    return list(st.session_state[key]["selection"]["rows"])


def _choose_default(root: Path) -> None:
    if name := default_run(root):
        choose_runs([name])


def _store(key: str, values: list[str]) -> None:
    st.session_state[f"chosen_{key}"] = values
    st.query_params[key] = values
