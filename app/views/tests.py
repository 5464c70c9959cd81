"""Tests: a bench for comparing any column of the pairs between any two groups."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
import streamlit as st
from elements import Guide, chart
from figures.ranking import distributions
from inspection.digest import Digest
from inspection.group_tests import ABSOLUTE, Bench, bench, group_choices
from inspection.queries import NUMBERS, Filter, columns
from marking import plain
from pair_filter import label
from reading import open_training, read_digest, shown_errors
from saved_filters import saved_groups
from selection import head
from spreadsheet import csv_text
from state import TEXT, TEXTS, kept

from plc_core.analysis.statistics import format_p, read_aloud, spearman

SIDES = {
    "two-sided": "A differs from B",
    "greater": "A is larger",
    "less": "A is smaller",
}
_LAST = re.compile(r", p [=<].*\)\.$")
"""What the table below a sentence says too: p and n."""

STATES = {
    "true state clean": "clean pairs",
    "true state flip": "reversed pairs",
    "true state tie": "true ties",
}
SPREAD = Guide(
    "How the first of the measures is spread in both groups; each adds up to 100 %.",
    "There is no healthy shape: the question is yours.",
    "Whether a difference matters. With many pairs a tiny one is significant; read the AUROC.",
)


def page() -> None:
    """Draw the page."""
    chosen = head("Tests", "Is a measure larger in one group of pairs than in another?")
    if chosen is None:
        return
    root, name = chosen
    with shown_errors(name):
        run = open_training(root, name)
        found = read_digest(run)
        _compare(found, saved_groups(run, found))
        _correlate(found)


def _compare(found: Digest, saved: Mapping[str, Filter]) -> None:
    numbers = [n for n in NUMBERS if n in found.columns]
    measures = [*numbers, *(f"|{n}|" for n in ABSOLUTE if n in numbers)]
    groups = list({**saved, **group_choices(found)})
    if not numbers or len(groups) < 2:
        st.info("The pairs of this run have nothing to compare yet.")
        return
    first, second, third = st.columns([0.36, 0.24, 0.24], vertical_alignment="bottom")[:3]
    default = [m for m in ("q_flip", "q_tie", "|margin|") if m in measures] or measures[:1]
    picked = first.multiselect(
        "Measures, tested together",
        measures,
        key=kept("measures", default, TEXTS, measures),
        format_func=label,
        help="p values are corrected by Holm over the measures chosen here.",
    )
    a = second.selectbox("Group A", groups, key=kept("a", groups[0], TEXT, groups))
    b = third.selectbox("Group B", groups, key=kept("b", groups[1], TEXT, groups))
    sides = list(SIDES)
    side = st.segmented_control(
        "Question",
        sides,
        key=kept("side", sides[0], TEXT, sides),
        format_func=SIDES.__getitem__,
        required=True,
    )
    if not picked:
        st.info("Choose a measure.")
        return
    if a == b:
        st.info("A and B are the same group.")
        return
    result = _bench(str(found.folder), found, tuple(picked), a, b, str(side), saved)
    if result.note:
        st.warning(result.note)
    for row in result.rows:
        said = read_aloud(row.test, label(row.measure), _pairs(a), _pairs(b), adjusted=row.adjusted)
        st.markdown(f"- {plain(_LAST.sub(').', said))}")
    st.dataframe(_shown(result), key="bench", hide_index=True, height="content")
    table = result.table()
    st.download_button("CSV", csv_text(table), "tests.csv", key="bench_csv", on_click="ignore")
    values = {a: result.first_values[0], b: result.first_values[1]}
    title = f"{label(picked[0])} in both groups"
    chart(plain(title), distributions(values, label(picked[0])), SPREAD, "bench_spread")


@st.cache_data(max_entries=8, show_spinner="Testing …")
def _bench(
    folder: str,
    _found: Digest,
    measures: tuple[str, ...],
    a: str,
    b: str,
    side: str,
    saved: Mapping[str, Filter],
) -> Bench:
    return bench(_found, measures, a, b, side, saved)


def _shown(result: Bench) -> pd.DataFrame:
    rows = []
    for row in result.rows:
        test = row.test
        rows.append(
            {
                "measure": label(row.measure),
                "AUROC": f"{test.auroc:.3f}",
                "95 %": f"{test.auroc_low:.3f} to {test.auroc_high:.3f}"
                if np.isfinite(test.auroc_low)
                else "n/a",
                "p, Holm": format_p(row.adjusted).removeprefix("p = "),
                "p": format_p(test.p, test.log10_p).removeprefix("p = "),
                "rank-biserial r": f"{test.rank_biserial:+.3f}",
                "n A": f"{test.n_a:,}",
                "n B": f"{test.n_b:,}",
                "NaN": f"{test.nan_a + test.nan_b:,}",
                "U": f"{test.U:,.1f}",
            }
        )
    return pd.DataFrame(rows)


def _pairs(group: str) -> str:
    """A group of a true state in words that fit into a sentence; another one by its name."""
    return STATES.get(group, group)


def _correlate(found: Digest) -> None:
    st.subheader("Correlation", anchor=False)
    numbers = [n for n in NUMBERS if n in found.columns]
    left, right = st.columns(2)
    likely = [n for n in ("q_tie", "score_gap", "z", "margin") if n in numbers]
    pair = [*likely, *(n for n in numbers if n not in likely)]
    one = left.selectbox("First", numbers, key=kept("x", pair[0], TEXT, numbers), format_func=label)
    other = right.selectbox(
        "Second", numbers, key=kept("y", pair[1], TEXT, numbers), format_func=label
    )
    if one == other:
        st.info("Choose two different measures.")
        return
    st.text(_spearman(str(found.folder), found, one, other))


@st.cache_data(max_entries=16, show_spinner="Ranking …")
def _spearman(folder: str, _found: Digest, one: str, other: str) -> str:
    table = columns(_found, [one, other])
    result = spearman(table[one].to_numpy(float), table[other].to_numpy(float))
    return read_aloud(result, label(one), second=label(other))


page()
