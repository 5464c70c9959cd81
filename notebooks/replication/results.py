"""What the study found, as small CSV files that a later call goes on from.

    jobs.csv        one row a job: what it was, how it ended, what it was made with
    measures.csv    one row a number: job, measure, group, value, low, high, n
    rewards.csv.gz  one row a job and prompt: the reward and the KL of its sampled answer
    study.json      the settings that all of them share
    choice.json     the learning rate and β, with the table that they were chosen from
    reward.csv      the weights of the linear reward model

No text of a data set or a model is in them.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from notebooks.evidence.result_files import COLUMNS, FILES, read_results
from notebooks.replication.plan import Choice, Job, ReplicationConfig
from plc_core.engine.config import TrainConfig
from plc_core.runs.provenance import provenance
from plc_core.runs.status import now
from plc_core.storage.files import RunError, read_json, replacing, write_json

_NAMED = ("methods", "variants", "evidence")
_SETTINGS = (
    "model", "split_seed", "shares", "most_pairs", "train", "choice", "learning_rates", "betas",
    "choice_seeds", "tie_train", "responses", "response_tokens", *_NAMED,
)  # fmt: skip


class Results:
    """The CSV files in one folder; every change replaces a whole file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows = {name: read_results(folder, name) for name in FILES}

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
        """Take one job's results, in place of what is there under its name.

        Its row of jobs.csv comes last, which says that the others are there.
        """
        for name, rows in (("measures", measures), ("rewards", rewards), ("jobs", [job])):
            new = pd.DataFrame(list(rows), columns=COLUMNS[name])
            before = self._rows[name]
            others = before[before["job"] != job["job"]]
            parts = [part for part in (others, new) if len(part)]
            self._rows[name] = pd.concat(parts, ignore_index=True) if parts else new
            if len(new) or len(others) < len(before):
                write_csv(self.folder / FILES[name], self._rows[name])

    def agree_with(self, study: ReplicationConfig, keep: bool = False) -> None:
        """See that the results here are of this study's settings; with `keep`, write them down.

        Methods and variants may be added, and whatever a job's name says: seeds, rates, factors.

        Raises:
            RunError: naming the settings that differ.
        """
        path = self.folder / "study.json"
        own = {name: value for name, value in study.model_dump().items() if name in _SETTINGS}
        before = read_json(path) if path.exists() else own
        other = [n for n in own if n not in _NAMED and own[n] != before.get(n)]
        for kind in _NAMED:
            known = before.get(kind, {})
            other += [
                f"{kind}: {n}" for n in own[kind] if own[kind][n] != known.get(n, own[kind][n])
            ]
            own[kind] = known | own[kind]
        if other:
            raise RunError(
                f"The results in {self.folder} were made with other settings ({', '.join(other)}; "
                f"those are in {path.name}). Give the recipe as it was, or another --results."
            )
        if keep:
            write_json(path, own)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within, no other process may write into the folder.

        Raises:
            RunError: where one does, or the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / ".lock", timeout=0)
            lock.acquire()
        except Timeout:
            raise RunError(
                f"Another call writes into {self.folder}: wait for it, or give --results."
            ) from None
        except OSError as error:
            raise RunError(f"{self.folder} cannot hold results: {error.strerror}.") from None
        try:
            self._rows = {name: read_results(self.folder, name) for name in FILES}
            yield
        finally:
            lock.release()

    # ---- the frozen choice ----------------------------------------------------------------------

    def choice(self) -> Choice | None:
        """The learning rate and β that were written down, or None."""
        path = self.folder / "choice.json"
        if not path.exists():
            return None
        content = read_json(path)
        return Choice(learning_rate=content["learning_rate"], beta=content["beta"])

    def freeze(self, wanted: Sequence[Job]) -> Choice:
        """Choose by held-out accuracy of clean DPO, over seeds, once all `wanted` jobs are done.

        Among equals the smaller learning rate and the larger β, which move less. What was written
        down before is kept.

        Raises:
            RunError: while some of those jobs are missing.
        """
        if (before := self.choice()) is not None:
            return before
        there = self.jobs["job"].isin([job.name for job in wanted])
        jobs = self.jobs[there & (self.jobs["state"] == "done")]
        if len(jobs) < len(wanted):
            raise RunError(
                f"The learning rate and β are not chosen yet: {len(jobs)} of {len(wanted)} jobs "
                "of the slice choice are done. Run that slice first."
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
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        content = text.getvalue().encode()
        # No time in it: the same table is the same file.
        temporary.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
