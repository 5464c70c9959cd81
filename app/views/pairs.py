"""Pairs: the numbers of every pair, one pair side by side, and what a person decides on it.

The page is drawn in parts that run again alone: what a filter changes, and in it what an order, a
page, another pair or a decision changes. So a click redraws what it changes and nothing around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import streamlit as st
from bulk import bulk_box
from export_box import export_box
from in_view import in_view
from inspection.digest import Digest
from inspection.queries import ordered, row_of, rows
from marking import plain
from note_box import note_box
from pair_filter import CORRECTION, Asked, asked_for
from pair_list import pair_table, pick_order, pick_page, sortable, truth_toggle
from pair_view import pair_charts, pair_html
from reader import KEYS_SAID, reader
from reading import is_shadow, open_training, read_digest, shown_errors
from saved_filters import filter_buttons
from selection import chosen_pair, head

from plc_core.runs import Run
from plc_core.runs.decisions import Decision, read_decisions


def page() -> None:
    """Draw the page."""
    chosen = head("Pairs", "Is the method right about single pairs?")
    if chosen is not None:
        _filtered(*chosen)


@st.fragment
def _filtered(root: Path, name: str) -> None:
    """The filters, and the pairs that they let through."""
    with shown_errors(name):
        run = open_training(root, name)
        found = read_digest(run)
        bar = st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="toolbar")
        asked = asked_for(run, found, bar)
        with bar:
            filter_buttons()
            export_box(run)
        _pairs(root, name, asked)


@st.fragment
def _pairs(root: Path, name: str, asked: Asked) -> None:
    """The list, and the pair that is chosen in it."""
    with shown_errors(name):
        run = open_training(root, name)
        found = read_digest(run)
        decisions = _decisions(run)
        pair_id = chosen_pair()
        row = row_of(found, pair_id) if pair_id else None
        if pair_id and row is None:
            st.warning(
                f"This run has no pair {plain(pair_id)}, so none is shown. Choose one in the list."
            )
        with st.container(key="split"):
            listing, reading = st.columns([0.4, 0.6], gap="medium")
        with listing:
            bar = st.container(horizontal=True, vertical_alignment="center", key="order")
            by = pick_order(found, bar)
            order = ordered(found, asked.given(decisions), by.column, by.falling)
            view = pick_page(run, found, order, by.words, row, bar)
            if not len(order):
                row = None  # what was shown before would look like what was found
            elif pair_id is None and len(view):
                row = int(view["row"].iloc[0])
            pair_table(found, view, by, sortable(found), decisions, row)
            progress = asked.progress(found, decisions, len(order))
            made = asked.decided_in_list(progress, len(order))
            bulk_box(run, found, order, made, asked.searching)
            with st.container(horizontal=True, vertical_alignment="center"):
                truth_toggle(found)
                st.markdown(
                    ":small[Keys and columns]", help=f"{KEYS_SAID}\n\n{plain(_weight_note(run))}"
                )
        with reading:
            reader(run, found, order, row, decisions, progress)
            if row is not None:
                _beside(run, found, row, decisions)
        if row is not None:
            _charts(root, name, row)


@st.fragment
def _charts(root: Path, name: str, row: int) -> None:
    """The charts of a pair, drawn while they are in view."""
    with shown_errors(name), st.container(key="pair_charts"):
        run = open_training(root, name)
        pair_charts(run, read_digest(run), row, in_view("charts_in_view"))


def _beside(run: Run, found: Digest, row: int, decisions: Mapping[str, Decision]) -> None:
    """The note on the pair, and the whole of long answers where they are asked for."""
    pair_id = str(rows(found, [row], ["pair_id"])["pair_id"].iloc[0])
    bar = st.container(horizontal=True, vertical_alignment="center", key="beside")
    with bar:
        note_box(run, pair_id, decisions.get(pair_id))
        if pair_html(run, found, row, False).cut:
            st.toggle("Show the whole of long answers", key="whole_texts")


def _decisions(run: Run) -> dict[str, Decision]:
    """The decisions so far; a broken file of them is said and hides nothing else."""
    with shown_errors(run.name):
        return read_decisions(run)
    return {}


def _weight_note(run: Run) -> str:
    """What the weight of this run did; only PLC-DPO corrects by it."""
    if is_shadow(run):
        return (
            "Shadow routing: this run reversed nothing. w is the weight PLC-DPO would have given, "
            f"{CORRECTION} the share of the loss that would be reversed."
        )
    return f"{CORRECTION} is the share of the pair's loss that was taken with the label reversed."


page()
