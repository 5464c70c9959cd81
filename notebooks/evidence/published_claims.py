"""What the claims compare: one number a corruption and seed, of a study and a method."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pandas as pd

from notebooks.evidence.estimates import (
    BASELINE,
    Study,
    above_frontier,
    at,
    best_other,
    difference,
    win_rates,
)

Numbers: TypeAlias = Callable[[Study, str], pd.DataFrame]
"""Of a study under a method, PLC-DPO or another: rows with a seed and a value; none if not run."""

NOISY = (0.2, 0.3, 0.4)
"""The shares of reversed labels that stand for noisy data."""


def single(measure: str, group: str, rates: tuple[float, ...]) -> Numbers:
    """A measure as it stands, at some shares of reversed labels."""
    return lambda study, method: at(study.values(measure, group, method), rates)


def gap(
    one: tuple[str, str], other: tuple[str, str], rates: tuple[float, ...], of: str | None = None
) -> Numbers:
    """`one` minus `other`; the latter under the same method, or under `of`.

    Under the same method the interval over pairs is that of two numbers that know nothing of each
    other: right for two groups of pairs, too wide for two scores of the same pairs.
    """

    def values(study: Study, method: str) -> pd.DataFrame:
        left, right = study.values(*one, method), study.values(*other, of or method)
        found = difference(at(left, rates), at(right, rates))
        if of is not None:
            return found
        own, others = (side.set_index("job")["half"] for side in (left, right))
        half = own.pow(2).add(others.pow(2)).pow(0.5)
        return found.assign(half=found["job"].map(half))

    return values


def of_variant(
    measure: str, group: str, rates: tuple[float, ...], variant: str, over: str, part: str = "main"
) -> Numbers:
    """A measure of a variant minus that of `over`, a method of the slice `part`."""

    def values(study: Study, _: str) -> pd.DataFrame:
        sides = (
            study.values(measure, group, variant, "variants"),
            study.values(measure, group, over, part),
        )
        return difference(*(at(side, rates) for side in sides))

    return values


def accuracy_over_dpo(rates: tuple[float, ...]) -> Numbers:
    """Accuracy on held-out pairs, minus plain DPO's."""
    return gap(("accuracy", "test"), ("accuracy", "test"), rates, BASELINE)


def over_best_other(study: Study, method: str) -> pd.DataFrame:
    """Accuracy on held-out pairs at NOISY rates, minus that of the best other objective."""
    other = best_other(study, "accuracy", "test", NOISY)
    sides = [at(study.values("accuracy", "test", m), NOISY) for m in (method, other or "")]
    return difference(*sides)


def win_rate(rates: tuple[float, ...], part: str = "main", ties: float = 0.0) -> Numbers:
    """Win rate in % against same-data DPO, of a slice of the study and a share of exact ties."""

    def values(study: Study, method: str) -> pd.DataFrame:
        table = at(win_rates(study, method, part), rates)
        return table[(table["tie_rate"] - ties).abs() < 1e-9]

    return values


def at_like_kl(measure: str, group: str, rates: tuple[float, ...], along: str) -> Numbers:
    """A measure minus plain DPO's at the same KL, among its runs at several values of `along`."""

    def values(study: Study, method: str) -> pd.DataFrame:
        found = at(above_frontier(study, measure, group, along, method), rates)
        own = at(study.values("kl", "responses", method), rates)
        others = study.values("kl", "responses", BASELINE, "frontier")
        if not np.isin(others[along], own[along]).all():
            found.attrs["why"] = "no DPO run has its KL (n=0)"
        return found

    return values


def dose(study: Study, method: str) -> pd.DataFrame:
    """Mean q_flip at 30 % reversed labels minus that on clean data."""
    values = study.values("q_flip", "all", method)
    high, low = (at(values, (rate,)).assign(flip_rate=0.0) for rate in (0.3, 0.0))
    return difference(high, low)


def within_sources(measure: str, before: str = "", over: str | None = None) -> Numbers:
    """On clean data, the mean over the sources, as their scales cannot be compared: a row a seed.

    A source's group is its name behind `before`; a seed counts that has all of the sources that
    clean runs of the slice main have. With `over`, what the group of that name before the source
    has is taken off. The interval over pairs is of a mean and of a difference of numbers that know
    nothing of each other; where one side of a difference has none, it is taken to be as wide as
    the other's.
    """

    def of_source(study: Study, method: str, source: str) -> pd.DataFrame:
        own = at(study.values(measure, f"{before}{source}", method), (0.0,))
        if over is None:
            return own
        other = at(study.values(measure, f"{over}{source}", method), (0.0,))
        both = own.merge(other[["job", "value", "half"]], on="job", suffixes=("", "_other"))
        both["value"] -= both["value_other"]
        halves = both["half"].fillna(both["half_other"]), both["half_other"].fillna(both["half"])
        return both.assign(half=np.hypot(*halves))

    def values(study: Study, method: str) -> pd.DataFrame:
        tables = [of_source(study, method, name) for name in _sources(study, measure, before)]
        if not tables:
            return study.values(measure, "", method)
        seeds = pd.concat(tables).groupby("seed")
        combined = seeds["half"].apply(lambda h: math.sqrt(h.pow(2).sum(skipna=False)) / len(h))
        table = pd.DataFrame({"value": seeds["value"].mean(), "half": combined})
        return table[seeds.size() == len(tables)].reset_index()

    return values


def _sources(study: Study, measure: str, before: str) -> list[str]:
    if not study.is_run:
        return []
    main = study.jobs[(study.jobs["slice"] == "main") & (study.jobs["flip_rate"] == 0)]
    rows = study.measures
    rows = rows[(rows["measure"] == measure) & rows["job"].isin(main["job"])]
    names = {g.removeprefix(before) for g in rows["group"].unique() if g.startswith(before)}
    # What is left of another score's groups is that score, or has it before the source.
    return sorted(name for name in names if not name.startswith("-"))


def noise_error(study: Study, _: str) -> pd.DataFrame:
    """By how much the noise rate estimated under plain DPO is off, whichever way."""
    values = study.values("noise_rate", "all", BASELINE)
    return values.assign(value=(values["value"] - values["flip_rate"]).abs(), half=math.nan)


def training_time(study: Study, method: str) -> pd.DataFrame:
    """Seconds of training, measuring left out, over plain DPO's in the same data and seed.

    Of the slice main. Runs share their device, so a ratio is of what ran beside them, too.
    """
    keys = ["flip_rate", "tie_rate", "seed"]
    if not study.is_run:
        return pd.DataFrame(columns=[*keys, "value", "half"])
    jobs = study.jobs[study.jobs["slice"] == "main"]
    sides = [
        jobs.loc[jobs["method"] == name, [*keys, "train_seconds"]] for name in (method, BASELINE)
    ]
    both = sides[0].merge(sides[1], on=keys, suffixes=("", "_other"))
    ratio = both["train_seconds"] / both["train_seconds_other"]
    return both.assign(value=ratio, half=math.nan)
