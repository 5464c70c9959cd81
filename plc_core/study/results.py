"""What the study found, as small CSV files that a later call goes on from.

    jobs.csv        one row a job: what it was, how it ended, what it was made with
    measures.csv    one row a number: job, measure, group, value, low, high, n
    rewards.csv.gz  one row a job and prompt: the reward and the KL of its sampled answer
    choice.json     the learning rate and β, with the table that they were chosen from
    reward.csv      the weights of the linear reward model

No text of a data set or a model is in them.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from plc_core.engine.config import TrainConfig
from plc_core.evidence.estimates import FILES
from plc_core.files import RunError, read_json, replacing, write_json
from plc_core.runs.provenance import provenance
from plc_core.runs.status import now
from plc_core.study.plan import Choice, Job

_COLUMNS = {
    "jobs": [
        "job", "slice", "method", "objective", "flip_rate", "tie_rate", "seed", "beta",
        "learning_rate", "epochs", "mixture", "changes", "state", "reason", "pairs", "steps",
        "tokens", "train_seconds", "seconds", "device", "workers", "model", "data", "calibration",
        "commit", "versions", "finished",
    ],
    "measures": ["job", "measure", "group", "value", "low", "high", "n"],
    "rewards": ["job", "prompt", "reward", "kl", "tokens"],
}  # fmt: skip


class Results:
    """The CSV files in one folder; every change replaces a whole file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{folder} cannot hold results: {error.strerror}.") from None
        self._rows = {name: self._read(name) for name in _COLUMNS}

    def _read(self, name: str) -> pd.DataFrame:
        path = self.folder / FILES[name]
        if not path.exists():
            return pd.DataFrame(columns=_COLUMNS[name])
        try:
            table = pd.read_csv(path)
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read: {error}") from None
        if list(table.columns) != _COLUMNS[name]:
            raise RunError(
                f"{path} has the columns {', '.join(table.columns)}; expected "
                f"{', '.join(_COLUMNS[name])}. It is of another version: move it away."
            )
        return table

    @property
    def jobs(self) -> pd.DataFrame:
        """One row a training run, as in jobs.csv."""
        return self._rows["jobs"]

    @property
    def measures(self) -> pd.DataFrame:
        """One row a number of a job, as in measures.csv."""
        return self._rows["measures"]

    @property
    def rewards(self) -> pd.DataFrame:
        """One row a job's answer to a prompt, as in rewards.csv.gz."""
        return self._rows["rewards"]

    def finished(self) -> set[str]:
        """Names of the jobs that are done; those that failed are run again."""
        return set(self.jobs.loc[self.jobs["state"] == "done", "job"])

    def add(
        self,
        job: Mapping[str, Any],
        measures: Sequence[Mapping[str, Any]] = (),
        rewards: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Take one job's results, in place of what is there under its name."""
        for name, rows in (("jobs", [job]), ("measures", measures), ("rewards", rewards)):
            new = pd.DataFrame(list(rows), columns=_COLUMNS[name])
            before = self._rows[name]
            before = before[before["job"] != job["job"]]
            parts = [part for part in (before, new) if len(part)]
            table = pd.concat(parts, ignore_index=True) if parts else new
            self._rows[name] = table
            if len(rows) or name == "jobs":
                write_csv(self.folder / FILES[name], table)

    # ---- the frozen choice ----------------------------------------------------------------------

    def choice(self) -> Choice | None:
        """The learning rate and β that were written down, or None."""
        path = self.folder / "choice.json"
        if not path.exists():
            return None
        content = read_json(path)
        return Choice(learning_rate=content["learning_rate"], beta=content["beta"])

    def freeze(self, wanted: int) -> Choice:
        """Choose by held-out accuracy of clean DPO, over seeds, once all `wanted` jobs are done.

        Among equals the smaller learning rate and the larger β, which move less. What was written
        down before is kept.

        Raises:
            RunError: while some of those jobs are missing.
        """
        if (before := self.choice()) is not None:
            return before
        jobs = self.jobs[(self.jobs["slice"] == "choice") & (self.jobs["state"] == "done")]
        if len(jobs) < wanted:
            raise RunError(
                f"The learning rate and β are not chosen yet: {len(jobs)} of {wanted} jobs of the "
                "slice choice are done. Run that slice first."
            )
        measures = self.measures
        chosen = measures[(measures["measure"] == "accuracy") & (measures["group"] == "select")]
        table = jobs.merge(chosen[["job", "value"]], on="job")
        means = table.groupby(["learning_rate", "beta"])["value"].agg(["mean", "count"])
        order = means.reset_index().sort_values(
            ["mean", "learning_rate", "beta"], ascending=[False, True, False], kind="stable"
        )
        best = order.iloc[0]
        write_json(
            self.folder / "choice.json",
            {
                "learning_rate": float(best["learning_rate"]),
                "beta": float(best["beta"]),
                "rule": "highest accuracy of clean DPO on the part select, mean over seeds",
                "table": order.to_dict("records"),
            },
        )
        return Choice(learning_rate=float(best["learning_rate"]), beta=float(best["beta"]))


def job_row(
    job: Job, config: TrainConfig | None = None, reason: str | None = None
) -> dict[str, Any]:
    """A job's row of jobs.csv as far as it follows from the job; it failed where there is a reason.

    `config` are the parameters of its run, which a job that never began has none of.
    """
    row = {
        "job": job.name,
        "slice": job.slice,
        "method": job.method,
        "flip_rate": job.flip_rate,
        "tie_rate": job.tie_rate,
        "seed": job.seed,
        "mixture": job.mixture,
        "changes": json.dumps(dict(job.changes), sort_keys=True),
        "state": "done" if reason is None else "failed",
        "reason": reason,
        "finished": now(),
    }
    if config is None:
        return row
    made = provenance()
    versions = (f"{name} {made['versions'][name]}" for name in ("torch", "transformers"))
    return row | {
        "objective": config.objective,
        "beta": config.beta,
        "learning_rate": config.learning_rate,
        "epochs": config.epochs,
        "commit": (made["git"] or {}).get("commit"),
        "versions": ", ".join(versions),
    }


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Replace `path` atomically by a table, numbers with six significant digits; .gz compressed."""
    text = io.StringIO()
    table.to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
    with replacing(path) as temporary:
        content = text.getvalue().encode()
        # No time in it: the same table is the same file.
        temporary.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
