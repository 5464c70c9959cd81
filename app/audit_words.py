"""What the page of a label audit reads, and how it says rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from inspection.pair import pair_in
from listing import AUDIT, refuse_links
from reading import open_below

from plc_core.label_audit.folder import AuditFolder, noise_file, read_noise
from plc_core.runs import Run
from plc_core.storage.files import RunError, remedy
from plc_core.storage.manifest import MANIFEST


def open_audit(root: Path, name: str) -> AuditFolder:
    """The finished label audit `name` below `root`.

    Raises:
        RunError: as `open_below`; for another kind of run, and for an audit that is not finished.
    """
    run = open_below(root, name)
    if run.info.get("kind") != AUDIT:
        raise RunError(f"{name!r} is not a label audit.")
    path = run.path / "audit.parquet"
    if not isinstance(run.info.get("audit"), dict):
        raise RunError(f"The audit {name!r} is not finished: it has no audit.parquet yet.")
    if not path.is_file():
        raise RunError(f"{path} is missing. {remedy(path)}")
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
        home = folder.run.path
        raise RunError(
            f"audit.parquet and pairs.parquet in {home} have other pairs, or another order. "
            f"{remedy(home / 'pairs.parquet')}"
        )
    return pair


@dataclass(frozen=True)
class Grouping:
    """Groups of pairs whose noise rates an audit was asked for, as annotators.

    `rates` is the table of `Audit.noise_by`, the noisiest group first and those of no known rate
    last; `of_pair` the group of each pair in the order of the audit, None where it is not kept.
    """

    name: str
    rates: pd.DataFrame
    of_pair: pd.Series | None

    def words(self) -> list[str]:
        """The rate of each group with its interval."""
        columns = (self.rates[name] for name in ("rate", "low", "high"))
        return [rate(*row) for row in zip(*columns, strict=True)]


def evidence(folder: AuditFolder) -> pd.DataFrame:
    """The table of evidence; RunError where a table of the audit is damaged or missing."""
    path = folder.run.path / "tables" / "evidence.csv"
    refuse_links(folder.run.path, [path, path.with_name(MANIFEST)])
    folder.tables()  # verified
    return pd.read_csv(path)


def groupings(folder: AuditFolder) -> list[Grouping]:
    """What the noise rates were asked by; RunError as `evidence`."""
    files = sorted((folder.run.path / "tables").glob("noise-by-*.csv"))
    refuse_links(folder.run.path, files)
    folder.tables()  # verified
    found = []
    for path in files:
        rates = read_noise(path).sort_values(["rate", "high"], ascending=False, ignore_index=True)
        name, of_pair = _of_pair(folder, path.name, set(rates["group"]))
        found.append(Grouping(name, rates, of_pair))
    return found


def _of_pair(folder: AuditFolder, file: str, groups: set[str]) -> tuple[str, pd.Series | None]:
    """The column that a table of noise rates is by, and its value for each pair as text.

    A file's name does not have every sign of the column's, and a user's column whose name is taken
    has another one in the audit.
    """
    for column in folder.table:
        name = str(column).removeprefix("own_")
        if noise_file(name) == file:
            values = folder.table[column].fillna("(none)").astype(str)
            if set(values) == groups:
                return name, values
    name = file.removeprefix("noise-by-").removesuffix(".csv")
    if "group" in folder.table and set(folder.table["group"]) == groups:
        return name, folder.table["group"]
    return name, None


def rate(share: float | None, low: float, high: float) -> str:
    """A share with its interval, in percent; `not known` without one."""
    if any(map(math.isnan, (low, high))):
        return "–"
    known = share is not None and not math.isnan(share)
    said = f"{100 * share:.0f} %" if known and share is not None else "not known"
    return f"{said} [{100 * low:.0f}, {100 * high:.0f}]"
