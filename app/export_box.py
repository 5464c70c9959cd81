"""The export of the pairs as a person's decisions leave them."""

from __future__ import annotations

import streamlit as st
from marking import plain

from plc_core.files import RunError
from plc_core.runs import Run
from plc_core.runs.decisions import export_cleaned

MOST_TO_DOWNLOAD = 50_000_000
_EXPORTED = "exported"


def export_box(run: Run) -> None:
    """Write the cleaned dataset, and say what is in it."""
    box = st.popover("Export cleaned data", icon=":material/ios_share:", key="export_box")
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
