"""Ties: weak-gap pairs, exact ties put into the data, and how much of a direction they keep.

Section "Tie-State Selectivity" and appendix "Direct Tie-State Validation".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from plc_core.analysis.audit import TieSelectivity, tie_selectivity
from plc_core.analysis.paper import claim, published
from plc_core.analysis.routing.pooling import as_visits, between, number, pooled_visits
from plc_core.analysis.statistics import (
    LEVEL,
    Floats,
    MannWhitney,
    Side,
    format_p,
    holm,
    mann_whitney,
    mean_interval,
    read_aloud,
)
from plc_core.runs import Run

_LABELS = ("source", "measure", "text")
_MEASURES = {
    "q_tie": "q_tie",
    "abs_margin": "|m|",
    "length_difference": "the gap in length",
}
_SCORES: dict[str, Side] = {"q_flip": "greater", "q_tie": "greater", "q_clean": "less"}
_RESAMPLES = 1000


def weak_gaps(scores: pd.DataFrame, calibration: str, share: float) -> TieSelectivity:
    """`audit.tie_selectivity` of a probe: held-out pairs, as in the paper."""
    visits, pairs = as_visits(scores, calibration)
    return tie_selectivity(visits, pairs, share)


def weak_gaps_shown(found: Mapping[str, TieSelectivity]) -> pd.DataFrame:
    """Bottom and top slices of each policy and source, with the tests between them."""
    rows = []
    for policy, selectivity in found.items():
        tests = pd.concat([selectivity.tests, selectivity.lengths]).set_index(["source", "measure"])
        for row in selectivity.slices.to_dict("records"):
            shown = {
                "policy": policy,
                "source": row["source"],
                "slice": f"{row['slice']} {selectivity.share:.0%}",
                "n": f"{row['n']:,}",
                "score gap": f"{number(row['gap_low'], 2)} to {number(row['gap_high'], 2)}",
            }
            for measure, name in (("q_tie", "q_tie"), ("abs_margin", "|m|")):
                shown[f"mean {name}"] = number(row[f"{measure}_mean"], 4)
                shown[f"median {name}"] = number(row[f"{measure}_median"], 4)
            for measure, name in _MEASURES.items():
                if (row["source"], measure) in tests.index:
                    test = tests.loc[(row["source"], measure)]
                    area = between(test["auroc"], test["auroc_low"], test["auroc_high"])
                    shown[f"AUROC of bottom, {name}"] = area if row["slice"] == "bottom" else ""
            rows.append(shown)
    return pd.DataFrame(rows).set_index(["policy", "source", "slice"])


def weak_gaps_sentences(selectivity: TieSelectivity, policy: str) -> list[str]:
    """The two tests of one policy aloud, Holm over them, for each source."""
    sentences = []
    adjusted = holm(selectivity.tests["p"])
    bottom, top = (f"the {side} {selectivity.share:.0%}" for side in ("bottom", "top"))
    for row, p in zip(selectivity.tests.to_dict("records"), adjusted, strict=True):
        measure = _MEASURES[row["measure"]]
        said = read_aloud(_test(row), measure, bottom, top, adjusted=float(p))
        sentences.append(f"{policy}: {said}")
    return sentences


def lengths_sentences(selectivity: TieSelectivity) -> list[str]:
    """The control aloud, for each source: what needs no policy, only the answers' lengths.

    One sentence that says so where the lengths are not known.
    """
    if selectivity.lengths.empty:
        return ["Control without a policy: not computed, as the run does not have the lengths."]
    bottom, top = (f"the {side} {selectivity.share:.0%}" for side in ("bottom", "top"))
    name = _MEASURES["length_difference"]
    return [
        f"Control without a policy ({row['source']}): " + read_aloud(_test(row), name, bottom, top)
        for row in selectivity.lengths.to_dict("records")
    ]


def _test(row: Mapping[Any, Any]) -> MannWhitney:
    return MannWhitney(**{str(k): v for k, v in row.items() if k not in _LABELS})


def injected_ties(scores: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Zero-shot routing of injected ties against the unmodified pairs of the same set.

    Args:
        scores: by policy, a probe's scores (table "Zero-shot per-pair routing").

    Returns:
        One row a policy, calibration and weight: injected, clean (means), n_injected, n_clean,
        auroc of injected pairs with low and high (of -q_clean, which falls on ties, as the paper's
        equal values for q_flip and q_clean say that it does), p, log10_p and p_holm over the three
        weights of a policy and calibration. Tests are one-sided in the paper's direction.
    """
    rows = []
    for policy, table in scores.items():
        for calibration, part in table.groupby("calibration", sort=False):
            injected = part["injected_tie"].astype(bool)
            family: list[dict[str, Any]] = []
            for column, side in _SCORES.items():
                a, b = part.loc[injected, column], part.loc[~injected, column]
                test = mann_whitney(a, b, side)
                turned = column == "q_clean"
                low, high = test.auroc_low, test.auroc_high
                family.append(
                    {
                        "policy": policy,
                        "calibration": calibration,
                        "score": column,
                        "injected": a.mean(),
                        "clean": b.mean(),
                        "n_injected": test.n_a,
                        "n_clean": test.n_b,
                        "missing": test.nan_a + test.nan_b,
                        "auroc": 1 - test.auroc if turned else test.auroc,
                        "low": 1 - high if turned else low,
                        "high": 1 - low if turned else high,
                        "p": test.p,
                        "log10_p": test.log10_p,
                    }
                )
            adjusted = holm([float(row["p"]) for row in family])
            rows += [row | {"p_holm": p} for row, p in zip(family, adjusted, strict=True)]
    return pd.DataFrame(rows)


