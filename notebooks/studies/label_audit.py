"""Which evidence finds reversed labels, and how noisy the data are: what `15_label_audit` shows.

The audit of known errors is made here; evidence against rivals over seeds is computed from the CSV
files of `notebooks.replication`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field

from notebooks.evidence.claims import shown
from notebooks.evidence.estimates import (
    BASELINE,
    Estimate,
    Study,
    at,
    over_seeds,
    read_study,
)
from notebooks.evidence.report import results_folder
from notebooks.replication import rivals
from notebooks.studies.study import Share
from plc_core.analysis.calibration import Calibration, calibrate
from plc_core.data import flip_labels
from plc_core.engine.config import Parameters
from plc_core.label_audit.auditing import audit
from plc_core.label_audit.result import Audit
from plc_core.loading import load_pairs
from plc_core.progress import Progress
from plc_core.runs import Run, create_run
from plc_core.storage.files import RunError
from plc_core.typography import percent

ASKED = ("hidden states", "lengths", "words")
"""The evidence that is asked: scores and votes are what the labels were made from."""
OURS = "audit, all added up"
RANKINGS: dict[str, tuple[str, str]] = {
    OURS: ("audit p_flip", "evidence"),
    "audit, hidden states": ("audit hidden states", "evidence"),
    "audit, words": ("audit words", "evidence"),
    "audit, length": ("audit length", "evidence"),
    "confident learning": (rivals.CONFIDENT, "evidence"),
    "PerpCorrect's perplexities": (rivals.PERPLEXITY, "evidence"),
    "reward model of clean labels": (rivals.REWARD, "evidence"),
    "lengths, by what most prefer": ("against length", BASELINE),
    "DPO's margin": ("-margin", BASELINE),
    "q_flip, DPO's shadow": ("q_flip", BASELINE),
    "q_flip, PLC-DPO": ("q_flip", "plc-aggressive"),
    "RE-PO's reliability": ("-margin", "re-po"),
}
"""Each ranking's group in measures.csv, and the method whose training runs it is read from."""
_KINDS = {"random": "at random", "hard": "hard"}
PARTS = ("main", "variants")
"""Slices of a study that train."""


class LabelAuditStudy(Parameters):
    """The parameters of `notebooks/15_label_audit.ipynb`."""

    name: str  # name of the report's folder
    runs_dir: str = "runs"
    data: str = "world"
    model: str | None = "world"
    num_pairs: int | None = Field(None, ge=200)
    max_length: int = Field(1024, ge=1)
    flip_rate: Share = 0.2
    seed: int = 0
    results_dir: str = "data/results"
    studies: dict[str, str] = Field(min_length=1)  # folders of results_dir, by what they are


def open_study(config: LabelAuditStudy) -> tuple[Run, dict[str, Study]]:
    """The report's folder, and the studies by what they are.

    Raises:
        RunError: where there are no results of a study.
    """
    results = results_folder(config.results_dir)
    found = {title: read_study(name, results / name) for title, name in config.studies.items()}
    if missing := [study.name for study in found.values() if not study.is_run]:
        raise RunError(f"There are no results of a study {missing[0]!r} in {results}.")
    info = {"kind": "analysis", "config": config.model_dump()}
    return create_run(config.runs_folder, config.name, info), found


# ---- an audit of labels whose errors are known ---------------------------------------------------


def audit_of_known_errors(config: LabelAuditStudy) -> tuple[Audit, np.ndarray]:
    """An audit of pairs some of whose labels were reversed here, and [pairs] which."""
    reading: dict[str, Any] = {} if config.num_pairs is None else {"limit": config.num_pairs}
    pairs = flip_labels(load_pairs(config.data, **reading), config.flip_rate, seed=config.seed)
    found = audit(
        pairs, config.model, evidence=ASKED, max_length=config.max_length, progress=Progress()
    )
    return found, np.array(found.pairs.dataset["flipped"], dtype=bool)


def rankings_of(found: Audit) -> dict[str, np.ndarray]:
    """Suspicion of each pair by the whole audit and by each evidence, larger for more."""
    own = {name: -np.nan_to_num(column) for name, column in found.evidence.columns.items()}
    return {OURS: found.probabilities} | own


def calibration_of(found: Audit, flipped: np.ndarray) -> Calibration:
    """p_flip beside the share of labels that were reversed here."""
    return calibrate(found.probabilities, flipped)


# ---- evidence and rivals, over seeds -------------------------------------------------------------


