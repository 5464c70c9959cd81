"""Random label flips: how win rates bear them, and where the routing sends flipped pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import pandas as pd
from pydantic import Field, model_validator

from notebooks.studies.chain_judged import ChainJudged
from notebooks.studies.kl_control import (
    Control,
    find_controls,
    headline,
    of_benchmarks,
    win_rates,
)
from notebooks.studies.kl_sentences import results_in_words
from notebooks.studies.study import (
    JudgedConfig,
    Share,
    judged_by,
    paper_name,
    trained,
)
from plc_core.analysis.paper import published
from plc_core.data.world.prompts import held_out_prompts
from plc_core.engine.config import Objective
from plc_core.evaluation.benchmarks import world_benchmark
from plc_core.evaluation.kl_matching import ROUNDS as CONTROL_ROUNDS
from plc_core.evaluation.kl_matching import Judged
from plc_core.runs import Run

Key = TypeVar("Key")

CLEAN, SAME = "clean DPO", "same-data DPO"
"""The paper's two baselines: DPO on uncorrupted labels, and DPO on the very same labels."""
CONTROL = "KL control (DPO)"


class NoiseConfig(JudgedConfig):
    """The parameters of `notebooks/03_label_noise.ipynb`."""

    seeds: list[int] = Field([0, 1], min_length=1)
    rates: list[Share] = Field([0.0, 0.1, 0.2, 0.3], min_length=1)  # shares of flipped labels
    methods: list[Objective] = Field(["plc"], min_length=1)  # objectives beside dpo
    spotlight: Objective = "plc"  # whose KL the control matches

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
    judged: Judged
    decodings: Sequence[str]

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
    return NoiseRuns(runs, controls, paper_name(config.spotlight), judged, config.decodings)


def controls_of(
    config: JudgedConfig,
    cases: Mapping[Key, tuple[list[Run], list[list[Run]]]],
    data: Mapping[Key, dict[str, Any]],
    judged: Judged,
    names: Mapping[Key, str],
) -> dict[Key, Control]:
    """The controls of several cases (a method's runs, plain DPO's), each the plain DPO on its own
    `data` (parameters of 01_train) that moved as far; what is missing is named by `names`. None
    where the study has `kl_control` off.
    """
    if not config.kl_control:
        return {}
    then = "Other KL controls may follow: run the notebook again for their names."

    def train(betas: Mapping[Key, float]) -> dict[Key, list[Run]]:
        variants = {
            names[key]: {**data[key], "objective": "dpo", "beta": beta}
            for key, beta in betas.items()
        }
        ready = trained(config, variants, then=then)
        return {key: ready[names[key]] for key in betas}

    return find_controls(cases, train, judged=judged)


def controls_follow(config: JudgedConfig, count: int) -> str:
    """The sentence on KL controls, which have no names before the runs that they match exist."""
    if not config.kl_control:
        return ""
    most = count * CONTROL_ROUNDS * len(config.seeds)
    return (
        f"Then up to {most} more follow: the KL controls, plain DPO at a β that depends on how far "
        "these moved. Run the notebook again for their names."
    )


def with_dpo(methods: Sequence[Objective]) -> list[Objective]:
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

    The columns of `kl_control.win_rates` with noise_rate and baseline in front. At rate 0 the two
    baselines are one.
    """
    return _table(found, None)


def table_by_benchmark(found: NoiseRuns, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `noise_table` of one benchmark each; where the world is the only one, its four
    families of prompts.
    """
    if isinstance(found.judged, ChainJudged):
        return of_benchmarks(table)
    answered = found.runs[0.0]["DPO"][0].table("generations/world.parquet")["prompt_id"].nunique()
    families = [prompt.family for prompt in held_out_prompts(answered)]
    ids = [prompt.prompt_id for prompt in world_benchmark(answered).prompts]
    return of_benchmarks(_table(found, dict(zip(ids, families, strict=True))))


def _table(found: NoiseRuns, benchmarks: Mapping[str, str] | None) -> pd.DataFrame:
    frames = []
    clean = found.runs[0.0]["DPO"]
    for rate, methods in found.runs.items():
        if found.spotlight not in methods:
            continue  # plain DPO on clean labels, which was not asked for itself
        control = found.controls[rate].runs if found.controls else None
        for baseline, against in ((CLEAN, clean), (SAME, methods["DPO"])):
            table = win_rates(methods, against, control, benchmarks, found.decodings, found.judged)
            if len(table):
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
        f"Against DPO on the same labels, over {seeds} training seed{'s' if seeds > 1 else ''} and "
        f"{prompts_in_words(same)}. {said}"
        + (f" At {rate:.0%} the paper has {' and '.join(paper)}." if paper else "")
    )


def prompts_in_words(table: pd.DataFrame) -> str:
    """Over how many prompts a table of win rates is, and of how many benchmarks, if of several."""
    count = of_benchmarks(table)["benchmark"].nunique()
    prompts = f"{headline(table).iloc[0]['n']:,} prompts"
    return prompts if count == 1 else f"{prompts} of {count} benchmarks, each weighing alike"
