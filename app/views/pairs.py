"""Pairs: the numbers of every pair, one pair side by side, and what a person decides on it."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st
from decision_bar import decision_bar, export_box, steps
from marking import plain
from pair_filter import CORRECTION, LABELS, Asked, asked_for
from pair_view import pair_view
from reading import config_of, is_live, open_training, read_digest, shown_errors
from selection import choose_pair, chosen_pair, head, select_rows, selected_rows
from state import NUMBER, kept, set_kept

from plc_core.analysis.inspection.digest import Digest
from plc_core.analysis.inspection.queries import NUMBERS, count, row_of
from plc_core.analysis.inspection.queries import page as page_of
from plc_core.decisions import Decision, read_decisions
from plc_core.runs import Run

PAGE_ROWS = 500
KEY = "pairs_table"
SCORES = ("score_chosen", "score_rejected")
TEXTS = ("pair_id", "source", "oracle_state", "flipped", "injected_tie")


def page() -> None:
    """Draw the page."""
    chosen = head("Pairs", "Which pairs were routed how, and is the method right about them?")
    if chosen is None:
        return
    root, name = chosen
    with shown_errors(name):
        run = open_training(root, name)
        found = read_digest(run)
        decisions = _decisions(run)
        asked = asked_for(run, found, decisions)
        pair_id = chosen_pair()
        row = row_of(found, pair_id) if pair_id else None
        if pair_id and row is None:
            st.warning(f"This run has no pair {plain(pair_id)}.")
        total = count(found, asked.filter)
        start = _pager(run, found, asked, total)
        view = page_of(
            found,
            asked.filter,
            ["row", *TEXTS, *(n for n in NUMBERS if n not in SCORES)],
            asked.order,
            asked.descending,
            start,
            PAGE_ROWS,
        )
        if not len(view):
            st.info("No pair matches these filters.")
        elif row is None:
            pair_id, row = str(view["pair_id"].iloc[0]), int(view["row"].iloc[0])
        _table(view, decisions, pair_id if row is not None else None)
        if row is not None and pair_id is not None:
            around = steps(found, asked, view, start, total, row, PAGE_ROWS)
            decision_bar(run, pair_id, decisions.get(pair_id), around)
            pair_view(run, found, row)


def _decisions(run: Run) -> dict[str, Decision]:
    """The decisions so far; a broken file of them is said and hides nothing else."""
    with shown_errors(run.name):
        return read_decisions(run)
    return {}


def _pager(run: Run, found: Digest, asked: Asked, total: int) -> int:
    """A line that counts the rows, the page number and the export; the first row of the page."""
    pages = max(1, -(-total // PAGE_ROWS))
    left, middle, right = st.columns([0.66, 0.14, 0.2], vertical_alignment="center")
    key = kept("page", 1, NUMBER)
    if st.session_state[key] > pages:
        set_kept("page", 1)
    with right:
        export_box(run)
    number = int(
        middle.number_input(
            "Page",
            min_value=1,
            max_value=pages,
            key=key,
            label_visibility="collapsed",
            disabled=pages == 1,
            help=f"Page, of {pages:,}",
        )
    )
    start = (number - 1) * PAGE_ROWS
    shown = f", rows {start + 1:,} to {min(start + PAGE_ROWS, total):,}" if pages > 1 else ""
    said = f"{total:,} of {found.size:,} pairs{shown}, by {asked.words}. {_weight_note(run)}"
    if is_live(run):
        said += f" The run goes on: read up to step {found.last_step}."
    left.caption(plain(said))
    return start


def _weight_note(run: Run) -> str:
    """What the weight of this run did; only PLC-DPO corrects by it."""
    objective = str(config_of(run).get("objective", "plc"))
    if objective != "plc":
        return f"{objective} corrects nothing: w is the weight PLC-DPO would have given."
    return f"{CORRECTION} is the share of the pair's loss that was taken with the label reversed."


def _table(view: pd.DataFrame, decisions: Mapping[str, Decision], pair_id: str | None) -> None:
    """The numbers of one page of pairs; a click on a row chooses its pair."""
    if not len(view):
        return
    ids = view["pair_id"].tolist()

    def selected() -> None:
        for row in selected_rows(KEY):
            choose_pair(ids[row])

    select_rows(KEY, [ids.index(pair_id)] if pair_id in ids else [])
    shown = view.drop(columns="row").dropna(axis="columns", how="all")
    if "visits" in shown and (shown["visits"] == 1).all():
        # Of one visit the mean is the visit, and there is no spread.
        shown = shown.drop(columns=["visits", "mean_z"])
    said = [decisions[i].decision or "note" if i in decisions else None for i in ids]
    if any(said):
        shown.insert(1, "decision", pd.Series(said, dtype="str", index=shown.index))
    weight = st.column_config.NumberColumn(format="%.3f", width=70)
    st.dataframe(
        shown,
        key=KEY,
        hide_index=True,
        height=212,
        on_select=selected,
        selection_mode="single-row",
        placeholder="–",
        column_config={
            **dict.fromkeys(NUMBERS, weight),
            **{
                name: st.column_config.NumberColumn(label, format="%.3f", width=75)
                for name, label in LABELS.items()
                if name in NUMBERS
            },
            "score_gap": st.column_config.NumberColumn("score gap", format="%.2f", width=75),
            "margin": st.column_config.NumberColumn(format="%.4g", width=80),
            "pair_id": st.column_config.TextColumn("pair", width=150, pinned=True),
            "decision": st.column_config.TextColumn(width=70),
            "source": st.column_config.TextColumn(width="small"),
            "visits": st.column_config.NumberColumn(format="localized", width=55),
            "last_step": st.column_config.NumberColumn("step", format="localized", width=65),
            "flipped": st.column_config.CheckboxColumn("swapped", width=70),
            "injected_tie": st.column_config.CheckboxColumn("exact tie", width=70),
            "oracle_state": st.column_config.TextColumn("oracle", width=65),
        },
    )


page()
