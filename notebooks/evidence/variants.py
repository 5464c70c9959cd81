"""Method by method and change by change: what each does to the numbers of what it varies."""

from __future__ import annotations

import pandas as pd

from notebooks.evidence.claims import shown
from notebooks.evidence.estimates import (
    BASELINE,
    FRESH,
    METHOD,
    Study,
    above_frontier,
    at,
    difference,
    over_seeds,
)

_MEASURES = {
    # column: measure, group, scale, digits
    "accuracy, points": ("accuracy", "test", 100, 1),
    "reward": ("reward", "responses", 1, 3),
    "KL, nats": ("kl", "responses", 1, 2),
    "flip AUROC": ("flip_auroc", "q_flip", 1, 3),
    "tie AUROC": ("tie_auroc", "q_tie", 1, 3),
    "τ with votes": ("votes_trend", "tau", 1, 3),
}

_AT_KL = "accuracy over DPO's at the same KL, points"


def variants_table(study: Study) -> pd.DataFrame:
    """One row a variant and share of reversed labels; each number minus that of its base.

    The base is the run of the slice main with the same seed: of PLC-DPO's aggressive recipe for
    its variants, of DPO for others; where the mixture is the change, it saw other pairs. On fresh
    pairs the base is PLC-DPO's run there, and of that DPO's, which has none. Last, accuracy over
    that of plain DPO on the same pairs with another learning rate, at which it has the variant's
    KL: of the seeds where there is one. Columns: against, and the differences with 95 % intervals
    over seeds, as text; "–" where a variant has no such number.
    """
    rows = []
    jobs = study.jobs[study.jobs["slice"] == "variants"] if study.is_run else pd.DataFrame()
    for (name, given), members in jobs.groupby(["method", "flip_rate"]) if len(jobs) else ():
        variant, rate = str(name), float(str(given))
        base = METHOD if (members["objective"] == "plc").all() else BASELINE
        part = "main"
        if base == METHOD and (members["mixture"] == FRESH).all():
            base, part = FRESH if variant != FRESH else f"{BASELINE}-{FRESH}", "variants"
        if variant == f"{BASELINE}-{FRESH}":
            continue
        row = {"variant": variant, "reversed": f"{rate:.0%}", "against": base}
        for column, (measure, group, scale, digits) in _MEASURES.items():
            sides = (
                at(study.values(measure, group, variant, "variants"), (rate,)),
                at(study.values(measure, group, base, part), (rate,)),
            )
            row[column] = _text(difference(*sides), scale, digits)
        above = above_frontier(study, "accuracy", "test", "learning_rate", variant, "variants")
        same_pairs = (members["mixture"] == "all").all()
        row[_AT_KL] = _text(at(above, (rate,)), 100, 1) if same_pairs else "–"
        rows.append(row)
    return pd.DataFrame(rows, columns=["variant", "reversed", "against", *_MEASURES, _AT_KL])


def _text(values: pd.DataFrame, scale: float, digits: int) -> str:
    found = over_seeds(values)
    return "–" if found is None else shown(found, digits, scale, signed=True)


def methods_table(study: Study, measure: str = "accuracy", group: str = "test") -> pd.DataFrame:
    """One row a method: its number minus DPO's in the same data and seed, by share reversed.

    In points with 95 % intervals over seeds, as text; DPO's own row has its mean in percent.
    """
    table = {}
    jobs = study.jobs[study.jobs["slice"] == "main"] if study.is_run else pd.DataFrame()
    names = sorted(jobs["method"].unique(), key=lambda m: (m != BASELINE, m)) if len(jobs) else []
    for method in names:
        cells = {}
        for rate in sorted(jobs["flip_rate"].unique()):
            values = at(study.values(measure, group, method), (rate,))
            if method != BASELINE:
                values = difference(values, at(study.values(measure, group, BASELINE), (rate,)))
            found = over_seeds(values)
            signed = method != BASELINE
            cells[f"{rate:.0%} reversed"] = "–" if found is None else shown(found, 1, 100, signed)
        table["DPO" if method == BASELINE else f"{method} over DPO"] = cells
    return pd.DataFrame.from_dict(table, orient="index")