def rankings(study: Study, measure: str = "flip_auroc") -> pd.DataFrame:
    """One row a ranking, kind of error and rate: kind, rate, ranking, value, low, high, n (seeds).

    Args:
        measure: flip_auroc or precision_100.
    """
    rows = []
    for label, (group, method) in RANKINGS.items():
        for kind, values in _by_kind(study, measure, group, method):
            for rate, own in values.groupby("flip_rate"):
                if (found := over_seeds(own)) is not None and rate:
                    rows.append(row_of(found, kind=kind, rate=rate, ranking=label))
    return pd.DataFrame(rows, columns=["kind", "rate", "ranking", "value", "low", "high", "n"])


def _by_kind(
    study: Study, measure: str, group: str, method: str
) -> Iterator[tuple[str, pd.DataFrame]]:
    for name, kind in _KINDS.items():
        if method == "evidence":
            yield kind, _evidence(study, measure, group, name)
        else:
            trained = method if name == "random" else f"{method}-hard"
            yield kind, pd.concat([study.values(measure, group, trained, part) for part in PARTS])


def _evidence(study: Study, measure: str, group: str, name: str) -> pd.DataFrame:
    """Values of the jobs without training, and of the audits before training with weights.

    Errors that follow from the scores may be the same for every seed: the same pairs count once.
    """
    before = ("cdpo-weights", "main") if name == "random" else ("cdpo-weights-hard", "variants")
    jobs = [(name, "evidence"), before]
    values = pd.concat([study.values(measure, group, *own) for own in jobs])
    data = study.jobs.set_index("job")["data"]
    return values.assign(data=values["job"].map(data)).drop_duplicates(["flip_rate", "data"])


def rankings_table(table: pd.DataFrame) -> pd.DataFrame:
    """`rankings` as text, a column a kind and rate."""
    cells: dict[str, dict[str, str]] = {}
    for kind in _KINDS.values():
        for row in table[table["kind"] == kind].sort_values("rate").to_dict("records"):
            cells.setdefault(f"{percent(row['rate'])} {kind}", {})[row["ranking"]] = as_text(row, 2)
    return (
        pd.DataFrame(cells).reindex([r for r in RANKINGS if r in set(table["ranking"])]).fillna("–")
    )


def calibration_table(study: Study) -> pd.DataFrame:
    """The audit's probabilities and noise rate over seeds, a row a kind and true rate.

    ECE; Brier score beside that of the true rate for every pair; the noise rate, and in how many
    seeds its interval has the true rate.
    """
    rows = []
    for name, kind in _KINDS.items():
        measured = {
            label: _evidence(study, measure, group, name)
            for label, (measure, group) in {
                "ECE": ("ece", "audit p_flip"),
                "Brier": ("brier", "audit p_flip"),
                "Brier of the rate": ("brier", "audit base rate"),
                "noise rate": ("noise_rate", "audit"),
            }.items()
        }
        intervals = _intervals(study, name)
        for rate in sorted(intervals["flip_rate"].unique()):
            own = intervals[intervals["flip_rate"] == rate]
            inside = (own["low"] <= own["flip_rate"]) & (own["flip_rate"] <= own["high"])
            row: dict[str, Any] = {"errors": kind, "reversed": percent(rate)}
            for label, values in measured.items():
                found = over_seeds(at(values, (rate,)))
                row[label] = "not known" if found is None else shown(found, 3)
            row["true rate in the interval"] = f"{inside.sum()} of {len(own)}"
            rows.append(row)
    return pd.DataFrame(rows)


def _intervals(study: Study, name: str) -> pd.DataFrame:
    """flip_rate, low, high of the noise rate, a row a job; also where the rate is not known."""
    rows = study.measures[
        (study.measures["measure"] == "noise_rate") & (study.measures["group"] == "audit")
    ]
    jobs = _evidence(study, "ece", "audit p_flip", name)[["job", "flip_rate"]]
    return jobs.merge(rows[["job", "low", "high"]], on="job")


def as_text(row: Mapping[Any, Any], digits: int, signed: bool = False) -> str:
    """An estimate's row of a table: value [low, high] (n=seeds)."""
    found = Estimate(row["value"], row["low"], row["high"], int(row["n"]))
    return shown(found, digits, signed=signed)


def row_of(found: Estimate, **keys: Any) -> dict[str, Any]:
    """A row of a table: `keys`, and the fields of an estimate."""
    return keys | asdict(found)
