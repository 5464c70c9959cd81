"""Label audit: how many labels are reversed, which, why, and whether people find the same."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st
from audit_list import audited_pairs
from audit_words import open_audit, rate, tables
from blind_view import (
    CHECKING,
    READER_CSS,
    blind_check,
    invitation,
    is_checking,
    outcome,
)
from elements import Guide, draw, heading, page_title
from figures.label_audit import p_flip_histogram
from marking import CSS, plain
from reading import runs_root, shown_errors
from selection import pick_audit
from state import set_kept

from plc_core.label_audit.folder import AuditFolder
from plc_core.label_audit.posterior import NoiseRate

STYLE = f"""<style>{CSS}{READER_CSS}
.plc-reason {{margin: .35rem 0 .5rem; padding: .1rem 0 .1rem .6rem; border-left: 3px solid #D55E00}}
</style>"""


EVIDENCE = Guide(
    "What each kind of evidence says of a label, out of fold: nats over chance, of 0.693 at most, "
    "and the weight that it has in p_flip.",
    "One or more kinds above 0.02.",
    "Which labels are wrong where no evidence is above chance.",
)


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
        return
    with shown_errors(name):
        st.html(STYLE)
        folder = open_audit(root, name)
        if is_checking():
            st.button("Back to the audit", on_click=set_kept, args=(CHECKING, False))
            blind_check(root, name)
        else:
            _summary(folder)
            invitation(folder)
            outcome(folder)
            _pairs(root, name)


@st.fragment
def _pairs(root: Path, name: str) -> None:
    with shown_errors(name):
        audited_pairs(open_audit(root, name))


def _summary(folder: AuditFolder) -> None:
    """The noise rate, the distribution of p_flip, the noise rate of groups, the evidence."""
    evidence, groups = tables(folder)
    p_flip = folder.table["p_flip"].to_numpy()
    found, numbers = st.columns(2, gap="medium")
    with found, st.container(border=True, height="stretch"):
        noise = NoiseRate(**folder.said["noise"])
        more = f"{(p_flip > 0.5).sum():,} of {len(p_flip):,}"
        with st.container(horizontal=True, gap="medium", key="tiles"):
            st.metric("Reversed labels, 95 % interval", rate(*noise[:3]), width="content")
            st.metric("More likely reversed than not", more, width="content")
        st.text(str(folder.said["sentences"][0 if noise.rate is None else 2]))
        title = "Pairs by p_flip, the probability that the label is reversed"
        heading(title)
        draw(title, p_flip_histogram(p_flip), "p_flip")
    with numbers, st.container(border=True, height="stretch"):
        for column, table in groups.items():
            heading(f"Reversed labels by {plain(column)}, %")
            rates = zip(table["rate"], table["low"], table["high"], strict=True)
            shown = table[["group", "pairs"]].assign(reversed=[rate(*row) for row in rates])
            _small(shown, f"noise_by_{column}")
        heading("Evidence", EVIDENCE)
        _small(evidence.drop(columns="note", errors="ignore"), "evidence")
        told = evidence.dropna(subset="note") if "note" in evidence else evidence.head(0)
        if len(told):
            with st.popover("Why no weight?", type="tertiary"):
                for row in told.itertuples():
                    st.caption(plain(f"{row.evidence}: {row.note}"))


def _small(table: pd.DataFrame, key: str) -> None:
    number = st.column_config.NumberColumn
    st.dataframe(
        table.dropna(axis="columns", how="all"),
        key=key,
        hide_index=True,
        height="content" if len(table) <= 6 else 215,
        row_height=29,
        placeholder="–",
        column_config={
            "group": st.column_config.TextColumn(width=125),
            "evidence": st.column_config.TextColumn(width=85),
            "pairs": number(format="localized", width=60),
            "reversed": st.column_config.TextColumn(width=100),
            "nats over chance": number(format="%.3f", width=105),
            "weight": number(format="%.2f", width=50),
        },
    )


page()
