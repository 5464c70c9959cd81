"""Pairs: the numbers of every pair, and one pair with its texts and its way through the run."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import streamlit as st
from elements import Guide, chart
from marking import STYLE, marked, plain, turn
from reading import joined, metrics, open_training, pair_visits, shown_errors
from selection import (
    choose_pair,
    chosen_pair,
    head,
    kept,
    permalink,
    select_rows,
    selected_rows,
)

from plc_core.analysis import figures
from plc_core.analysis.audit import STATES
from plc_core.runs import Run

MOST_ROWS = 5_000
CORRECTION = "w · q_flip"
SORTS = {
    CORRECTION: "Largest correction towards flip",
    "q_flip": "Highest q_flip",
    "q_tie": "Highest q_tie",
    "margin": "Lowest margin",
}
NUMBERS = ["q_clean", "q_flip", "q_tie", "z", "margin", "confidence", "weight", CORRECTION]
COLUMNS = ["pair_id", "source", "step", *NUMBERS, "score_gap", "flipped", "oracle_state"]

TRAJECTORY = Guide(
    "This pair's q, z and margin m at each step that used it. One epoch is one visit, so one "
    "epoch shows one dot. The grey band is the running mean of m ± one deviation, from which z is "
    "measured.",
    "Over several epochs, a clean pair's margin rises and its q_flip falls.",
    "Why. A low margin may be a wrong label, a hard pair, or one that the policy has not learnt.",
)
MAP = Guide(
    "How this run turns z into routing weights; the dots are this pair at its last visit.",
    "q_clean wins to the right, q_flip to the left. q_tie peaks near z = 0, well below both.",
    "That the pair is what its largest q says: the weights steer the update, they are not an "
    "audit of the label.",
)


def page() -> None:
    """Draw the page."""
    chosen = head("Pairs")
    if chosen is None:
        return
    root, name = chosen
    with shown_errors(name):
        run = open_training(root, name)
        table = joined(run)
        table["score_gap"] = _column(table, "score_chosen") - _column(table, "score_rejected")
        table[CORRECTION] = table["weight"] * table["q_flip"]
        asked = chosen_pair()
        known = asked is not None and bool((table["pair_id"] == asked).any())
        if asked and not known:
            st.warning(f"This run has no pair {plain(asked)}.")
        view = _filtered(table.reindex(columns=COLUMNS), run)
        pair_id = _table(view, asked if known else None)
        if pair_id:
            _pair(run, pair_id)


def _filtered(table: pd.DataFrame, run: Run) -> pd.DataFrame:
    """The rows that the filters let through, sorted, with a line that counts them."""
    boxes = st.columns([0.2, 0.22, 0.16, 0.2, 0.22], gap="medium", vertical_alignment="bottom")
    by = boxes[0].selectbox(
        "Sort by", list(SORTS), format_func=SORTS.__getitem__, key=kept("pairs_sort")
    )
    sources = _options("pairs_source", table["source"])
    picked = boxes[1].multiselect(
        "Source", sources, key=kept("pairs_source"), disabled=len(sources) < 2, placeholder="All"
    )
    swapped = boxes[2].selectbox("Label swapped", ["All", "Yes", "No"], key=kept("pairs_swapped"))
    states = _options("pairs_state", table["oracle_state"])
    chosen = boxes[3].multiselect(
        "Oracle state",
        states,
        key=kept("pairs_state"),
        disabled=not states,
        placeholder="All" if states else "Not known",
    )
    bounds = kept("pairs_q", (0.0, 1.0))
    boxes[4].slider("q_flip between", 0.0, 1.0, step=0.01, key=bounds)
    low, high = st.session_state[bounds]
    keep = pd.Series(True, index=table.index)
    if picked:
        keep &= table["source"].isin(picked)
    if swapped != "All":
        keep &= table["flipped"].eq(swapped == "Yes")
    if chosen:
        keep &= table["oracle_state"].isin(chosen)
    if (low, high) != (0.0, 1.0):
        keep &= table["q_flip"].between(low, high)
    order = list(dict.fromkeys([by, "q_flip", "pair_id"]))
    view = table[keep].sort_values(order, ascending=[c in ("margin", "pair_id") for c in order])
    st.caption(
        f"{len(view):,} of {len(table):,} pairs"
        + (f", the first {MOST_ROWS:,} listed" if len(view) > MOST_ROWS else "")
        + f". Select a row to read the pair below. {_weight_note(run)}"
    )
    return view.head(MOST_ROWS)


def _weight_note(run: Run) -> str:
    """What the weight of this run did; only PLC-DPO corrects by it."""
    objective = str(run.info.get("config", {}).get("objective", "plc"))
    if objective != "plc":
        return f"{plain(objective)} corrects nothing: w is the weight PLC-DPO would have given."
    return f"{CORRECTION} is the share of the pair's loss that was taken with the label reversed."


def _options(name: str, column: pd.Series) -> list[str]:
    """The values of a filter; a choice made on another run that this one lacks is let go."""
    options = sorted(column.dropna().astype(str).unique())
    key = kept(name)
    st.session_state[key] = [value for value in st.session_state.get(key, []) if value in options]
    return options


def _table(view: pd.DataFrame, asked: str | None) -> str | None:
    """The numeric table; returns the id of the pair to show."""
    ids = view["pair_id"].tolist()
    if not ids:
        st.info("No pair matches these filters.")
        return asked
    shown = asked or ids[0]
    key = "pairs_table"

    def selected() -> None:
        for row in selected_rows(key):
            choose_pair(ids[row])

    select_rows(key, [ids.index(shown)] if shown in ids else [])
    weight = st.column_config.NumberColumn(format="%.3f", width=70)
    st.dataframe(
        view.dropna(axis="columns", how="all"),
        key=key,
        hide_index=True,
        height=300,
        on_select=selected,
        selection_mode="single-row",
        placeholder="–",
        column_config={
            "pair_id": st.column_config.TextColumn("pair", width="medium", pinned=True),
            "source": st.column_config.TextColumn(width="small"),
            "step": st.column_config.NumberColumn(format="localized", width=55),
            **dict.fromkeys(NUMBERS, weight),
            "margin": st.column_config.NumberColumn(
                format=f"%.{_decimals(view['margin'])}f", width=75
            ),
            "score_gap": st.column_config.NumberColumn("score gap", format="%.2f", width="small"),
            "flipped": st.column_config.CheckboxColumn("swapped", width="small"),
            "oracle_state": st.column_config.TextColumn("oracle", width="small"),
        },
    )
    if shown not in ids:
        st.caption("The pair below is not in this list.")
    return shown


def _decimals(values: pd.Series) -> int:
    """Decimals that leave three significant digits to the largest of `values`, three at least."""
    largest = values.abs().max()
    return max(3, 2 - math.floor(math.log10(largest))) if largest > 0 else 3


def _pair(run: Run, pair_id: str) -> None:
    pair, visits = run.pair(pair_id), pair_visits(run, pair_id)
    last = visits.sort_values("step").iloc[-1] if len(visits) else None
    st.subheader("Pair")
    left, right = st.columns([0.3, 0.7])
    left.caption("Pair id")
    left.code(pair_id, language=None)
    right.caption("Link to this pair")
    right.code(permalink(run.name, pair_id), language=None)
    _numbers(pair, last)
    st.html(STYLE)
    turns = pair.get("prompt") or []
    with st.expander(f"Prompt · {len(turns)} turn{'s' * (len(turns) != 1)}", expanded=True):
        st.html("".join(turn(str(t["role"]), t["content"] or "") for t in turns) or "–")
    answers = marked(pair.get("chosen"), pair.get("rejected"))
    for column, kind, html in zip(st.columns(2), ("chosen", "rejected"), answers[:2], strict=True):
        score = pair.get(f"score_{kind}")
        column.markdown(f"**{kind.capitalize()}**" + ("" if score is None else f" · {score:.2f}"))
        column.html(html)
    st.caption(answers.note)
    found = run.findings(pair_id)
    if len(found):
        st.caption("What validation found in this pair")
        for rule, reason in zip(found["rule"], found["reason"], strict=True):
            st.text(f"{rule}: {reason}")  # reasons quote the data: text, never markup
    chart(figures.pair_trajectory(visits, metrics(run)), TRAJECTORY, key="pair_trajectory")
    curve = joined(run)[["z", *(f"q_{state}" for state in STATES)]]
    here = None if last is None else {str(name): value for name, value in last.items()}
    chart(figures.q_against_z(curve, here), MAP, key="q_against_z")


def _numbers(pair: dict[str, Any], last: pd.Series | None) -> None:
    names = {"q_clean": ".3f", "q_flip": ".3f", "q_tie": ".3f", "z": ".3f", "margin": ".3g"}
    names["weight"] = ".3f"
    shown = {n: "–" if last is None else format(last[n], form) for n, form in names.items()}
    scores = [pair.get("score_chosen"), pair.get("score_rejected")]
    chosen, rejected = (math.nan if score is None else float(score) for score in scores)
    shown["score gap"] = "–" if math.isnan(chosen - rejected) else f"{chosen - rejected:+.2f}"
    swapped = pair.get("flipped")
    shown["label swapped"] = "–" if swapped is None else "yes" if swapped else "no"
    if pair.get("injected_tie"):
        shown["injected"] = "exact tie"
    if pair.get("oracle_state"):
        shown["oracle state"] = pair["oracle_state"]
    for column, (label, value) in zip(st.columns(len(shown)), shown.items(), strict=True):
        column.metric(label.replace("_", r"\_"), value)


def _column(table: pd.DataFrame, name: str) -> pd.Series:
    return table[name] if name in table else pd.Series(float("nan"), index=table.index)


page()
