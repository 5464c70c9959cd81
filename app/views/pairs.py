"""Pairs: the numbers of every pair, one pair side by side, and what a person decides on it."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st
from decision_bar import Steps, decision_bar, place_in, steps
from marking import plain
from pair_filter import CORRECTION, LABELS, Asked, asked_for
from pair_view import pair_charts, pair_texts
from reading import config_of, is_live, open_training, read_digest, shown_errors
from selection import choose_pair, chosen_pair, head, select_rows, selected_rows
from state import NUMBER, kept, set_kept

from plc_core.analysis.inspection.digest import Digest
from plc_core.analysis.inspection.queries import NUMBERS, Ints, ordered, row_of, rows
from plc_core.runs import Run
from plc_core.runs.decisions import Decision, read_decisions

PAGE_ROWS = 16
"""Pairs that are listed at a time: as many as stand beside a pair on a laptop's screen."""

KEY = "pairs_table"
SCORES = ("score_chosen", "score_rejected")
TEXTS = ("pair_id", "source", "oracle_state", "flipped", "injected_tie")
LISTED = ["row", *TEXTS, *(name for name in NUMBERS if name not in SCORES)]


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
            st.warning(
                f"This run has no pair {plain(pair_id)}, so none is shown. Choose one in the list."
            )
        order = ordered(found, asked.filter, asked.order, asked.descending)
        with st.container(key="split"):
            listing, reading = st.columns([0.36, 0.64], gap="medium")
        with listing:
            view = _listing(run, found, asked, order, row)
            if pair_id is None and len(view):
                row = int(view["row"].iloc[0])
            _table(view, asked.order, decisions, row)
            st.caption(plain(_weight_note(run)))
        with reading:
            if row is None:
                decision_bar(run, None, None, Steps(None, None, None, len(order)))
                st.info("No pair is shown.")
            else:
                shown = str(rows(found, [row], ["pair_id"])["pair_id"].iloc[0])
                decision_bar(run, shown, decisions.get(shown), steps(found, order, row))
                visits = pair_texts(run, found, row)
        if row is not None:
            pair_charts(run, found, row, visits)


def _decisions(run: Run) -> dict[str, Decision]:
    """The decisions so far; a broken file of them is said and hides nothing else."""
    with shown_errors(run.name):
        return read_decisions(run)
    return {}


def _listing(
    run: Run,
    found: Digest,
    asked: Asked,
    order: Ints,
    row: int | None,
) -> pd.DataFrame:
    """How many pairs there are, and the page number; the numbers of the pairs on that page."""
    pages = max(1, -(-len(order) // PAGE_ROWS))
    _turn_to(run.name, order, row)
    left, right = st.columns([0.58, 0.42], vertical_alignment="center")
    number = right.number_input(
        "Page",
        min_value=1,
        max_value=pages,
        key=kept("page", 1, NUMBER, range(1, pages + 1)),
        label_visibility="collapsed",
        disabled=pages == 1,
        help=f"Page, of {pages:,}",
    )
    start = (int(number) - 1) * PAGE_ROWS
    said = f"{len(order):,} of {found.size:,} pairs, by {asked.words}"
    left.caption(plain(said) + (f" · page {int(number):,} of {pages:,}" if pages > 1 else ""))
    if is_live(run):
        st.caption(f"The run goes on: read up to step {found.last_step}.")
    return rows(found, order[start : start + PAGE_ROWS], LISTED)


def _turn_to(run: str, order: Ints, row: int | None) -> None:
    """Turn to the page of a pair that was just chosen; a page that a link names stays."""
    before = st.session_state.get("turned_to")
    st.session_state["turned_to"] = run, row
    if row is None or before == (run, row) or (before is None and "page" in st.query_params):
        return
    here = place_in(order, row)
    if here is not None:
        set_kept("page", here // PAGE_ROWS + 1)


def _weight_note(run: Run) -> str:
    """What the weight of this run did; only PLC-DPO corrects by it."""
    objective = str(config_of(run).get("objective", "plc"))
    if objective != "plc":
        return f"{objective} corrects nothing: w is the weight PLC-DPO would have given."
    return f"{CORRECTION} is the share of the pair's loss that was taken with the label reversed."


def _table(
    view: pd.DataFrame, order: str, decisions: Mapping[str, Decision], row: int | None
) -> None:
    """The numbers of one page of pairs, first what they are sorted by; a click chooses a pair."""
    if view.empty:
        st.info("No pair matches these filters.")
        return
    ids, places = view["pair_id"].tolist(), view["row"].tolist()

    def selected() -> None:
        for place in selected_rows(KEY):
            choose_pair(ids[place])

    select_rows(KEY, [places.index(row)] if row in places else [])
    shown = view.drop(columns="row").dropna(axis="columns", how="all")
    if "visits" in shown and (shown["visits"] == 1).all():
        # Of one visit the mean is the visit, and there is no spread.
        shown = shown.drop(columns=["visits", "mean_z"])
    if order in shown and order != "pair_id":
        shown.insert(1, order, shown.pop(order))
    said = [decisions[i].decision or "note" if i in decisions else None for i in ids]
    if any(said):
        shown.insert(1, "decision", pd.Series(said, dtype="str", index=shown.index))
    weight = st.column_config.NumberColumn(format="%.3f", width=70)
    st.dataframe(
        shown,
        key=KEY,
        hide_index=True,
        height="content",
        row_height=29,
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
