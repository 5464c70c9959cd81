"""Where the labels of the hardest pairs are reversed: what the routing weights answer.

Figure "Routing response under hard-pair corruption" and its appendix table.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pandas as pd

from plc_core.analysis.paper import published
from plc_core.analysis.routing.pooling import Q, between, number, pooled_visits
from plc_core.analysis.statistics import auroc, mean_interval, wilson
from plc_core.runs import Run

_MEASURES = [*Q, "argmax_flip", "marked_q_flip", "unmarked_q_flip", "marker_auroc"]
_TITLES = {
    "argmax_flip": "argmax flip",
    "marked_q_flip": "marked q_flip",
    "unmarked_q_flip": "unmarked q_flip",
    "marker_auroc": "marker AUROC",
}


def hard_pair_table(runs: Mapping[str, Mapping[float, Sequence[Run]]]) -> pd.DataFrame:
    """The dose response: one row a method, rate and measure.

    Args:
        runs: by method and rate, one run a training seed; visits of the seeds are pooled.

    Returns:
        method, noise_rate, measure, value, low, high, n. The measures are the paper's columns,
        over all visits of the run ("cumulative"): the mean weights; argmax_flip, the share of
        visits in which q_flip is the largest weight; the mean q_flip of pairs marked as reversed
        and of the others; and the AUROC of q_flip for the marker, which ranks injected flips and
        is no accuracy, as pairs without the marker may be wrong of themselves. Intervals are of
        95 %: Student's, Wilson's and DeLong's. n is of visits, for the AUROC of marked ones.
    """
    rows = []
    for method, by_rate in runs.items():
        for rate, own in by_rate.items():
            visits = pooled_visits(own)
            marked = visits["flipped"]
            most = (visits["q_flip"] > visits[["q_clean", "q_tie"]].max(axis=1)).sum()
            area = auroc(visits["q_flip"], marked)
            found = {
                **{column: mean_interval(visits[column]) for column in Q},
                "argmax_flip": (most / len(visits), *wilson(int(most), len(visits)), len(visits)),
                "marked_q_flip": mean_interval(visits.loc[marked, "q_flip"]),
                "unmarked_q_flip": mean_interval(visits.loc[~marked, "q_flip"]),
                "marker_auroc": (area.value, area.low, area.high, area.n_positive),
            }
            for measure, (value, low, high, n) in found.items():
                row = {"method": method, "noise_rate": rate, "measure": measure}
                rows.append(row | {"value": value, "low": low, "high": high, "n": n})
    return pd.DataFrame(rows)


def published_hard_pairs() -> pd.DataFrame:
    """The paper's table in the same long form: noise_rate, measure, value."""
    return published("hard_pairs").melt("noise_rate", _MEASURES, "measure", "value")


def hard_pairs_shown(table: pd.DataFrame) -> pd.DataFrame:
    """The appendix table as text: a row a method and rate, the paper's own row below each rate."""
    paper = published_hard_pairs().assign(method="paper, Qwen2.5-7B")
    rows = []
    for rate in sorted(set(table["noise_rate"])):
        here = table[table["noise_rate"] == rate]
        there = paper[(paper["noise_rate"] - rate).abs() < 1e-9]
        for part in (here, there):
            for method, own in part.groupby("method", sort=False):
                cells = own.set_index("measure")
                row = {"η": f"{rate:g}", "method": method}
                for measure in _MEASURES:
                    cell = cells.loc[measure]
                    text = number(cell["value"])
                    if measure == "marker_auroc" and "low" in cell:
                        text = between(cell["value"], cell["low"], cell["high"])
                    row[_TITLES.get(measure, measure)] = text
                if "n" in cells:
                    row["visits, marked"] = (
                        f"{cells.loc['q_flip', 'n']:,}, {cells.loc['marked_q_flip', 'n']:,}"
                    )
                rows.append(row)
    return pd.DataFrame(rows).fillna("–").set_index(["η", "method"])


def hard_pairs_sentence(table: pd.DataFrame, method: str) -> str:
    """What the dose response of `method` shows, beside the paper's and that of the others."""
    own = _by_rate(table, method)
    rates = sorted(own["q_flip"])
    first, last = rates[0], rates[-1]
    if len(rates) < 2:
        return f"There is one rate only, η = {first:g}: no dose response can be read."
    paper = published_hard_pairs().assign(method="paper")
    there = _by_rate(paper, "paper")
    parts = []
    for measure, name in (("q_flip", "cumulative q_flip"), ("marker_auroc", "the marker AUROC")):
        text = f"{name} {_goes([own[measure][rate] for rate in rates])}"
        text += f" from {own[measure][first]:.3f} to {own[measure][last]:.3f}"
        if first in there[measure] and last in there[measure]:
            known = [there[measure][rate] for rate in sorted(there[measure])]
            text += (
                f" (in the paper it {_goes(known)} from {there[measure][first]:.3f} to "
                f"{there[measure][last]:.3f})"
            )
        parts.append(text)
    marked, unmarked = (own[f"{name}_q_flip"][last] for name in ("marked", "unmarked"))
    side = "more" if marked > unmarked else "less"
    said = (
        f"Under {method}, from η = {first:g} to {last:g}, {' and '.join(parts)}; at η = {last:g} "
        f"reversed pairs get {side} q_flip than the others ({marked:.3f} against {unmarked:.3f})."
    )
    for other in dict.fromkeys(table["method"]):
        if other != method:
            area = _by_rate(table, other)["marker_auroc"]
            said += f" Under {other} the AUROC goes from {area[first]:.3f} to {area[last]:.3f}."
    return said


def _by_rate(table: pd.DataFrame, method: str) -> dict[str, dict[float, float]]:
    """Measure and rate to value."""
    found: dict[str, dict[float, float]] = {}
    for row in table[table["method"] == method].to_dict("records"):
        found.setdefault(str(row["measure"]), {})[float(row["noise_rate"])] = float(row["value"])
    return found


def _goes(values: Sequence[float]) -> str:
    steps = [b - a for a, b in itertools.pairwise(values)]
    if all(step > 0 for step in steps):
        return "rises"
    if all(step < 0 for step in steps):
        return "falls"
    return "goes up and down"
