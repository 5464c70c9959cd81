"""The list of pairs: its order, a page of its numbers, and the pair that is chosen in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas as pd
import streamlit as st
from inspection.digest import Digest
from inspection.pair import snippets
from inspection.queries import NUMBERS, Ints, constant, rows
from marking import plain
from pair_filter import LABELS, first_page, label
from reader import place_in
from reading import is_live
from selection import choose_pair, select_rows, selected_columns, selected_rows
from state import FLAG, NUMBER, TEXT, kept, set_kept

from plc_core.analysis.figures.style import STATE_COLOURS
from plc_core.runs import Run
from plc_core.runs.decisions import Decision
from plc_core.storage.files import RunError

PAGE_ROWS = 16
"""Pairs that are listed at a time: as many as stand beside a pair on a laptop's screen."""

_HEADS, _TRUTH = "heads_clicked", "truth"
_RANKINGS = (
    "The list starts with w · q_flip, highest first: how far the method reverses a label. The "
    "training report ranks by margin, lowest first: sort by margin, ascending, for its order."
)
SCORES = ("score_chosen", "score_rejected")
TRUTH = ("oracle_state", "flipped", "injected_tie")
"""What is known of a label, which a person who judges it should not see at once."""

TEXTS = ("pair_id", *TRUTH, "source")
Q = ("q_clean", "q_flip", "q_tie")
BAR_WIDTH, CELL = 56, (72, 29)
PROMPT_WIDTH = 195
LISTED = ["row", *TEXTS, *(name for name in NUMBERS if name not in SCORES)]


@dataclass(frozen=True)
class Order:
    """By which column the pairs are listed, and in which direction."""

    column: str
    falling: bool

    @property
    def words(self) -> str:
        """The order in words."""
        return f"{label(self.column)}, {'highest' if self.falling else 'lowest'} first"


def pick_order(found: Digest, place: st.delta_generator.DeltaGenerator) -> Order:
    """The order, drawn in `place`; it stands in the URL."""
    columns = sortable(found)
    first = "correction" if "correction" in columns else columns[-1]
    by = place.selectbox(
        "Sort by",
        columns,
        key=kept("sort", first, TEXT, columns),
        format_func=label,
        on_change=first_page,
        label_visibility="collapsed",
        width=160,
    )
    rising = place.toggle("Ascending", key=kept("rising", False, FLAG), on_change=first_page)
    return Order(by, not rising)


def sortable(found: Digest) -> list[str]:
    """The columns that a list of pairs can be sorted by."""
    numbers = [name for name in NUMBERS if name in found.columns]
    return ["pair_id", *numbers] if numbers else ["row"]


