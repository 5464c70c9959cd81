"""The export of the pairs as a person's decisions leave them."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st
from marking import plain

from plc_core.files import RunError
from plc_core.runs import Run
from plc_core.runs.decisions import DECISIONS, export_cleaned

MOST_TO_DOWNLOAD = 50_000_000
_EXPORTED = "exported"


def written(counts: Mapping[str, int]) -> str:
    """What an exported file holds, by the counts of `export_cleaned`, in words."""
    of_all = ", ".join(f"{name} {counts[name]:,}" for name in (*DECISIONS, "undecided"))
    said = (
        f"Written: {of_all}. Undecided pairs in the file whose label the run had reversed, now "
        f"in the order of your data: {counts['restored']:,}."
    )
    if ties := counts["injected_ties"]:
        said += (
            f" Undecided injected ties in the file: {ties:,}. They are not your data, and the "
            "pairs that they replaced are missing; `injected_tie` marks them."
        )
    return said


def export_box(run: Run) -> None:
    """Write the cleaned dataset, and say what is in it."""
    box = st.popover("Export cleaned data", icon=":material/ios_share:", key="export_box")
    with box:
        st.caption(
            "A decision is about the pair as it is shown. A pair that nothing was decided on gets "
            "back the order that it had in your data: injected flips are undone, and marked "
            "`restored`. The pair that an injected tie replaced is not in the run: the tie stays."
        )
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
            st.session_state[_EXPORTED] = run.name, path, written(counts)
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
