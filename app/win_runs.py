"""Which runs the page of win rates compares at first, and which of them is the KL control."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import streamlit as st
from inspection.judged_answers import kl_by_run, kl_control
from reading import config_of, open_below, shown_errors
from selection import chosen_runs

from plc_core.analysis.statistics import MeanInterval
from plc_core.runs import Run

MOST_AT_FIRST = 6
"""Runs that are compared before a person chooses any."""


def runs_at_first(root: Path, of: str, having: list[str], name: str) -> list[str]:
    """The runs shown at first: the one of the address, chosen ones, its control, of its data."""
    picked = [run for run in chosen_runs(root) if run in having]
    if of not in having:
        return picked if len(picked) > 1 else having[:MOST_AT_FIRST]
    picked = list(dict.fromkeys([of, *picked]))
    alike: dict[str, Run] = {}
    for run in dict.fromkeys([of, *having]):
        with shown_errors(run):
            opened = open_below(root, run)
            if run == of or (of in alike and data_of(opened) == data_of(alike[of])):
                alike[run] = opened
    if of in alike and (control := control_of(alike, name, of)):
        picked.append(control)
    return list(dict.fromkeys([*picked, *alike]))[: max(MOST_AT_FIRST, len(set(picked)))]


def control_of(runs: Mapping[str, Run], name: str, of: str) -> str | None:
    """The KL control of the run `of` among `runs`; of another's where `of` is not PLC-DPO's."""
    objectives = {run: objective_of(runs, run) for run in runs}
    kls: dict[str, MeanInterval] = {}
    for run in runs:
        if objectives[run] not in ("plc", "dpo"):
            continue
        with shown_errors(run):
            kls[run] = _kl(str(runs[run].path), _changed(runs[run]), runs[run], name)
    corrected = [run for run in kls if objectives[run] == "plc"]
    if of in corrected:
        corrected = [of]
    return next((c for run in corrected if (c := kl_control(kls, objectives, run))), None)


def _changed(run: Run) -> int:
    """When a file of the run's answers was last added or replaced."""
    folder = run.path / "generations"
    return folder.stat().st_mtime_ns if folder.exists() else 0


@st.cache_data(max_entries=500, show_spinner=False)
def _kl(path: str, changed: int, _run: Run, name: str) -> MeanInterval:
    return kl_by_run({"": _run}, name)[""]


def data_of(run: Run) -> str:
    """The training data of a run in a few words: source, fingerprint, share reversed."""
    data = run.info.get("data")
    data = data if isinstance(data, dict) else {}
    config = config_of(run)
    source = data.get("source") or config.get("data") or "unknown data"
    rate = config.get("flip_rate")
    reversed_ = f", {rate:.0%} reversed" if isinstance(rate, float) else ""
    return f"{source} {data.get('fingerprint') or ''}".strip() + reversed_


def objective_of(opened: Mapping[str, Run], name: str) -> str:
    """The objective of the run `name`; empty where that is none of the opened ones."""
    return str(config_of(opened[name]).get("objective")) if name in opened else ""
