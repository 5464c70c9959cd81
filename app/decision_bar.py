"""The bar above a pair: the pair before and after it, the decision on it, and the export."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import streamlit as st
from marking import plain
from pair_filter import Asked
from selection import choose_pair
from state import set_kept

from plc_core.analysis.inspection.digest import Digest
from plc_core.analysis.inspection.queries import page as page_of
from plc_core.analysis.inspection.queries import place
from plc_core.decisions import DECISIONS, Decision, decide, export_cleaned
from plc_core.files import RunError
from plc_core.runs import Run

KEYS = {"keep": "K", "flip": "F", "tie": "T", "drop": "D"}
MEANS = {
    "keep": "The label stays as it is",
    "flip": "The label is reversed in the export",
    "tie": "The export says that neither answer is preferred",
    "drop": "The export leaves the pair out",
}
MOST_TO_DOWNLOAD = 50_000_000
_EXPORTED = "exported"


@dataclass(frozen=True)
class Steps:
    """The pairs before and after one in the list, each with the page that it is on; its place."""

    before: tuple[str, int] | None
    after: tuple[str, int] | None
    place: int | None
    total: int


def steps(
    found: Digest,
    asked: Asked,
    view: pd.DataFrame,
    start: int,
    total: int,
    row: int,
    page_rows: int,
) -> Steps:
    """What stands around the pair of `row` in the list; nothing where it is not in the list."""
    rows = view["row"].tolist() if len(view) else []
    if row in rows:
        here = start + rows.index(row)
    else:
        there = place(found, asked.filter, asked.order, asked.descending, row)
        if there is None:
            return Steps(None, None, None, total)
        here = there

    def at(number: int) -> tuple[str, int] | None:
        if not 0 <= number < total:
            return None
        if start <= number < start + len(view):
            pair_id = view["pair_id"].iloc[number - start]
        else:
            around = page_of(
                found, asked.filter, ["pair_id"], asked.order, asked.descending, number, 1
            )
            if around.empty:
                return None
            pair_id = around["pair_id"].iloc[0]
        return str(pair_id), number // page_rows + 1

    return Steps(at(here - 1), at(here + 1), here, total)


def decision_bar(run: Run, pair_id: str, said: Decision | None, around: Steps) -> None:
    """Previous and next, the four decisions and a note; a decision is on disk at once."""
    with st.container(border=True, key="decision_bar"):
        sizes = [0.06, 0.06, 0.16, *[0.085] * 4, 0.38]
        back, on, where, *buttons, note = st.columns(
            sizes, vertical_alignment="center", gap="small"
        )
        for column, target, name, arrow, key in (
            (back, around.before, "Previous pair", ":material/arrow_back:", "Left"),
            (on, around.after, "Next pair", ":material/arrow_forward:", "Right"),
        ):
            column.button(
                " ",
                icon=arrow,
                help=name,
                key=f"go_{key}",
                shortcut=key,
                disabled=target is None,
                width="stretch",
                on_click=_go,
                args=(target,),
            )
        place = "not in this list" if around.place is None else f"{around.place + 1:,} of "
        where.caption(place + (f"{around.total:,}" if around.place is not None else ""))
        decided = said.decision if said else None
        text = said.note if said else ""
        for column, decision in zip(buttons, DECISIONS, strict=True):
            column.button(
                decision.capitalize(),
                key=f"decide_{decision}",
                type="primary" if decided == decision else "secondary",
                help=MEANS[decision] + ". Press it again to take it back.",
                shortcut=KEYS[decision],
                width="stretch",
                on_click=_save,
                args=(run, pair_id, None if decided == decision else decision, text),
            )
        key = f"note_{run.name}_{pair_id}"

        def noted() -> None:
            _save(run, pair_id, decided, st.session_state[key])

        note.text_input(
            "Note",
            value=text,
            key=key,
            placeholder="Note",
            label_visibility="collapsed",
            on_change=noted,
        )
    if problem := st.session_state.pop("decision_problem", None):
        st.error(f"This was not saved. {plain(problem)}")


def export_box(run: Run) -> None:
    """Write the cleaned dataset, and say what is in it."""
    box = st.popover(
        "Export cleaned data", icon=":material/ios_share:", width="stretch", key="export_box"
    )
    with box:
        form = st.radio("Format", ["parquet", "jsonl"], horizontal=True, key="export_format")
        undecided = st.checkbox("With pairs that nothing was decided on", True, key="export_all")
        if st.button("Write the file", key="export_go", type="primary"):
            bar = st.progress(0.0)
            try:
                path, counts = export_cleaned(
                    run, form, undecided, lambda done, total: bar.progress(done / max(total, 1))
                )
            except RunError as error:
                st.error(plain(str(error)))
                return
            bar.empty()
            said = ", ".join(f"{name} {n:,}" for name, n in counts.items())
            st.session_state[_EXPORTED] = run.name, path, f"Written: {said}."
        name, path, said = st.session_state.get(_EXPORTED, ("", None, ""))
        if name == run.name and path.is_file():
            st.success(said)
            st.code(str(path), language=None)
            st.caption("Read it with `plc_core.load_pairs`. It lies below the run's folder.")
            if path.stat().st_size <= MOST_TO_DOWNLOAD:
                st.download_button(
                    "Download",
                    path.read_bytes,
                    path.name,
                    key="export_download",
                    on_click="ignore",
                )


def _save(run: Run, pair_id: str, decision: str | None, note: str) -> None:
    try:
        decide(run, pair_id, decision, note)
    except RunError as error:
        st.session_state["decision_problem"] = str(error)


def _go(target: tuple[str, int]) -> None:
    pair_id, page = target
    choose_pair(pair_id)
    set_kept("page", page)
