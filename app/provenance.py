"""What runs were made from, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import streamlit as st
from marking import plain
from state import FLAG, kept

from plc_core.runs import Run
from plc_core.runs.alerts import WITHOUT_CHECKSUMS

DATA = ("data.origin.revision", "data.fingerprint")
# The reference is the policy before its first step. Older versions knew it by its weights alone.
START = ("reference.model", "reference.weights")


def provenance(runs: Mapping[str, Run]) -> None:
    """A table of all fields of run.json, a column a run; differing rows can be shown alone."""
    if not runs:
        return
    for name, run in runs.items():
        st.markdown(f"**{plain(name)}** · {plain(_data_sentence(run))}")
        if not run.has_checksums:
            st.caption(f"{plain(name)} · {WITHOUT_CHECKSUMS}")
    flat = {name: dict(_flatten(run.info)) for name, run in runs.items()}
    fields = list(dict.fromkeys(field for info in flat.values() for field in info))
    table = pd.DataFrame(
        {name: [info.get(field, "–") for field in fields] for name, info in flat.items()},
        index=pd.Index(fields, name="field"),
        dtype="str",
    )
    if len(flat) > 1:
        for sentence in unlike(list(flat.values())):
            st.warning(sentence)
        differs = table.ne(table.iloc[:, 0], axis="index").any(axis="columns")
        if st.toggle("Only what differs", key=kept("differences", True, FLAG)):
            table = table[differs]
    st.dataframe(table.reset_index(), key="provenance", hide_index=True, height="content")


def unlike(infos: list[dict[str, str]]) -> list[str]:
    """Why the curves of runs are not like for like, a sentence a reason; `infos` are flat."""
    found = []
    for what, fields in (("data", DATA), ("starting weights", START)):
        # A field that a run lacks says nothing of it: the run may only just have started.
        unequal = [f for f in fields if len({info[f] for info in infos if f in info}) > 1]
        if unequal:
            found.append(
                f"These runs used different {what} ({', '.join(unequal)}): their curves are not "
                "like for like."
            )
    if len({next((f for f in START if f in info), None) for info in infos} - {None}) > 1:
        found.append(
            "Whether these runs used the same starting weights cannot be told: some name them by "
            "reference.model, older ones by reference.weights."
        )
    return found


def _data_sentence(run: Run) -> str:
    try:
        return run.data_sentence()
    except (KeyError, TypeError, ValueError):
        return "Another version recorded the data of this run in another form; see data.* below."


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and (len(value) > 10 or any(isinstance(v, dict) for v in value)):
        yield prefix, f"{len(value):,} items"
    else:
        yield prefix, "–" if value is None else str(value)
