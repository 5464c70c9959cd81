"""Effects over training seeds, each with its 95 % interval, from the study's CSV files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from notebooks.evidence.result_files import FILES, read_results
from plc_core.analysis.statistics import mean_interval
from plc_core.storage.paths import resource

BASELINE, METHOD = "dpo", "plc-aggressive"
FRESH = "fresh"
"""The mixture of pairs that the part train does not have, and PLC-DPO's variant on it."""
FEWEST = 3
"""Seeds without which there is neither an interval nor a verdict."""

_KEYS = ["flip_rate", "tie_rate", "seed"]


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds with Student's t interval; `n` seeds, each of one or more runs.

    The interval says what another seed would give on the same pairs. `over_pairs` is half the 95 %
    interval over pairs of a single run, where the measure has one, else NaN.
    """

    value: float
    low: float
    high: float
    n: int
    over_pairs: float = math.nan


@dataclass(frozen=True)
class Study:
    """The results of one study: `jobs` that are done, `measures` and `rewards`; empty if none."""

    name: str
    jobs: pd.DataFrame = field(default_factory=pd.DataFrame)
    measures: pd.DataFrame = field(default_factory=pd.DataFrame)
    rewards: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def is_run(self) -> bool:
        """Whether any job of the study has been run."""
        return len(self.jobs) > 0

    def values(
        self, measure: str, group: str, method: str = METHOD, part: str = "main"
    ) -> pd.DataFrame:
        """One row a job of the method: flip_rate, tie_rate, seed, beta, learning_rate, job, value.

        And `half`, half of the value's interval over pairs.
        """
        if not self.is_run:
            return pd.DataFrame(columns=[*_KEYS, "beta", "learning_rate", "job", "value", "half"])
        jobs = self.jobs[(self.jobs["slice"] == part) & (self.jobs["method"] == method)]
        rows = self.measures
        rows = rows[(rows["measure"] == measure) & (rows["group"] == group)]
        rows = rows.assign(half=(rows["high"] - rows["low"]) / 2)
        names = ["job", *_KEYS, "beta", "learning_rate"]
        table = jobs[names].merge(rows[["job", "value", "half"]], on="job")
        return table[table["value"].notna()]


def read_study(name: str, folder: Path | None = None) -> Study:
    """The results in data/results/`name`, or in `folder`; an empty study where there are none.

    Raises:
        RunError: for files that cannot be read, or hold something else.
    """
    folder = folder or resource("data") / "results" / name
    jobs, measures, rewards = (read_results(folder, part) for part in FILES)
    return Study(name, jobs[jobs["state"] == "done"], measures, rewards)


def over_seeds(values: pd.DataFrame) -> Estimate | None:
    """The mean of `value`, first within each seed and then over seeds; None without rows.

    Fewer than three seeds have no interval.
    """
    if not len(values):
        return None
    found = Estimate(*mean_interval(values.groupby("seed")["value"].mean()))
    if "half" in values:
        found = replace(found, over_pairs=float(values["half"].mean()))
    return found if found.n >= FEWEST else replace(found, low=math.nan, high=math.nan)


def at(values: pd.DataFrame, rates: tuple[float, ...]) -> pd.DataFrame:
    """The rows of some flip rates, of the seeds that have all of them."""
    there = values["flip_rate"].to_numpy(np.float64)
    rows = values.loc[np.isclose(there[:, None], rates).any(axis=1)]
    had = rows.groupby("seed")["flip_rate"].transform("nunique")
    return pd.DataFrame(rows[had == len(rates)])


def difference(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """`one` minus `other` in the same data: one row a corruption and seed that both have."""
    both = one.merge(other[[*_KEYS, "value"]], on=_KEYS, suffixes=("", "_other"))
    # Both are of the same pairs, so the interval of one over pairs is not that of the difference.
    return both.assign(value=both["value"] - both["value_other"], half=math.nan)


def win_rates(study: Study, method: str = METHOD, part: str = "main") -> pd.DataFrame:
    """Win rate in % against same-data DPO by the reward of answers to the same prompts."""
    if not study.is_run or not len(study.rewards):
        return pd.DataFrame(columns=[*_KEYS, "value"])
    jobs = study.jobs[study.jobs["slice"] == part]
    table = jobs[["job", "method", *_KEYS]].merge(study.rewards, on="job")
    sides = [table[table["method"] == name] for name in (method, BASELINE)]
    both = sides[0].merge(sides[1], on=[*_KEYS, "prompt"], suffixes=("", "_other"))
    gap = both["reward"] - both["reward_other"]
    both = both.assign(value=100 * ((gap > 0) + 0.5 * (gap == 0)))
    return both.groupby(_KEYS)[["value"]].mean().reset_index()


def above_frontier(
    study: Study, measure: str, group: str, along: str, method: str = METHOD, of: str = "main"
) -> pd.DataFrame:
    """The measure of a method of the slice `of`, minus plain DPO's at the same KL in the same data.

    DPO's value at the method's KL is interpolated linearly between its runs at several values of
    `along`, "beta" or "learning_rate", with the other as in the slice main. A job whose KL lies
    outside theirs has no row.
    """
    fixed = {"beta": "learning_rate", "learning_rate": "beta"}[along]
    own = study.values(measure, group, method, of)
    kl = study.values("kl", "responses", method, of)
    frontier = pd.concat(
        [
            study.values(measure, group, BASELINE, part).merge(
                study.values("kl", "responses", BASELINE, part)[["job", "value"]],
                on="job",
                suffixes=("", "_kl"),
            )
            for part in ("main", "frontier")
        ]
    )
    shared = study.values("kl", "responses", BASELINE)[fixed]
    frontier = frontier[np.isin(frontier[fixed], shared)]
    rows = []
    for row in own.merge(kl[["job", "value"]], on="job", suffixes=("", "_kl")).to_dict("records"):
        same = frontier[(frontier[_KEYS] == [row[key] for key in _KEYS]).all(axis=1)]
        same = same.sort_values("value_kl")
        ends = same["value_kl"].min(), same["value_kl"].max()
        if len(same) < 2 or not ends[0] <= row["value_kl"] <= ends[1]:
            continue
        expected = np.interp(row["value_kl"], same["value_kl"], same["value"])
        rows.append({key: row[key] for key in _KEYS} | {"value": row["value"] - expected})
    return pd.DataFrame(rows, columns=[*_KEYS, "value"])


def best_other(study: Study, measure: str, group: str, rates: tuple[float, ...]) -> str | None:
    """The method with the highest mean at `rates`, beside PLC-DPO's recipes and DPO.

    Of those that were run with at least three seeds. It is chosen on the pairs that it is compared
    on, which favours it.
    """
    if not study.is_run:
        return None
    names = [
        name
        for name in sorted(study.jobs["method"].unique())
        if not name.startswith("plc-") and name != BASELINE
    ]
    found = {name: over_seeds(at(study.values(measure, group, name), rates)) for name in names}
    means = {name: e.value for name, e in found.items() if e is not None and e.n >= FEWEST}
    return max(means, key=means.__getitem__, default=None)
