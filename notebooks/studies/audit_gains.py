"""What mending labels buys over plain DPO, from the CSV files of `notebooks.replication`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from notebooks.evidence.claims import shown
from notebooks.evidence.estimates import (
    BASELINE,
    Study,
    above_frontier,
    at,
    difference,
    over_seeds,
    win_rates,
)
from notebooks.studies.label_audit import PARTS, as_text, row_of
from plc_core.analysis.figures.style import side
from plc_core.typography import percent

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
                    rows.append(row_of(found, method=method, rate=rate, against=against))
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
    shown_here = study.jobs["method"].isin(METHODS) & study.jobs["slice"].isin(PARTS)
    named = study.jobs[shown_here].drop_duplicates(["slice", "method"])
    found = zip(named["slice"], named["method"], strict=True)
    return sorted(found, key=lambda pair: list(METHODS).index(pair[1]))


BEST, TURNED = "cdpo-weights", "dpo-turned"
"""The documented ways to train on noisy labels."""
_DONE = {
    BEST: "weighing each label by its audit",
    TURNED: "turning the labels that its audit finds more likely reversed than not",
}
"""What is done, within a sentence."""
METHODS = {
    BEST: "cDPO with each pair's own ε",
    TURNED: "DPO with suspicious labels turned",
    "dpo-dropped": "DPO, suspicious pairs left out",
    "plc-priors": "PLC-DPO with each pair's own prior",
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
            row = {"method": METHODS.get(method, "DPO"), "reversed": percent(rate)}
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
                texts = [as_text(found, 1, signed=True) for found in cell.to_dict("records")]
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
            said.append(f"{name}: whether correcting labels pays has not been measured.")
            continue
        cells = ", ".join(
            f"{as_text(row, 1, signed=True)} points at {percent(row['rate'])}"
            for row in noisy.to_dict("records")
        )
        if known.empty:
            verdict = "has too few seeds for a verdict"
        elif (known["low"] > 0).all():
            missing = len(known) < len(noisy)
            verdict = "gains accuracy over DPO" + " where there are three seeds" * missing
        else:
            verdict = "does not gain accuracy over DPO clearly at every rate"
        cost = "".join(
            f"; on clean labels {as_text(row, 1, signed=True)}" for row in clean.to_dict("records")
        )
        said.append(f"{name}: {METHODS[method]} {verdict}: {cells}{cost}.")
    return said


def gains_side_by_side(gained: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The gains of weighing and of turning in all studies, clean labels too, for one picture."""
    short = {BEST: "weighed", TURNED: "turned"}
    parts = []
    for name, table in gained.items():
        own = table[table["method"].isin(short)].sort_values(
            ["rate", "method"], ascending=[False, True], kind="stable"
        )
        labels = name + ", " + own["rate"].map(_labels) + ", " + own["method"].map(short)
        parts.append(own.assign(label=labels))
    return pd.concat(parts, ignore_index=True)


def gains_side_by_side_table(table: pd.DataFrame) -> pd.DataFrame:
    """`gains_side_by_side` as text: a row a label, a column a rival."""
    texts = [as_text(row, 1, signed=True) for row in table.to_dict("records")]
    named = table.assign(text=texts, rival="points over " + table["against"])
    labels = list(dict.fromkeys(named["label"]))
    shown = named.pivot_table("text", "label", "rival", aggfunc="first")
    columns = [f"points over {against}" for against in AGAINST]
    return (
        shown.reindex(index=labels, columns=columns)
        .fillna("–")
        .rename_axis(index=None, columns=None)
    )


def finding(gained: Mapping[str, pd.DataFrame], method: str = BEST) -> str:
    """What a method gains over DPO in the first study, as one sentence for a reader."""
    name, table = next(iter(gained.items()))
    own = table[(table["method"] == method) & (table["against"] == DPO)].sort_values("rate")
    said: dict[str, list[str]] = {}
    for row in own.to_dict("records"):
        said.setdefault(_clear(row), []).append(_where(row))
    if not said:
        return f"On {name} whether correcting labels pays has not been measured."
    parts = [f"{clear} {_listed(said[clear])}" for clear in _CLEAR.values() if clear in said]
    return f"On {name}, {_DONE[method]} {_listed(parts)}."


_CLEAR = {
    "yes": "gains accuracy over DPO",
    "no": "loses accuracy to DPO",
    "unknown": "shows neither gain nor loss",
    "few seeds": "has too few seeds for a verdict",
}
"""What an interval over seeds shows, in the order of its weight."""


def _clear(row: Mapping[Any, Any]) -> str:
    return _CLEAR["few seeds" if math.isnan(row["low"]) else side(row["low"], row["high"])]


def _where(row: Mapping[Any, Any]) -> str:
    found = as_text(row, 1, signed=True).rpartition(" (")[0]
    labels = f"at {percent(row['rate'])} reversed labels" if row["rate"] else "on clean labels"
    return f"{labels} ({found} points)"


def _listed(parts: list[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if parts[1:] else parts[0]


def gains_by_method(table: pd.DataFrame) -> pd.DataFrame:
    """A study's gains at every rate of reversed labels, for one picture."""
    own = table[table["rate"] > 0]
    names = own["method"].map(METHODS) + ", " + own["rate"].map(_labels)
    order = own["method"].map(list(METHODS).index)
    return own.assign(label=names, order=order).sort_values(["order", "rate"], kind="stable")


def _labels(rate: float) -> str:
    return f"{percent(rate)} reversed" if rate else "clean labels"
