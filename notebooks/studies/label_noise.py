"""Random label flips: how win rates bear them, and where the routing sends flipped pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
from pydantic import Field, model_validator

from notebooks.studies.kl_control import CONTROL, Control, controls_follow, controls_of
from notebooks.studies.kl_sentences import results_in_words
from notebooks.studies.seed_win_rates import headline, of_benchmarks, win_rates
from notebooks.studies.study import (
    JudgedConfig,
    Share,
    judged_by,
    paper_name,
    trained,
)
from plc_core.analysis.paper import published
from plc_core.engine.config import ObjectiveName
from plc_core.evaluation.judged import JudgedRuns
from plc_core.runs import Run

CLEAN, SAME = "clean DPO", "same-data DPO"
"""The paper's two baselines: DPO on uncorrupted labels, and DPO on the very same labels."""


class NoiseConfig(JudgedConfig):
    """The parameters of `notebooks/03_label_noise.ipynb`."""

    seeds: list[int] = Field([0, 1], min_length=1)
    rates: list[Share] = Field([0.0, 0.1, 0.2, 0.3], min_length=1)  # shares of flipped labels
    methods: list[ObjectiveName] = Field(["plc"], min_length=1)  # objectives beside dpo
    spotlight: ObjectiveName = "plc"  # whose KL the control matches

    def variants(self) -> dict[str, dict[str, Any]]:
        """Plain DPO at every rate and on clean labels, and the methods at every rate."""
        return {
            f"{objective} {rate:g}": {"objective": objective, "flip_rate": rate}
            for rate in sorted({0.0, *self.rates})
            for objective in with_dpo(self.methods)
            if rate in self.rates or objective == "dpo"
        }

    @model_validator(mode="after")
    def _has_spotlight(self) -> NoiseConfig:
        check_spotlight(self.spotlight, self.methods)
        return self


class NoiseRuns(NamedTuple):
    """Runs by rate and method's name in the paper, one a seed, and the control of each rate."""

    runs: dict[float, dict[str, list[Run]]]
    controls: dict[float, Control]  # empty where none are wanted
    spotlight: str  # its name in the paper
    judged: JudgedRuns

    @property
    def named(self) -> dict[str, list[Run]]:
        """All of them under one name each, for the report's record."""
        return {
            f"{method}, η={rate:g}": own
            for rate, methods in self.runs.items()
            for method, own in methods.items()
        }


def noise_runs(config: NoiseConfig) -> NoiseRuns:
    """The runs of the study; plain DPO at every rate, and on clean labels, is always among them."""
    objectives = with_dpo(config.methods)
    rates = sorted(set(config.rates))
    ready = trained(config, config.variants(), then=controls_follow(config, len(rates)))
    judged = judged_by(config)
    runs: dict[float, dict[str, list[Run]]] = {}
    for rate in sorted({0.0, *config.rates}):
        runs[rate] = {
            paper_name(objective): ready[f"{objective} {rate:g}"]
            for objective in objectives
            if f"{objective} {rate:g}" in ready
        }
    shown = {rate: runs[rate][paper_name(config.spotlight)] for rate in rates}
    controls = controls_of(
        config,
        {rate: (own, [runs[rate]["DPO"]]) for rate, own in shown.items()},
        {rate: {"flip_rate": rate} for rate in shown},
        judged,
        {rate: f"KL control at η={rate:g}" for rate in shown},
    )
    for rate, control in controls.items():
        runs[rate][CONTROL] = control.runs
    return NoiseRuns(runs, controls, paper_name(config.spotlight), judged)


def with_dpo(methods: Sequence[ObjectiveName]) -> list[ObjectiveName]:
    """The objectives with plain DPO before the others."""
    return ["dpo", *(m for m in methods if m != "dpo")]


def check_spotlight(spotlight: str, methods: Sequence[str]) -> None:
    """ValueError where the spotlight is none of the methods."""
    if spotlight not in methods:
        raise ValueError(
            f"The spotlight {spotlight!r} is none of the methods, which are {', '.join(methods)}"
        )


def noise_table(found: NoiseRuns) -> pd.DataFrame:
    """Win rates of every method at every rate against both baselines.

    The columns of `seed_win_rates.win_rates` with noise_rate and baseline in front. At rate 0 the
    two baselines are one.
    """
    return _table(found, by_category=False)


def table_by_benchmark(found: NoiseRuns, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `noise_table` of one benchmark each; of a single benchmark with categories, of
    one category each.
    """
    own = of_benchmarks(table)
    if len(set(own["benchmark"])) > 1:
        return own
    categories = of_benchmarks(_table(found, by_category=True))
    return categories.assign(benchmark=categories["benchmark"].str.split(": ").str[-1])


def _table(found: NoiseRuns, by_category: bool) -> pd.DataFrame:
    frames = []
    clean = found.runs[0.0]["DPO"]
    for rate, methods in found.runs.items():
        if found.spotlight not in methods:
            continue  # plain DPO on clean labels, which was not asked for itself
        for baseline, against in ((CLEAN, clean), (SAME, methods["DPO"])):
            evaluation = found.judged.together({**methods, baseline: against}, baseline)
            table = win_rates(
                evaluation.by_category() if by_category else evaluation,
                CONTROL if found.controls else None,
            )
            table.insert(0, "noise_rate", rate)
            table.insert(1, "baseline", baseline)
            frames.append(table)
    return pd.concat(frames, ignore_index=True)


def published_noise() -> pd.DataFrame:
    """The paper's two tables of noise: a row a setting and method, a column a rate."""
    table = published("noise")
    table["setting"] = table["dataset"] + ", " + table["model"] + ", " + table["benchmark"]
    table["η"] = table["noise_rate"].map("{:g}".format)
    wide = table.pivot_table(
        "win_rate", ["baseline", "setting", "method"], "η", aggfunc="first", sort=False
    )
    return (
        wide[sorted(wide.columns, key=lambda rate: float(str(rate)))]
        .map("{:.1f}".format)
        .replace("nan", "–")
    )


def noise_sentence(table: pd.DataFrame, found: NoiseRuns) -> str:
    """The spotlight at every rate against same-data DPO, beside its controls and the paper."""
    same = table[(table["baseline"] == SAME) & (table["method"] == found.spotlight)]
    rows = headline(same)
    seeds = rows.iloc[0]["seeds"]
    rate = rows["noise_rate"].max()
    there = published("noise", baseline=SAME, method=found.spotlight, noise_rate=rate)
    paper = [f"{row['win_rate']:.1f} % on {row['dataset']}" for row in there.to_dict("records")]
    said = results_in_words(
        rows, "noise_rate", lambda rate: f"with {rate:.0%} of the labels flipped", found.spotlight
    )
    return (
        f"{said} Win rates are against DPO trained on the same labels, over {seeds} training "
        f"seed{'s' if seeds > 1 else ''} and {prompts_in_words(same)}."
        + (f" At {rate:.0%} the paper reports {' and '.join(paper)}." if paper else "")
    )


def prompts_in_words(table: pd.DataFrame) -> str:
    """How many prompts a table of win rates covers, and how many benchmarks if several."""
    count = of_benchmarks(table)["benchmark"].nunique()
    prompts = f"{headline(table).iloc[0]['n']:,} prompts"
    return prompts if count == 1 else f"{prompts} of {count} benchmarks, all weighted equally"
