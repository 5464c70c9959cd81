"""The filters of the page of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import streamlit as st
from inspection.digest import Digest
from inspection.queries import (
    MARKERS,
    NUMBERS,
    Filter,
    Rows,
    bounds,
    count,
    values,
)
from inspection.text_search import Search, search
from marking import plain
from reader import Progress
from state import RANGE, TEXT, TEXTS, kept, set_kept, value_of

from plc_core.runs import Run
from plc_core.runs.decisions import DECISIONS, Decision

CORRECTION = "w · q_flip"
LABELS = {
    "correction": CORRECTION,
    "mean_z": "mean z",
    "sd_z": "sd of z",
    "last_step": "last step",
    "score_gap": "score gap",
    "score_chosen": "chosen score",
    "score_rejected": "rejected score",
}
AT_ONCE_SECONDS = 0.25
"""So long a page waits for the first pairs that a search finds."""

UNDECIDED, DECIDED = "undecided", "decided"


@dataclass(frozen=True)
class Asked:
    """Which pairs: those of a filter, and of them those with a decision, where one is asked for.

    While `searching`, more of them may be found yet.
    """

    filter: Filter
    decision: str
    searching: bool = False

    def progress(self, found: Digest, decisions: Mapping[str, Decision], listed: int) -> Progress:
        """How many of the filter's pairs are decided on, whatever decision is asked for.

        `listed` are the pairs of the list.
        """
        made = tuple(d.pair_id for d in decisions.values() if d.decision)
        decided = count(found, replace(self.filter, ids=made)) if made else 0
        return Progress(decided, count(found, self.filter) if self.decision else listed)

    def decided_in_list(self, progress: Progress, listed: int) -> int:
        """How many of the `listed` pairs are decided on."""
        if not self.decision:
            return progress.decided
        return 0 if self.decision == UNDECIDED else listed

    def given(self, decisions: Mapping[str, Decision]) -> Filter:
        """The filter, given the decisions so far."""
        if not self.decision:
            return self.filter
        # A decision that was taken back is none, and a note alone is none either.
        made = {d.pair_id: d.decision for d in decisions.values() if d.decision}
        if self.decision == UNDECIDED:
            return replace(self.filter, without=tuple(made))
        wanted = (i for i, decision in made.items() if self.decision in (DECIDED, decision))
        return replace(self.filter, ids=tuple(wanted))


def label(name: str) -> str:
    """A column's name for a person."""
    return LABELS.get(name, name)


def asked_for(run: Run, found: Digest, bar: st.delta_generator.DeltaGenerator) -> Asked:
    """The filters, drawn in `bar`, a row that wraps; all of them stand in the URL."""
    numbers = [name for name in NUMBERS if name in found.columns]
    words = bar.text_input(
        "Search in texts",
        key=kept("q", "", TEXT),
        placeholder="press Enter",
        help="In prompts and answers, in any case. All texts of the run are read for it.",
        on_change=first_page,
        width=300,
    )
    sources = values(found, "source")
    if len(sources) > 1:
        picked = bar.multiselect(
            "Source",
            sources,
            key=kept("source", [], TEXTS, sources),
            placeholder="All",
            on_change=first_page,
            width=200,
        )
    else:
        picked = []
    markers = ["", *_markers(str(found.folder), found)]
    marked = bar.selectbox(
        "Label",
        markers,
        key=kept("label", "", TEXT, markers),
        format_func=lambda m: m or "Any",
        help="What injected corruption did to the pair",
        on_change=first_page,
        width=130,
    )
    choices = ["", UNDECIDED, DECIDED, *DECISIONS]
    decision = bar.selectbox(
        "Decision",
        choices,
        key=kept("decision", "", TEXT, choices),
        format_func=lambda d: d or "Any",
        on_change=first_page,
        width=130,
    )
    ranges, states, marks = _more(bar, found, numbers)
    rows, searching = _rows(run, words) if words else (None, False)
    chosen = Filter(
        ranges=ranges,
        sources=tuple(picked),
        states=states,
        marks=marks,
        marker=marked or None,
        rows=rows,
    )
    return Asked(chosen, decision, searching)


def _more(
    place: st.delta_generator.DeltaGenerator, found: Digest, numbers: list[str]
) -> tuple[tuple[tuple[str, float, float], ...], tuple[str, ...], tuple[str, ...]]:
    """Ranges of any number, the true state and the marks of validation, folded away."""
    chosen_key = kept("range", [], TEXTS, numbers)
    states, marks = values(found, "oracle_state"), values(found, "marks")
    in_use = len(st.session_state[chosen_key]) + len(value_of("state") or [])
    in_use += len(value_of("mark") or [])
    with place.popover(f"Filters · {in_use}" if in_use else "Filters", width=115):
        chosen = st.multiselect(
            "Numbers between", numbers, key=chosen_key, format_func=label, on_change=first_page
        )
        ranges = []
        for name in chosen:
            limits = bounds(found, name)
            if limits is None:
                st.text(f"No pair has a value of {label(name)}.")
                continue
            key = kept(f"in_{name}", limits, RANGE)
            low, high = st.columns(2)
            given = st.session_state[key]
            step = (limits[1] - limits[0]) / 50 or 1.0
            settings = {"step": step, "format": "%.4g"}
            a = low.number_input(
                f"{label(name)} from", value=given[0], key=f"low_{name}", **settings
            )
            b = high.number_input(
                f"{label(name)} to", value=given[1], key=f"high_{name}", **settings
            )
            if (a, b) != given:
                set_kept(f"in_{name}", (a, b))
                first_page()
                st.rerun()
            if (a, b) != limits:
                ranges.append((name, float(a), float(b)))
            st.caption(f"{plain(label(name))} lies between {limits[0]:.4g} and {limits[1]:.4g}")
        picked: list[str] = []
        if states:
            key = kept("state", [], TEXTS, states)
            picked = st.multiselect(
                "True state", states, key=key, placeholder="All", on_change=first_page
            )
        found_marks: list[str] = []
        if marks:
            key = kept("mark", [], TEXTS, marks)
            found_marks = st.multiselect(
                "Marked by validation as", marks, key=key, on_change=first_page
            )
    return tuple(ranges), tuple(picked), tuple(found_marks)


def _rows(run: Run, words: str) -> tuple[Rows, bool]:
    """The pairs with these words; of a large run those found so far, and whether more may come."""
    task = search(run.path, words)
    task.wait(AT_ONCE_SECONDS)
    searching = not task.ended
    rows = task.rows()
    if searching:
        _searching(task, bool(len(rows.places)))
    return rows, searching


@st.fragment(run_every=0.5)
def _searching(task: Search, shown: bool) -> None:
    """How far the search is; the page is drawn anew for the first pairs found, and at the end."""
    if task.ended or (task.found and not shown):
        st.rerun()
    share = task.read / task.total if task.total else 0.0
    so_far = f"{task.found:,} pairs found so far" if task.found else "none found so far"
    st.progress(
        share,
        text=f"Searching {task.total:,} pairs: {so_far}. The list is of these until the end.",
    )


@st.cache_data(max_entries=32, show_spinner=False)
def _markers(folder: str, _found: Digest) -> list[str]:
    return [marker for marker in MARKERS if count(_found, Filter(marker=marker))]


def first_page() -> None:
    """Show the first page of the list, as another list begins."""
    set_kept("page", 1)
