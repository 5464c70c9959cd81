"""What runs were made from, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import streamlit as st
from selection import kept


def provenance(infos: Mapping[str, Mapping[str, Any]]) -> None:
    """A table of all fields of run.json, a column a run; differing rows can be shown alone."""
    if not infos:
        return
    flat = {name: dict(_flatten(info)) for name, info in infos.items()}
    fields = list(dict.fromkeys(field for info in flat.values() for field in info))
    table = pd.DataFrame(
        {name: [info.get(field, "–") for field in fields] for name, info in flat.items()},
        index=pd.Index(fields, name="field"),
        dtype="str",
    )
    if len(flat) > 1:
        differs = table.ne(table.iloc[:, 0], axis="index").any(axis="columns")
        _warn_of_other_data(differs)
        if st.toggle("Only what differs", key=kept("provenance_differences", True)):
            table = table[differs]
    st.dataframe(table.reset_index(), key="provenance", hide_index=True, height="content")


def _warn_of_other_data(differs: pd.Series) -> None:
    for field, what in (
        ("data.fingerprint", "different data"),
        ("model.weights_hash", "different starting weights"),
    ):
        if differs.get(field, False):
            st.warning(f"These runs used {what} ({field}): their curves are not like for like.")


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and (len(value) > 10 or any(isinstance(v, dict) for v in value)):
        yield prefix, f"{len(value):,} items"
    else:
        yield prefix, "–" if value is None else str(value)
