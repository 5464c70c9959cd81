"""Label audit: how many labels are reversed, which, why, and whether people find the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import streamlit as st
from audit_list import audited_pairs
from audit_steps import next_steps
from audit_words import Grouping, evidence, groupings, open_audit, rate
from blind_view import (
    CHECKING,
    READER_CSS,
    blind_check,
    is_checking,
    outcome,
)
from elements import Guide, draw, heading, page_title
from figures.label_audit import p_flip_histogram
from listing import listed
from marking import CSS, plain
from reading import runs_root, shown_errors
from selection import pick_audit
from state import set_kept

from plc_core.label_audit.folder import AuditFolder
from plc_core.label_audit.posterior import NoiseRate
from plc_core.storage.files import RunError

STYLE = f"""<style>{CSS}{READER_CSS}
.plc-reason {{margin: .35rem 0 .5rem; padding: .1rem 0 .1rem .6rem; border-left: 3px solid #D55E00}}
</style>"""


EVIDENCE = Guide(
    "What each kind of evidence says of a label, out of fold: nats over chance, of 0.693 at most, "
    "and the weight that it has in p_flip.",
    "One or more kinds above 0.02.",
    "Which labels are wrong where no evidence is above chance.",
)


SUSPICION = Guide(
    "How many pairs have which p_flip, the probability that their label is reversed.",
    "Most pairs near 0, few near 0.5: the evidence tells the labels apart.",
    "Which evidence says so: that stands with each pair.",
)
RATES = Guide(
    "Each group's share of reversed labels with its 95 % interval, the noisiest group first.",
    "Intervals that overlap: no group stands out.",
    "Which group is noisier, where intervals overlap; nor a rate above 49 %, where they end. "
    "Groups of fewer than 50 pairs have none.",
)
MOST_ROWS = 10


def page() -> None:
    """Draw the page."""
    left, right = st.columns([0.7, 0.3], vertical_alignment="bottom")
    with left:
        page_title("Label audit", "Which labels are reversed, and why?")
    root = runs_root()
    with right:
        name = pick_audit(root)
    if name is None:
        st.info("There is no label audit yet. `plc audit FILE --model MODEL` makes one.")
        for run in listed(root):  # one of these may have been one
            if run.problem:
                st.warning(f"{plain(run.name)} cannot be read. {plain(run.problem)}")
        return
    with shown_errors(name):
        st.html(STYLE)
        folder = open_audit(root, name)
        _state(folder)
        if is_checking():
            st.button("Back to the audit", on_click=set_kept, args=(CHECKING, False))
            blind_check(root, name)
        else:
            _summary(folder)
            next_steps(root, name)
            outcome(folder)
            _pairs(root, name)


def _state(folder: AuditFolder) -> None:
    """Say what is wrong with the state of the audit, which nothing else on the page needs."""
    try:
        _ = folder.run.status
    except RunError as error:
        st.warning(plain(str(error)))


@st.fragment
def _pairs(root: Path, name: str) -> None:
    with shown_errors(name):
        audited_pairs(open_audit(root, name))


def _summary(folder: AuditFolder) -> None:
    """The noise rate, the distribution of p_flip, the noise rate of groups, the evidence."""
    p_flip = folder.table["p_flip"].to_numpy()
    groups = groupings(folder)
    found, numbers = st.columns(2, gap="medium")
    with found, st.container(border=True, height="stretch"):
        noise = NoiseRate(**folder.said["noise"])
        more = f"{(p_flip > 0.5).sum():,} of {len(p_flip):,}"
        share, count, *_ = (plain(str(said)) for said in folder.said["sentences"])
        with st.container(horizontal=True, gap="medium", key="tiles"):
            st.metric(
                "Reversed labels, 95 % interval", rate(*noise[:3]), width="content", help=share
            )
            st.metric("More likely reversed than not", more, width="content", help=count)
        if noise.rate is None and _tells(groups):
            st.caption("The rate of all pairs is not known; the groups beside say more.")
        heading("Pairs by p\\_flip", SUSPICION)
        draw("Pairs by p_flip", p_flip_histogram(p_flip), "p_flip")
        heading("Evidence", EVIDENCE)
        table = evidence(folder)
        _small(table.drop(columns="note", errors="ignore"), "evidence")
        told = table.dropna(subset="note") if "note" in table else table.head(0)
        if len(told):
            with st.popover("Why no weight?", type="tertiary"):
                for row in told.itertuples():
                    st.caption(plain(f"{row.evidence}: {row.note}"))
    with numbers, st.container(border=True, height="stretch"):
        for grouping in groups:
            table = grouping.rates
            heading(f"Reversed by {plain(grouping.name)}", RATES)
            shown = table[["group", "pairs"]].assign(reversed=grouping.words())
            _small(shown, f"noise_by_{grouping.name}")


def _tells(groups: Sequence[Grouping]) -> bool:
    """Whether the noise rate of some group is known, of a column that tells groups apart."""
    return any(len(g.rates) > 1 and g.rates["rate"].notna().any() for g in groups)


def _small(table: pd.DataFrame, key: str) -> None:
    number = st.column_config.NumberColumn
    st.dataframe(
        table.dropna(axis="columns", how="all"),
        key=key,
        hide_index=True,
        height="content" if len(table) <= MOST_ROWS else 29 * (MOST_ROWS + 1) + 14,
        row_height=29,
        placeholder="–",
        column_config={
            "group": st.column_config.TextColumn(width=125),
            "evidence": st.column_config.TextColumn(width=90),
            "pairs": number(format="localized", width=55),
            "reversed": st.column_config.TextColumn("reversed, 95 %", width=105),
            "nats over chance": number("nats", format="%.3f", width=55),
            "weight": number(format="%.2f", width=55),
        },
    )


page()
