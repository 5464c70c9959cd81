"""The command `plc audit`: what it is given, and what it says in the terminal.

The libraries of models are loaded by the notebook's process alone, as they take seconds.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plc_core.batch.jobs import run_jobs
from plc_core.data import DATASETS, DataError
from plc_core.data.folders import local_files
from plc_core.data.world import WORLD
from plc_core.parameters import ParameterError, load_yaml
from plc_core.runs import Run, open_run, resolve
from plc_core.storage.paths import plc_command, project_path, resource


def run_audit(given: argparse.Namespace) -> int:
    """The command `plc audit`: run the notebook, then say in the terminal what was found.

    A relative FILE starts where the command was given, as people expect of a file on a command.
    """
    data = given.file
    if data not in DATASETS and data != WORLD:
        data = str(Path(data).expanduser().absolute())
    export = None if given.export is None else str(Path(given.export).absolute())
    runs = project_path(given.runs)
    name = given.name or _free_name(f"audit-{_stem(given.file)}", runs)
    chosen = {
        "data": data,
        "model": given.model if given.model is None else _model(given.model),
        "policy": given.policy or ("flip" if export else None),
        "export": export,
        "noise_by": given.by,
        "rates_by": given.by and given.by[0],
        "run": given.run,
        "name": name,
        "runs_dir": str(runs),
    }
    parameters = {key: value for key, value in chosen.items() if value is not None}
    parameters |= {key: load_yaml(value) for key, value in given.p}
    try:
        if data not in DATASETS and data != WORLD:
            local_files(Path(data))  # before a kernel is started for it
        errors = run_jobs(resource("notebooks") / "audit.ipynb", [parameters])
    except (DataError, ParameterError) as refused:
        errors = [str(refused)]
    for error in errors:
        sys.stderr.write(f"{error}\n")
    if errors:
        return 1
    from plc_core.label_audit.config import AuditConfig
    from plc_core.label_audit.folder import AuditFolder

    runs = project_path(parameters["runs_dir"])
    run = open_run(resolve(runs, parameters["name"]))
    folder, config = AuditFolder(run), AuditConfig.model_validate(run.info["config"])
    lines = [*folder.said["sentences"], *_left_out(run)]
    for column in config.noise_by:
        for row in folder.noise_by(column).to_dict("records"):
            lines.append(f"  {column} {row['group']}: {rate_of(row)}, {row['pairs']:,} pairs")
    lines.append("")
    lines += [
        f"Report:     {run.path / 'report.html'}",
        f"Every pair: {run.path / 'audit.parquet'}",
    ]
    if config.policy is not None:
        lines.append(f"Cleaned:    {config.export_file}")
    lines.append(f"Inspector:  {plc_command()} app --runs {runs}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def rate_of(row: Mapping[Any, Any]) -> str:
    """The noise rate of a row of `Audit.noise_by` with its interval, as text."""
    rate = "not known" if np.isnan(row["rate"]) else f"{row['rate']:.0%}"
    interval = "" if np.isnan(row["low"]) else f" [{row['low']:.0%}, {row['high']:.0%}]"
    return rate + interval


def _left_out(run: Run) -> list[str]:
    """A line on the rows that are no pairs of the audit, by rule; none where every row is one."""
    findings = run.findings()
    counts = findings.loc[findings["action"] == "drop", "rule"].value_counts()
    if counts.empty:
        return []
    by_rule = ", ".join(f"{rule} {count:,}" for rule, count in counts.items())
    return [
        f"{counts.sum():,} of {run.info['data']['rows_read']:,} rows left out: {by_rule}; "
        f"{run.path / 'findings.parquet'} says which."
    ]


def _stem(file: str) -> str:
    stem = Path(file).name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "-", stem) or "pairs"


def _model(model: str) -> str:
    """A model's folder where the command was given; a name as it is."""
    return str(Path(model).absolute()) if Path(model).is_dir() else model


def _free_name(wanted: str, runs: Path) -> str:
    """`wanted`, or with a number where a run of that name is there."""
    names = (wanted, *(f"{wanted}-{number}" for number in range(2, 10_000)))
    return next(name for name in names if not resolve(runs, name).exists())