def pick_page(
    run: Run,
    found: Digest,
    order: Ints,
    words: str,
    row: int | None,
    place: st.delta_generator.DeltaGenerator,
) -> pd.DataFrame:
    """The page number, drawn in `place`, and how many pairs there are; the numbers of that page."""
    pages = max(1, -(-len(order) // PAGE_ROWS))
    _turn_to(run.name, order, row)
    number = place.number_input(
        "Page",
        min_value=1,
        max_value=pages,
        key=kept("page", 1, NUMBER, range(1, pages + 1)),
        label_visibility="collapsed",
        disabled=pages == 1,
        help=f"Page, of {pages:,}",
        width=165,
    )
    start = (int(number) - 1) * PAGE_ROWS
    said = f"{len(order):,} of {found.size:,} pairs, {words}"
    st.caption(
        plain(said) + (f" · page {int(number):,} of {pages:,}" if pages > 1 else ""),
        help=_RANKINGS if "correction" in found.columns else None,
    )
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


def pair_table(
    found: Digest,
    view: pd.DataFrame,
    order: Order,
    columns: Collection[str],
    decisions: Mapping[str, Decision],
    row: int | None,
) -> None:
    """The numbers of one page of pairs, first what they are sorted by; a click chooses a pair.

    A click on the head of one of `columns` sorts all pairs by it, a second one the other way. What
    is known of the labels is listed where `truth_toggle` is on.
    """
    if view.empty:
        st.info("No pair matches these filters.")
        return
    ids, places = view["pair_id"].tolist(), view["row"].tolist()
    # A browser keeps a head that was clicked as chosen, and a second click would only undo that: so
    # another table takes the place of this one.
    clicks = int(st.session_state.get(_HEADS, 0))
    key = f"pairs_table_{clicks}"

    def selected() -> None:
        for name in selected_columns(key):
            st.session_state[_HEADS] = clicks + 1
            if name in columns:
                _sort_by(name, order)
            return
        for place in selected_rows(key):
            choose_pair(ids[place])

    select_rows(key, [places.index(row)] if row in places else [])
    shown = _told(found, view)
    first = [name for name in ("prompt", order.column, "q", "z") if name in shown]
    shown = shown[[*dict.fromkeys([*first, *shown])]]
    said = [_said(decisions.get(i)) for i in ids]
    if any(said):
        # Behind what the list is sorted by, whose head stays where it was clicked.
        place = len({"prompt", order.column} & set(first))
        shown.insert(place, "decision", pd.Series(said, dtype="str", index=shown.index))
    weight = st.column_config.NumberColumn(format="%.3f", width=70)
    st.dataframe(
        shown,
        key=key,
        hide_index=True,
        height="content",
        row_height=CELL[1],
        on_select=selected,
        selection_mode=["single-row", "single-column"],
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
            "prompt": st.column_config.TextColumn(width=PROMPT_WIDTH, pinned=True),
            "q": st.column_config.ImageColumn(
                width=CELL[0], help="clean, flip and tie, left to right"
            ),
            "z": st.column_config.NumberColumn(format="%.2f", width=60),
            "pair_id": st.column_config.TextColumn("pair", width=140),
            "decision": st.column_config.TextColumn(width=70),
            "source": st.column_config.TextColumn(width=65),
            "visits": st.column_config.NumberColumn(format="localized", width=55),
            "last_step": st.column_config.NumberColumn("step", format="localized", width=65),
            "flipped": st.column_config.TextColumn("label", width=70),
            "injected_tie": st.column_config.TextColumn("injected", width=70),
            "oracle_state": st.column_config.TextColumn("true state", width=75),
        },
    )


def truth_toggle(found: Digest) -> None:
    """Whether the list says what is known of the labels, drawn where that differs by pair."""
    if set(TRUTH) & set(found.columns) - constant(found, LISTED):
        st.toggle(
            "Known labels",
            key=kept(_TRUTH, False, FLAG),
            help="Lists which labels were swapped, injected ties and true states. Off, so that "
            "nobody who judges a pair sees the answer; of one pair it is below its texts.",
        )


def _told(found: Digest, view: pd.DataFrame) -> pd.DataFrame:
    """What the list says of a page of pairs: first the prompt and q, last the id.

    What is the same for all pairs of the run is left out, and so is the mean of one visit.
    """
    same = constant(found, LISTED)
    hidden = () if st.session_state[kept(_TRUTH, False, FLAG)] else TRUTH
    dropped = ["row", "pair_id", *hidden, *(n for n in view if n in same)]
    shown = view.drop(columns=dropped, errors="ignore")
    if "visits" in same:
        shown = shown.drop(columns="mean_z", errors="ignore")
    for name, word in (("flipped", "swapped"), ("injected_tie", "exact tie")):
        if name in shown:
            shown[name] = shown[name].map({True: word}).astype("str")
    shown.insert(0, "prompt", "")
    try:
        shown["prompt"] = _snippets(str(found.run), str(found.folder), tuple(view["row"]))
    except RunError as error:  # the numbers are of the digest, and are whole
        st.warning(f"The prompts are blank. {plain(str(error))}")
    if set(Q) <= set(view):
        shown.insert(1, "q", [q_bar(*q) for q in view[list(Q)].itertuples(index=False)])
    return shown.assign(pair_id=view["pair_id"])


@st.cache_data(max_entries=64, show_spinner=False)
def _snippets(run: str, folder: str, rows: tuple[int, ...]) -> list[str]:
    return snippets(Path(run), np.array(rows, np.int64))


def q_bar(*q: float) -> str | None:
    """The weights of clean, flip and tie as a picture of a bar, for a cell; None without any."""
    if not np.isfinite(q).all():
        return None
    ends = np.cumsum([0.0, *q]) * BAR_WIDTH + (CELL[0] - BAR_WIDTH) / 2
    parts = "".join(
        f"<rect x='{start:.1f}' y='9' width='{end - start:.1f}' height='11' fill='{colour}'/>"
        for start, end, colour in zip(ends, ends[1:], STATE_COLOURS.values(), strict=False)
    )
    size = "width='{}' height='{}'".format(*CELL)
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{parts}</svg>"
    return "data:image/svg+xml," + quote(svg)


def _said(decided: Decision | None) -> str | None:
    """What a person said of a pair, in a word; None where nothing is left of it."""
    if decided is None:
        return None
    return decided.decision or ("note" if decided.note else None)


def _sort_by(name: str, order: Order) -> None:
    """Sort by a column; by the one that the list is sorted by already, the other way."""
    set_kept("sort", name)
    set_kept("rising", order.falling if name == order.column else False)
    first_page()
