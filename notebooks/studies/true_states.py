"""The routing against the true state of every pair, which the embedded world knows.

The paper has no such truth and cannot ask. Everything is computed from `visits` and `pairs`, at
each pair's last visit. The weights are "not calibrated probabilities" (paper, section
"Margin-Based Routing Distribution"), so ranking is told apart from calibration, and beside them
stands the flip posterior `p_flip` where the visits have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from sklearn.metrics import confusion_matrix

from plc_core.analysis.audit import (
    AGAINST_LENGTH,
    ALIKE_LENGTH,
    STATES,
    against_length,
    has_oracle,
    join_last_visits,
    longer,
)
from plc_core.analysis.calibration import Calibration, calibrate
from plc_core.analysis.routing.pooling import as_visits, between, number, stacked_runs
from plc_core.analysis.statistics import Floats, auroc, wilson
from plc_core.runs import Run

Frames: TypeAlias = tuple[pd.DataFrame, pd.DataFrame]
"""Visits and pairs."""

FORECASTS = {"q_clean": "clean", "q_flip": "flip", "q_tie": "tie", "p_flip": "flip"}
"""What each column forecasts."""


def truth_of(visits: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """The last visit of each pair that was visited, beside its true state.

    `p_flip`, where there is one, is of the first visit: later the policy remembers the label.

    Raises:
        ValueError: where the true state of a pair is not known.
    """
    if not has_oracle(pairs):
        raise ValueError("The true state is known in the embedded world only; pairs lack it.")
    joined = join_last_visits(visits, pairs)
    if "p_flip" in joined:
        first = visits.sort_values("step", kind="stable").drop_duplicates("pair_id")
        joined["p_flip"] = joined["pair_id"].map(first.set_index("pair_id")["p_flip"])
    return joined[joined["q_flip"].notna()].reset_index(drop=True)


def state_calibration(
    visits: pd.DataFrame, pairs: pd.DataFrame, bins: int = 10
) -> dict[str, Calibration]:
    """Each weight as a forecast of its state, by column; `p_flip` only where visits have it.

    Each is measured on all pairs, a pair of another state being "not". The bins of q_tie end at
    its ceiling.
    """
    table = truth_of(visits, pairs)
    highest = ceilings(visits)["tie"]
    return {
        column: calibrate(
            table[column],
            table["oracle_state"] == state,
            bins,
            top=highest if state == "tie" and highest > 0 else 1.0,
        )
        for column, state in FORECASTS.items()
        if column in table and table[column].notna().any()
    }


def calibration_table(calibrations: Mapping[str, Calibration]) -> pd.DataFrame:
    """One row a forecast: mean, base rate, Brier and NLL beside the base rate's, ECE, n."""
    rows = [
        {
            "forecast": name,
            "of": FORECASTS.get(name, name),
            "mean": c.mean,
            "base rate": c.base_rate,
            "Brier": c.brier,
            "Brier, base rate": c.brier_base,
            "NLL": c.nll,
            "NLL, base rate": c.nll_base,
            "ECE": c.ece,
            "n": c.n,
        }
        for name, c in calibrations.items()
    ]
    return pd.DataFrame(rows)


def three_state_scores(visits: pd.DataFrame, pairs: pd.DataFrame) -> dict[str, float]:
    """Brier score (summed over states) and NLL of all three weights together, nats, and n.

    Beside each stands that of a constant forecast of the states' shares.
    """
    table = truth_of(visits, pairs)
    n = len(table)
    if not n:
        return dict.fromkeys(["brier", "brier_base", "nll", "nll_base"], math.nan) | {"n": 0}
    q = table[[f"q_{state}" for state in STATES]].to_numpy(np.float64)
    true = np.stack([table["oracle_state"] == state for state in STATES], 1).astype(np.float64)
    shares = np.broadcast_to(true.mean(axis=0), true.shape)
    return {
        "brier": _brier(q, true),
        "brier_base": _brier(shares, true),
        "nll": _nll(q, true),
        "nll_base": _nll(shares, true),
        "n": n,
    }


def _brier(q: Floats, true: Floats) -> float:
    return float(((q - true) ** 2).sum(axis=1).mean())


