"""Which evidence finds reversed labels, and what mending them buys: what `15_label_audit` shows.

The audit of known errors is made here; evidence against rivals and gains over seeds are computed
from the CSV files of `notebooks.replication`.
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
    above_frontier,
    at,
    difference,
    over_seeds,
    read_study,
    win_rates,
)
from notebooks.evidence.report import results_folder
from notebooks.replication import rivals
from notebooks.studies.study import Share
from plc_core.analysis.calibration import Calibration, calibrate
from plc_core.data import flip_labels
from plc_core.engine.config import Parameters
from plc_core.files import RunError
from plc_core.label_audit import Audit, audit
from plc_core.label_audit.evidence import EVIDENCE
from plc_core.loading import load_pairs
from plc_core.progress import Progress
from plc_core.runs import Run, create_run

TRUTHFUL = "scores"
"""The evidence that a reversed label reverses too: it would tell the truth about made errors."""
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
_PARTS = ("main", "variants")


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
    kinds = [name for name in EVIDENCE if name not in (TRUTHFUL, "votes", "likelihood")]
    found = audit(
        pairs, config.model, evidence=kinds, max_length=config.max_length, progress=Progress()
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
                    rows.append(_row(found, kind=kind, rate=rate, ranking=label))
    return pd.DataFrame(rows, columns=["kind", "rate", "ranking", "value", "low", "high", "n"])


def _by_kind(
    study: Study, measure: str, group: str, method: str
) -> Iterator[tuple[str, pd.DataFrame]]:
    for name, kind in _KINDS.items():
        if method == "evidence":
            yield kind, _evidence(study, measure, group, name)
        else:
            trained = method if name == "random" else f"{method}-hard"
            yield kind, pd.concat([study.values(measure, group, trained, part) for part in _PARTS])


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
            cells.setdefault(f"{row['rate']:.0%} {kind}", {})[row["ranking"]] = _text(row, 2)
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
            row: dict[str, Any] = {"errors": kind, "reversed": f"{rate:.0%}"}
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


# ---- what it buys --------------------------------------------------------------------------------


DPO, SAME_KL, BALANCED = "DPO", "DPO at the same KL", "DPO, long and short answers alike"
AGAINST = (DPO, SAME_KL, BALANCED)


def gains(study: Study) -> pd.DataFrame:
    """What a method adds to held-out accuracy on clean labels, in points over seeds.

    One row a method, rate and rival: method, rate, against, value, low, high, n. DPO at the same KL
    is read off its runs at several learning rates and β. Long and short answers alike: the mean of
    the accuracies on pairs whose better answer is longer and on the others, which preferring the
    longer one cannot raise.
    """
    rows = []
    plain, level = study.values("accuracy", "test", BASELINE), _balanced(study, BASELINE, "main")
    for part, method in _methods(study):
        own = study.values("accuracy", "test", method, part)
        along = ("learning_rate", "beta")
        beyond = [above_frontier(study, "accuracy", "test", by, method, part) for by in along]
        for against, values in zip(
            AGAINST,
            (
                difference(own, plain),
                pd.concat(beyond),
                difference(_balanced(study, method, part), level),
            ),
            strict=True,
        ):
            for rate, cell in values.groupby("flip_rate"):
                if (found := over_seeds(cell.assign(value=100 * cell["value"]))) is not None:
                    rows.append(_row(found, method=method, rate=rate, against=against))
    return pd.DataFrame(rows, columns=["method", "rate", "against", "value", "low", "high", "n"])


def _balanced(study: Study, method: str, part: str) -> pd.DataFrame:
    sides = [
        study.values("accuracy", f"test, chosen {which}", method, part)
        for which in ("longer", "not longer")
    ]
    other = sides[0]["job"].map(sides[1].set_index("job")["value"])
    return sides[0].assign(value=(sides[0]["value"] + other) / 2)


def _methods(study: Study) -> list[tuple[str, str]]:
    """(slice, method) of `METHODS` that the study has."""
    shown_here = study.jobs["method"].isin(METHODS) & study.jobs["slice"].isin(_PARTS)
    named = study.jobs[shown_here].drop_duplicates(["slice", "method"])
    found = zip(named["slice"], named["method"], strict=True)
    return sorted(found, key=lambda pair: list(METHODS).index(pair[1]))


BEST = "cdpo-weights"
"""The documented way to train on noisy labels."""
METHODS = {
    BEST: "cDPO, each pair its own ε",
    "dpo-turned": "DPO, suspicious labels turned",
    "plc-priors": "PLC-DPO, each pair its own prior",
    "cdpo-rate": "cDPO, one ε: how many, not which",
    "cdpo-lengths": "cDPO, ε from lengths alone",
    "plc-aggressive": "PLC-DPO, without an audit",
}
"""What is compared with DPO on the labels as they are: audits, their controls, the paper's own."""


