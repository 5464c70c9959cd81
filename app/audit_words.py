"""What the page of a label audit reads, and how it says rates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from inspection.pair import pair_in
from listing import AUDIT, refuse_links
from reading import open_below

from plc_core.files import RunError
from plc_core.label_audit.folder import AuditFolder, read_noise
from plc_core.runs import Run
from plc_core.storage import MANIFEST


def open_audit(root: Path, name: str) -> AuditFolder:
    """The finished label audit `name` below `root`.

    Raises:
        RunError: as `open_below`; for another kind of run, and for an audit that is not finished.
    """
    run = open_below(root, name)
    if run.info.get("kind") != AUDIT:
        raise RunError(f"{name!r} is not a label audit.")
    path = run.path / "audit.parquet"
    if not path.is_file() or not isinstance(run.info.get("audit"), dict):
        raise RunError(f"The audit {name!r} is not finished: it has no audit.parquet yet.")
    state = path.stat()
    return _opened(str(path), state.st_mtime_ns, (run.path / "run.json").stat().st_mtime_ns, run)


@st.cache_resource(max_entries=4, show_spinner=False)
def _opened(path: str, changed: int, told: int, _run: Run) -> AuditFolder:
    return AuditFolder(_run)


def row_of(folder: AuditFolder, pair_id: str) -> int | None:
    """The place of a pair in the audit; None where it is not in it."""
    found = folder.table.index[folder.table["pair_id"] == pair_id]
    return int(found[0]) if len(found) else None


def texts_of(folder: AuditFolder, row: int) -> dict[str, Any]:
    """The pair in a row; RunError where audit.parquet and pairs.parquet do not belong together."""
    pair = pair_in(folder.run.path, row)
    if pair.get("pair_id") != folder.table["pair_id"].iloc[row]:
        raise RunError("audit.parquet and pairs.parquet have other pairs, or another order.")
    return pair


def tables(folder: AuditFolder) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """The table of evidence, and by name of a column the noise rate of each of its groups.

    RunError where one of them is damaged or missing.
    """
    home = folder.run.path / "tables"
    by = sorted(home.glob("noise-by-*.csv"))
    refuse_links(folder.run.path, [home / "evidence.csv", home / MANIFEST, *by])
    folder.tables()  # verified
    names = [path.stem.removeprefix("noise-by-") for path in by]
    groups = map(read_noise, by)
    return pd.read_csv(home / "evidence.csv"), dict(zip(names, groups, strict=True))


def rate(share: float | None, low: float, high: float) -> str:
    """A share with its interval, in percent; `not known` without one."""
    if any(map(math.isnan, (low, high))):
        return "–"
    known = share is not None and not math.isnan(share)
    said = f"{100 * share:.0f} %" if known and share is not None else "not known"
    return f"{said} [{100 * low:.0f}, {100 * high:.0f}]"