def _nll(q: Floats, true: Floats) -> float:
    own = (q * true).sum(axis=1)
    return float(-np.log(np.maximum(own, np.finfo(np.float64).tiny)).mean())


def ceilings(visits: pd.DataFrame) -> dict[str, float]:
    """The largest weight that each state reached in any visit; NaN without visits.

    q depends on z alone (equation "posterior"). The tie state's peak, near z = 0, is the height
    that prior and temperatures allow, far below one half under any plausible prior.
    """
    return {s: float(visits[f"q_{s}"].max()) if len(visits) else math.nan for s in STATES}


def relative_states(visits: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """True states against the state whose weight is largest relative to its ceiling.

    The tie state is the largest weight at no z, so the plain argmax would find no tie whatever the
    data hold; relative to its ceiling each state can be found. Where two are level the first of
    clean, flip, tie is taken.

    Returns:
        One row a true state and found state: true, found, n, of (pairs of that true state), share
        of them, low, high (Wilson). A state without pairs has NaN shares.
    """
    table = truth_of(visits, pairs)
    highest = np.array([ceilings(visits)[state] for state in STATES])
    q = table[[f"q_{state}" for state in STATES]].to_numpy(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(highest > 0, q / highest, 0.0)
    found = np.array(STATES)[relative.argmax(axis=1)] if len(table) else np.array([], dtype=str)
    counts = np.zeros((3, 3), dtype=int)
    if len(table):
        counts = confusion_matrix(table["oracle_state"], found, labels=list(STATES))
    rows = []
    for i, true in enumerate(STATES):
        of = int(counts[i].sum())
        for j, name in enumerate(STATES):
            n = int(counts[i, j])
            low, high = wilson(n, of)
            share = n / of if of else math.nan
            row = {"true": true, "found": name, "n": n, "of": of}
            rows.append(row | {"share": share, "low": low, "high": high})
    return pd.DataFrame(rows)


def state_ranking(visits: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """How well each weight ranks its own state: AUROC with DeLong's interval.

    Flips are ranked among directional pairs (true ties left out), ties among all pairs. Beside the
    weights stand what they are made of, -margin for flips and -|margin| for ties, and, where the
    lengths are known, what these rank without a policy: labels against the lengths for flips (see
    `against_length`), answers of like length for ties. Columns: state, score, auroc, low, high,
    n_positive, n_negative, text.
    """
    table = truth_of(visits, pairs)
    directional = table[table["oracle_state"] != "tie"]
    scores = {
        ("flip", "q_flip"): directional["q_flip"],
        ("flip", "-margin"): -directional["margin"],
        ("tie", "q_tie"): table["q_tie"],
        ("tie", "-|margin|"): -table["margin"].abs(),
    }
    if "p_flip" in directional and directional["p_flip"].notna().any():
        scores["flip", "p_flip"] = directional["p_flip"]
    if (more := longer(table)) is not None:
        scores["flip", AGAINST_LENGTH] = against_length(more[directional.index])
        scores["tie", ALIKE_LENGTH] = -more.abs()
    rows = []
    for (state, name), score in scores.items():
        area = auroc(score, table.loc[score.index, "oracle_state"] == state)
        rows.append(
            {
                "state": state,
                "score": name,
                "auroc": area.value,
                "low": area.low,
                "high": area.high,
                "n_positive": area.n_positive,
                "n_negative": area.n_negative,
                "text": str(area),
            }
        )
    return pd.DataFrame(rows)


class Truth(NamedTuple):
    """How the weights of each policy meet the true states; empty where these are not known."""

    calibrations: dict[str, dict[str, Calibration]]
    confusions: dict[str, pd.DataFrame]  # of `relative_states`
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
    calibrations = {name: state_calibration(*frames) for name, frames in known.items()}
    confusions = {name: relative_states(*frames) for name, frames in known.items()}
    rows, sentences = [], []
    for name, frames in known.items():
        ranking = {str(r["score"]): r for r in state_ranking(*frames).to_dict("records")}
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
        whole = three_state_scores(*frames)
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
