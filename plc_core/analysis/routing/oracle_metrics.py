"""The routing against the true states, for every study that has them: what the paper cannot do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pandas as pd

from plc_core.analysis import oracle
from plc_core.analysis.audit import AGAINST_LENGTH, ALIKE_LENGTH, has_oracle
from plc_core.analysis.calibration import Calibration
from plc_core.analysis.routing.pooling import as_visits, between, number, stacked_runs
from plc_core.runs import Run

Frames: TypeAlias = tuple[pd.DataFrame, pd.DataFrame]
"""Visits and pairs."""


class Truth(NamedTuple):
    """How the weights of each policy meet the true states; empty where these are not known."""

    calibrations: dict[str, dict[str, Calibration]]
    confusions: dict[str, pd.DataFrame]  # of `oracle.relative_states`
    table: pd.DataFrame  # as text
    sentences: list[str]


def truth_of_runs(runs: Mapping[str, Sequence[Run]]) -> Truth:
    """At each pair's last visit in training; seeds of a policy are pooled."""
    return against_truth({policy: stacked_runs(own) for policy, own in runs.items()})


def truth_of_scores(scores: Mapping[str, pd.DataFrame], calibration: str) -> Truth:
    """Of a probe's scores under one calibration."""
    return against_truth({p: as_visits(table, calibration) for p, table in scores.items()})


def against_truth(policies: Mapping[str, Frames]) -> Truth:
    """`policies` have visits and pairs by name."""
    known = {name: frames for name, frames in policies.items() if has_oracle(frames[1])}
    if not known:
        reason = "The true state of a pair is known in the embedded world only."
        return Truth({}, {}, pd.DataFrame(columns=[f"Not computed. {reason}"]), [reason])
    calibrations = {name: oracle.state_calibration(*frames) for name, frames in known.items()}
    confusions = {name: oracle.relative_states(*frames) for name, frames in known.items()}
    rows, sentences = [], []
    for name, frames in known.items():
        ranking = {str(r["score"]): r for r in oracle.state_ranking(*frames).to_dict("records")}
        for column, found in calibrations[name].items():
            row = {"policy": name, "weight": column}
            row |= {
                "mean": number(found.mean),
                "base rate": number(found.base_rate),
                "Brier (base rate's)": _beside(found.brier, found.brier_base),
                "NLL (base rate's)": _beside(found.nll, found.nll_base),
                "ECE": number(found.ece),
            }
            row["AUROC"] = _area(ranking.get(column))
            alone = {"q_flip": "-margin", "q_tie": "-|margin|"}.get(column, "")
            row["AUROC of the margin alone"] = _area(ranking.get(alone))
            lengths = {"q_flip": AGAINST_LENGTH, "q_tie": ALIKE_LENGTH}.get(column, "")
            row["AUROC of lengths alone"] = _area(ranking.get(lengths))
            rows.append(row | {"n": f"{found.n:,}"})
        whole = oracle.three_state_scores(*frames)
        rows.append(
            {
                "policy": name,
                "weight": "all three",
                "Brier (base rate's)": _beside(whole["brier"], whole["brier_base"]),
                "NLL (base rate's)": _beside(whole["nll"], whole["nll_base"]),
                "n": f"{whole['n']:,}",
            }
        )
        if "q_flip" in calibrations[name]:
            said = calibrations[name]["q_flip"].sentence("q_flip", "truly flipped")
            sentences.append(f"{name}: {said}")
    table = pd.DataFrame(rows).fillna("–").set_index(["policy", "weight"])
    return Truth(calibrations, confusions, table, sentences)


def _area(row: Mapping[Any, Any] | None) -> str:
    return "–" if row is None else between(row["auroc"], row["low"], row["high"])


def _beside(own: float, base: float) -> str:
    return f"{number(own)} ({number(base)})"