def gains_table(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """`gains` as text, a row a method and rate of reversed labels, with accuracy, KL, and how often
    the study's judge prefers a sampled answer to that of DPO on the same labels."""
    rows = []
    for part, method in [("main", BASELINE), *_methods(study)]:
        values = study.values("accuracy", "test", method, part)
        won = win_rates(study, method, part)
        for rate in sorted(values["flip_rate"].unique()):
            row = {"method": METHODS.get(method, "DPO"), "reversed": f"{rate:.0%}"}
            for label, measure, group, scale, digits in (
                ("accuracy, %", "accuracy", "test", 100, 1),
                ("KL, nats", "kl", "responses", 1, 1),
            ):
                found = over_seeds(at(study.values(measure, group, method, part), (rate,)))
                row[label] = "–" if found is None else f"{found.value * scale:.{digits}f}"
            for against in AGAINST:
                cell = table[
                    (table["method"] == method)
                    & (table["rate"] == rate)
                    & (table["against"] == against)
                ]
                texts = [_text(found, 1, signed=True) for found in cell.to_dict("records")]
                row[f"over {against}"] = "".join(texts) or "–"
            found = over_seeds(at(won, (rate,))) if method != BASELINE else None
            row["answers that win against DPO's, %"] = "–" if found is None else shown(found, 1)
            rows.append(row)
    return pd.DataFrame(rows)


def conclusion(gained: Mapping[str, pd.DataFrame], method: str = BEST) -> list[str]:
    """A sentence a study: whether a method clears 0 over DPO at every rate of reversed labels.

    Args:
        gained: tables of `gains`, by what the study is.
    """
    said = []
    for name, table in gained.items():
        own = table[(table["method"] == method) & (table["against"] == DPO)].sort_values("rate")
        noisy, clean = own[own["rate"] > 0], own[own["rate"] == 0]
        known = noisy[noisy["low"].notna()]
        if noisy.empty:
            said.append(f"{name}: whether mending labels pays has not been measured.")
            continue
        cells = ", ".join(
            f"{_text(row, 1, signed=True)} points at {row['rate']:.0%}"
            for row in noisy.to_dict("records")
        )
        if known.empty:
            verdict = "has too few seeds for a verdict"
        elif (known["low"] > 0).all():
            missing = len(known) < len(noisy)
            verdict = "gains accuracy over DPO" + " where there are three seeds" * missing
        else:
            verdict = "is not shown to gain accuracy over DPO at every rate"
        cost = "".join(
            f"; on clean labels {_text(row, 1, signed=True)}" for row in clean.to_dict("records")
        )
        said.append(f"{name}: {METHODS[method]}, {verdict}: {cells}{cost}.")
    return said


def gains_side_by_side(gained: Mapping[str, pd.DataFrame], method: str = BEST) -> pd.DataFrame:
    """One method's gains in all studies, on clean labels too, for one picture."""
    parts = [
        own.assign(label=name + ", " + own["rate"].map(_labels))
        for name, table in gained.items()
        for own in [table[table["method"] == method].sort_values("rate", ascending=False)]
    ]
    return pd.concat(parts, ignore_index=True)


def gains_by_method(table: pd.DataFrame) -> pd.DataFrame:
    """A study's gains at every rate of reversed labels, for one picture."""
    own = table[table["rate"] > 0]
    names = own["method"].map(METHODS) + ", " + own["rate"].map(_labels)
    order = own["method"].map(list(METHODS).index)
    return own.assign(label=names, order=order).sort_values(["order", "rate"], kind="stable")


def _labels(rate: float) -> str:
    return f"{rate:.0%} reversed" if rate else "clean labels"


def _text(row: Mapping[Any, Any], digits: int, signed: bool = False) -> str:
    found = Estimate(row["value"], row["low"], row["high"], int(row["n"]))
    return shown(found, digits, signed=signed)


def _row(found: Estimate, **keys: Any) -> dict[str, Any]:
    return keys | asdict(found)