def injected_ties_shown(table: pd.DataFrame) -> pd.DataFrame:
    """The zero-shot table as text, with the paper's columns beside.

    `table` is of `injected_ties`; a column `pairs` tells several sets of pairs apart.
    """
    paper = published("tie_pairs").set_index("score")
    keys = [*(["pairs"] if "pairs" in table else []), "policy", "calibration", "weight"]
    rows = []
    for row in table.to_dict("records"):
        there = paper.loc[row["score"]]
        rows.append(
            {
                **({"pairs": row["pairs"]} if "pairs" in row else {}),
                "policy": row["policy"],
                "calibration": row["calibration"],
                "weight": row["score"],
                "n injected, clean": f"{row['n_injected']:,}, {row['n_clean']:,}",
                "injected": number(row["injected"]),
                "clean": number(row["clean"]),
                "AUROC": between(row["auroc"], row["low"], row["high"]),
                "p, Holm": format_p(row["p_holm"], row["log10_p"]).removeprefix("p = "),
                "paper: injected": number(there["injected"]),
                "paper: clean": number(there["clean"]),
                "paper: AUROC": number(there["auroc"]),
            }
        )
    return pd.DataFrame(rows).set_index(keys)


def direction_kept(runs: Mapping[str, Mapping[float, Sequence[Run]]]) -> pd.DataFrame:
    """How much less direction injected ties keep in training, by method and tie rate.

    The effective directional signal is q_clean - q_flip (appendix "Direct Tie-State Validation":
    "reduces … on injected pairs by a factor of 4.5" at 5 %). The factor is the mean over unmodified
    pairs divided by that over injected ones, over all visits, with a percentile bootstrap of both
    groups' pairs; where the injected mean is not clearly above zero the factor has no upper end.

    Returns:
        method, tie_rate, injected, injected_low, injected_high, clean, clean_low, clean_high,
        n_injected, n_clean, factor, low, high.
    """
    rows = []
    for method, by_rate in runs.items():
        for rate, own in by_rate.items():
            visits = pooled_visits(own)
            signal = (visits["q_clean"] - visits["q_flip"]).to_numpy(np.float64)
            ties = visits["injected_tie"].to_numpy()
            inside, outside = mean_interval(signal[ties]), mean_interval(signal[~ties])
            factor, low, high = _factor(signal[~ties], signal[ties])
            rows.append(
                {
                    "method": method,
                    "tie_rate": rate,
                    "injected": inside.mean,
                    "injected_low": inside.low,
                    "injected_high": inside.high,
                    "clean": outside.mean,
                    "clean_low": outside.low,
                    "clean_high": outside.high,
                    "n_injected": inside.n,
                    "n_clean": outside.n,
                    "factor": factor,
                    "low": low,
                    "high": high,
                }
            )
    return pd.DataFrame(rows)


def _factor(above: Floats, below: Floats) -> tuple[float, float, float]:
    """mean(above) / mean(below) with a percentile interval; infinite where below is not above 0."""
    if not len(above) or not len(below):
        return math.nan, math.nan, math.nan
    rng = np.random.default_rng(0)
    means = [
        np.array([v[rng.integers(0, len(v), len(v))].mean() for _ in range(_RESAMPLES)])
        for v in (above, below)
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.where(means[1] > 0, means[0] / means[1], math.inf)
    value = float(above.mean() / below.mean()) if below.mean() > 0 else math.inf
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    return value, float(low), float(high)


def direction_sentence(table: pd.DataFrame, method: str) -> str:
    """The factor at the lowest injected rate beside the paper's at 5 %."""
    rows = table[(table["method"] == method) & (table["n_injected"] > 0)]
    if rows.empty:
        return "No run has injected ties, so nothing can be said of what direction they keep."
    row = rows.sort_values("tie_rate").iloc[0]
    paper = claim("reduction of q_clean - q_flip on injected ties at 5 %")
    return (
        f"At {row['tie_rate']:.0%} ties, {method} leaves injected pairs a mean q_clean − q_flip of "
        f"{between(row['injected'], row['injected_low'], row['injected_high'])} "
        f"(n={row['n_injected']:,}), others "
        f"{between(row['clean'], row['clean_low'], row['clean_high'])} "
        f"(n={row['n_clean']:,}): a factor of "
        f"{between(row['factor'], row['low'], row['high'], 2)}, in the paper {paper:g} at 5 %."
    )


def injected_ties_sentence(table: pd.DataFrame, policy: str) -> str:
    """How the policy's q_tie and q_flip tell injected ties, by AUROC, beside the paper's."""
    own = table[(table["policy"] == policy) & (table["calibration"] == "checkpoint")]
    if own.empty or not own["n_injected"].max():
        return f"{policy} was shown no injected tie, so nothing can be said."
    paper = published("tie_pairs").set_index("score")["auroc"]
    parts = [
        f"{row['score']} with AUROC {between(row['auroc'], row['low'], row['high'])} "
        f"({format_p(row['p_holm'], row['log10_p'])}; paper {paper[row['score']]:.3f})"
        for row in own.to_dict("records")
        if row["score"] != "q_clean"
    ]
    return (
        f"The clean {policy} tells {own['n_injected'].iloc[0]:,} injected ties from "
        f"{own['n_clean'].iloc[0]:,} unmodified pairs by {' and by '.join(parts)}."
    )
