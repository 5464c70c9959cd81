"""Visits of one or several runs beside their pairs, and numbers as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from plc_core.analysis.audit import STATES
from plc_core.runs import Run
from plc_core.storage.files import RunError

Q = tuple(f"q_{state}" for state in STATES)
"""The columns of the routing weights."""

_PAIRS = [
    *("pair_id", "source", "score_chosen", "score_rejected"),
    *("flipped", "injected_tie", "warm", "oracle_state"),
]
_VISITS = ["pair_id", "step", "epoch", "margin", "z", *Q, "confidence", "weight"]


def pooled_visits(runs: Sequence[Run]) -> pd.DataFrame:
    """All visits of some runs (training seeds, mostly), each beside its pair's markers.

    Columns: run, total_steps, those of the visits, and of the pair source, scores and markers.

    Raises:
        RunError: where a run has no visits yet, or visits to pairs that it does not have.
    """
    frames = []
    for run in runs:
        visits = run.visits(_VISITS)
        if visits.empty:
            raise RunError(f"The run {run.name!r} has no visits yet; train it to its end first.")
        pairs = run.pairs()
        joined = visits.merge(
            pairs.reindex(columns=_PAIRS), on="pair_id", how="left", validate="many_to_one"
        )
        unknown = int((~visits["pair_id"].isin(pairs["pair_id"])).sum())
        if unknown:
            raise RunError(
                f"The run {run.name!r} has {unknown:,} visits to pairs that are not in its "
                "pairs.parquet; its files are not of one run."
            )
        for marker in ("flipped", "injected_tie", "warm"):
            joined[marker] = joined[marker].eq(True).to_numpy(bool)  # missing: not marked
        steps = int(run.info.get("trained_steps") or visits["step"].max() + 1)
        frames.append(joined.assign(run=run.name, total_steps=steps))
    return pd.concat(frames, ignore_index=True)


def stacked_runs(runs: Sequence[Run]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Visits and pairs of several runs as if of one, each pair's id behind its run's name."""
    visits, pairs = [], []
    for run in runs:
        seen, known = run.visits(), run.pairs()
        visits.append(seen.assign(pair_id=f"{run.name}/" + seen["pair_id"].astype(str)))
        pairs.append(known.assign(pair_id=f"{run.name}/" + known["pair_id"].astype(str)))
    return pd.concat(visits, ignore_index=True), pd.concat(pairs, ignore_index=True)


def of_calibration(scores: pd.DataFrame, calibration: str) -> pd.DataFrame:
    """The rows of a probe's scores under one calibration, `checkpoint` or `self`.

    Raises:
        RunError: where there are none.
    """
    rows = scores[scores["calibration"] == calibration].reset_index(drop=True)
    if rows.empty:
        raise RunError(f"The probe was not scored under the calibration {calibration!r}.")
    return rows


def mean_of_seeds(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """A probe's scores under several training seeds as one table.

    A pair that several of them were shown stands there once, with its mean weights, margin and z
    over the seeds, so that no test counts it twice or has it in both of its groups. Pairs that one
    seed alone was shown stay as they are. The row's label is part of the pair: the same answers
    the other way round are another row, named apart.
    """
    whole = pd.concat(frames, ignore_index=True)
    if len(frames) == 1:
        return whole
    markers = ("calibration", "pair_id", "flipped", "injected_tie", "group")
    keys = [k for k in markers if k in whole]
    measured = [c for c in ("margin", "z", *Q, "confidence") if c in whole]
    grouped = whole.groupby(keys, sort=False, dropna=False)
    table = grouped.first().reset_index()[[*whole.columns]]
    table[measured] = grouped[measured].mean().to_numpy()
    names = [k for k in ("calibration", "pair_id") if k in whole]
    again = table.groupby(names).cumcount()
    suffix = again.map(lambda count: f"/{count}" if count else "")
    return table.assign(pair_id=table["pair_id"] + suffix)


def as_visits(scores: pd.DataFrame, calibration: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A probe's scores under one calibration as visits and pairs, as a run has them."""
    rows = of_calibration(scores, calibration).assign(step=0)
    routed = ["pair_id", "step", "margin", "z", *Q, "confidence"]
    return rows[routed], rows.drop(columns=[*routed[1:], "calibration"])


def number(value: float, digits: int = 3) -> str:
    """A number as text; "–" where there is none."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def between(value: float, low: float, high: float, digits: int = 3) -> str:
    """A number with its interval as text, saying so where the interval is not defined."""
    text = number(value, digits)
    if text == "–":
        return text
    if math.isnan(low) or math.isnan(high):
        return f"{text} (no interval)"
    return f"{text} [{number(low, digits)}, {number(high, digits)}]"
