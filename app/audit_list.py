"""The pairs of a label audit: a list, the most suspicious first, and one of them side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import streamlit as st
from audit_words import Grouping, groupings, row_of, texts_of
from inspection.pair import snippets
from inspection.text_search import search
from marking import literal, marked, numbers_line, plain, prompt_turns
from numpy.typing import NDArray
from pair_view import text_of
from selection import choose_pair, chosen_pair, clicked_rows, select_rows
from state import FLAG, TEXT, TEXTS, kept

from plc_core.label_audit.folder import AuditFolder

MOST_LISTED = 1_000
"""Pairs that are listed at once: a filter brings others up."""

WHOLE = "audit_whole"
_SECONDS = 20
ORDERS = {
    "suspicious": "most suspicious first",
    "trusted": "least suspicious first",
    "file": "as in the file",
}


def audited_pairs(folder: AuditFolder) -> None:
    """The list with its filters, and the pair that was clicked."""
    with st.container(key="split"):
        listing, reading = st.columns([0.46, 0.54], gap="medium")
    groups = {g.name: g for g in groupings(folder) if g.of_pair is not None and len(g.rates) > 1}
    with listing:
        rows, order = _filtered(folder, groups)
        pair_id = chosen_pair()
        row = row_of(folder, pair_id) if pair_id else None
        if pair_id and row is None:
            st.warning(f"This audit has no pair {plain(pair_id)}.")
        elif row is None and len(rows):
            row = int(rows[0])
        _table(folder, rows, order, row, groups)
    with reading:
        if row is not None and len(rows):  # what was shown before would look like what was found
            changed = (folder.run.path / "pairs.parquet").stat().st_mtime_ns
            place = st.container()
            html, cut = _pair(str(folder.run.path), changed, row, False, folder)
            if cut and st.toggle("Show the whole of long answers", key=kept(WHOLE, False, FLAG)):
                html, _ = _pair(str(folder.run.path), changed, row, True, folder)
            place.html(html)


def _filtered(folder: AuditFolder, groups: Mapping[str, Grouping]) -> tuple[NDArray[np.int64], str]:
    """The places of the pairs that the filters let through, in order, and the order's name."""
    table = folder.table
    left, right = st.columns(2)
    text = left.text_input("Search in texts", key=kept("audit_text", "", TEXT))
    by = right.selectbox(
        "Order",
        list(ORDERS),
        key=kept("audit_order", "suspicious", TEXT, list(ORDERS)),
        format_func=ORDERS.__getitem__,
    )
    passed = np.ones(len(table), dtype=bool)
    for place, (name, grouping) in zip(
        st.columns(max(len(groups), 1)), groups.items(), strict=False
    ):
        options = grouping.rates["group"].tolist()
        named = {o: f"{o} · {said}" for o, said in zip(options, grouping.words(), strict=True)}
        picked = place.multiselect(
            plain(name[:1].upper() + name[1:]),
            options,
            key=kept(f"audit_{name}", [], TEXTS, options),
            format_func=named.__getitem__,
            placeholder="All",
        )
        if picked and grouping.of_pair is not None:
            passed &= grouping.of_pair.isin(picked).to_numpy()
    if text:
        found = search(folder.run.path, text)
        found.wait(_SECONDS, whole=True)
        if not found.ended:
            st.warning(f"Searched so far: {found.read:,} of {found.total:,} pairs.")
        hit = np.zeros(len(table), dtype=bool)
        hit[found.rows().places] = True
        passed &= hit
    sign = {"suspicious": -1.0, "trusted": 1.0, "file": 0.0}[by]
    order = np.argsort(sign * table["p_flip"].to_numpy(), kind="stable")
    return order[passed[order]], by


def _table(
    folder: AuditFolder,
    rows: NDArray[np.int64],
    order: str,
    row: int | None,
    groups: Mapping[str, Grouping],
) -> None:
    total, listed = len(folder.table), rows[:MOST_LISTED]
    of = f"{len(rows):,} of {total:,} pairs, {ORDERS[order]}"
    st.caption(of + (f"; the first {MOST_LISTED:,}" if len(rows) > MOST_LISTED else ""))
    if not len(listed):
        st.info("No pair matches these filters.")
        return
    own = folder.table.iloc[listed]
    changed = (folder.run.path / "pairs.parquet").stat().st_mtime_ns
    of_pair = {name: g.of_pair for name, g in groups.items() if g.of_pair is not None}
    shown = pd.DataFrame(
        {
            "p_flip": own["p_flip"].to_numpy(),
            "pair": _snippets(str(folder.run.path), changed, listed),
            "reason": own["reason"].to_numpy(),
            **{name: part.iloc[listed].to_numpy() for name, part in of_pair.items()},
        }
    )
    ids = own["pair_id"].tolist()
    key = "audit_table"

    def selected() -> None:
        for place in clicked_rows(key)[:1]:
            choose_pair(ids[place])

    select_rows(key, np.flatnonzero(listed == row).tolist() if row is not None else [])
    text = st.column_config.TextColumn
    st.dataframe(
        shown,
        key=key,
        hide_index=True,
        height=560 if len(shown) > 16 else "content",
        row_height=29,
        on_select=selected,
        selection_mode=["single-row", "single-cell"],
        column_config={
            "p_flip": st.column_config.NumberColumn(format="%.3f", width=60, pinned=True),
            "pair": text(width=170),
            "reason": text(width=300),
            **{name: text(width=100) for name in groups},
        },
    )


@st.cache_data(max_entries=8, show_spinner=False)
def _snippets(run: str, changed: int, rows: NDArray[np.int64]) -> list[str]:
    return snippets(Path(run), rows)


@st.cache_resource(max_entries=100, show_spinner=False)
def _pair(run: str, changed: int, row: int, whole: bool, _folder: AuditFolder) -> tuple[str, bool]:
    """A pair as HTML that shows its texts literally; whether an answer is cut in it."""
    pair, judged = texts_of(_folder, row), _folder.table.iloc[row]
    answers = marked(text_of(pair.get("chosen")), text_of(pair.get("rejected")), whole)
    numbers = {"p_flip": f"{judged['p_flip']:.3f}"}
    if pd.notna(judged["p_tie"]):
        numbers["p_tie"] = f"{judged['p_tie']:.2f}"
    columns = ""
    for kind, html in zip(("chosen", "rejected"), answers[:2], strict=True):
        score = pair.get(f"score_{kind}")
        said = kind if score is None or pd.isna(score) else f"{kind} · score {score:g}"
        columns += f'<div><div class="plc-role">{said}</div>{html}</div>'
    reason = str(judged["reason"] or "No evidence against this label.")
    html = (
        f'<div class="plc-id">{literal(str(judged["pair_id"]))}</div>{numbers_line(numbers, {})}'
        f'<div class="plc-reason">{literal(reason)}</div>'
        f'<div class="plc-prompt">{prompt_turns(pair.get("prompt"))}</div>'
        f'<div class="plc-answers">{columns}</div>'
        f'<div class="plc-note">{literal(answers.note)}</div>'
    )
    return html, answers.cut
