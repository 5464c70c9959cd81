"""The export of the pairs as a person's decisions leave them."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st
from marking import plain

from plc_core.runs import Run
from plc_core.runs.cleaned import export_cleaned
from plc_core.runs.decisions import DECISIONS
from plc_core.storage.files import RunError

MOST_TO_DOWNLOAD = 50_000_000
_EXPORTED = "exported"


def written(counts: Mapping[str, int], ties: bool) -> str:
    """What an exported file holds, by the counts of `export_cleaned`, in words."""
    said = ", ".join(f"{name} {counts[name]:,}" for name in (*DECISIONS, "undecided"))
    said = f"Written: {said}. Injected flips undone: {counts['restored']:,}."
    if count := counts["ties"]:
        are = "1 pair is a tie" if count == 1 else f"{count:,} pairs are ties"
        said += f" {are}, " + (
            "marked in the column `tie`. TRL has no ties and would train each as a "
            "preference for its `chosen`: write the file without ties for it."
            if ties
            else "left out."
        )
    if injected := counts["injected_ties"]:
        said += (
            f" {injected:,} of them are injected ties: they are not your data, and the pairs that "
            "they replaced are missing; `injected_tie` marks them."
        )
    return said


def export_box(run: Run) -> None:
    """Write the cleaned dataset, and say what is in it."""
    box = st.popover("Export cleaned data", icon=":material/ios_share:", key="export_box")
    with box:
        st.caption(
            "For TRL's `DPOTrainer` and for `plc_core.load_pairs`: prompt, chosen and rejected as "
            "messages, with your own columns. Undecided pairs get back the order that they had in "
            "your data: injected flips are undone, and marked `restored`. The pair that an "
            "injected tie replaced is not in the run: the tie stays."
        )
        form = st.radio("Format", ["parquet", "jsonl"], horizontal=True, key="export_format")
        undecided = st.checkbox("With undecided pairs", True, key="export_all")
        ties = st.checkbox(
            "With ties",
            True,
            key="export_ties",
            help="`load_pairs` reads them as ties. TRL would train each as a preference.",
        )
        if st.button("Write the file", key="export_go", type="primary"):
            bar = st.progress(0.0)
            try:
                path, counts = export_cleaned(
                    run,
                    form,
                    undecided,
                    ties,
                    lambda done, total: bar.progress(done / max(total, 1)),
                )
            except RunError as error:
                st.error(plain(str(error)))
                return
            bar.empty()
            st.session_state[_EXPORTED] = run.name, path, written(counts, ties)
        name, path, said = st.session_state.get(_EXPORTED, ("", None, ""))
        if name == run.name and path.is_file():
            st.success(said)
            st.code(str(path), language=None)
            kind = "json" if path.suffix == ".jsonl" else "parquet"
            st.caption(
                f'Read it with `load_pairs(path)`, or for TRL with `load_dataset("{kind}", '
                'data_files=path, split="train")`.'
            )
            if path.stat().st_size <= MOST_TO_DOWNLOAD:
                st.download_button(
                    "Download",
                    path.read_bytes,
                    path.name,
                    key="export_download",
                    on_click="ignore",
                )
