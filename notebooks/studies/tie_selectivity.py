"""Ties: weak gaps among held-out pairs, and exact ties in the training data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from pydantic import Field, model_validator

from notebooks.studies.hard_pair_routing import shadow_name
from notebooks.studies.kl_control import CONTROL, Control, controls_follow, controls_of
from notebooks.studies.kl_sentences import results_in_words
from notebooks.studies.label_noise import check_spotlight, prompts_in_words, with_dpo
from notebooks.studies.routing_probe import (
    Calibrated,
    check_probe,
    corrupted_pairs,
    held_out_pairs,
    held_out_ties,
    score_probe,
)
from notebooks.studies.seed_win_rates import headline, win_rates
from notebooks.studies.study import (
    JudgedConfig,
    Share,
    StudyConfig,
    judged_by,
    paper_name,
    trained,
)
from plc_core.analysis.paper import published
from plc_core.analysis.routing.pooling import mean_of_seeds
from plc_core.data import Pairs
from plc_core.engine.config import ObjectiveName
from plc_core.evaluation.judged import JudgedRuns
from plc_core.runs import Run

TRAINED, HELD_OUT = "training pairs, ties unseen", "held-out pairs, ties unseen"
"""The sets of the zero-shot table."""


class WeakGapConfig(StudyConfig):
    """The parameters of `notebooks/05_tie_selectivity.ipynb`."""

    held_out: int = Field(3000, ge=1)  # pairs that no run was trained on
    share: float = Field(0.2, gt=0, le=0.5)  # of the pairs, in each slice
    calibration: Calibrated = "checkpoint"
    methods: list[ObjectiveName] = Field(["plc", "dpo"], min_length=1)

    def variants(self) -> dict[str, dict[str, Any]]:
        """The methods on uncorrupted labels."""
        return clean_variants(self.methods)


class ExactTieConfig(JudgedConfig):
    """The parameters of `notebooks/06_exact_ties.ipynb`."""

    rates: list[Share] = Field([0.0, 0.05, 0.1, 0.3], min_length=1)  # shares of injected ties
    methods: list[ObjectiveName] = Field(["plc"], min_length=1)  # objectives beside dpo
    spotlight: ObjectiveName = "plc"
    probe_rate: float = Field(0.3, gt=0, le=1)  # of the sets that clean policies are shown
    held_out: int = Field(3000, ge=0)  # pairs of a second such set, which no run was trained on

    def variants(self) -> dict[str, dict[str, Any]]:
        """Plain DPO and the methods at every rate."""
        return {
            f"{objective} {rate:g}": {"objective": objective, "tie_rate": rate}
            for rate in sorted(set(self.rates))
            for objective in with_dpo(self.methods)
        }

    @model_validator(mode="after")
    def _possible(self) -> ExactTieConfig:
        check_spotlight(self.spotlight, self.methods)
        if 0.0 not in self.rates:
            raise ValueError("The zero-shot table needs the clean policies: add 0.0 to the rates")
        return self


class TieRuns(NamedTuple):
    """Runs by tie rate and method's name in the paper, and the control of each rate."""

    runs: dict[float, dict[str, list[Run]]]
    controls: dict[float, Control]  # empty where none are wanted
    spotlight: str
    judged: JudgedRuns

    @property
    def named(self) -> dict[str, list[Run]]:
        """All of them under one name each, for the report's record."""
        return {
            f"{method}, {rate:.0%} ties": own
            for rate, methods in self.runs.items()
            for method, own in methods.items()
        }


def clean_variants(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The objectives on uncorrupted labels."""
    return {m: {"objective": m, "flip_rate": 0.0} for m in methods}


def clean_runs(config: StudyConfig, methods: Sequence[str]) -> dict[str, list[Run]]:
    """Runs on uncorrupted labels, by the name under which their routing is shown."""
    ready = trained(config, clean_variants(methods))
    return {shadow_name(m): ready[m] for m in methods}


def held_out_scores(config: WeakGapConfig, runs: dict[str, list[Run]]) -> dict[str, pd.DataFrame]:
    """The routing of held-out pairs by policy, a pair that several seeds were shown once."""
    count = config.held_out
    return _probed(config, runs, f"held-out-{count}", lambda run: held_out_pairs(run, count))


def tie_runs(config: ExactTieConfig) -> TieRuns:
    """The runs of the study; plain DPO at every rate is always among them."""
    objectives = with_dpo(config.methods)
    rates = sorted(set(config.rates))
    ready = trained(config, config.variants(), then=controls_follow(config, len(rates)))
    judged = judged_by(config)
    runs: dict[float, dict[str, list[Run]]] = {}
    for rate in rates:
        runs[rate] = {paper_name(o): ready[f"{o} {rate:g}"] for o in objectives}
    spotlight = paper_name(config.spotlight)
    controls = controls_of(
        config,
        {rate: (own[spotlight], [own["DPO"]]) for rate, own in runs.items()},
        {rate: {"tie_rate": rate} for rate in rates},
        judged,
        {rate: f"KL control at {rate:.0%} ties" for rate in rates},
    )
    for rate, control in controls.items():
        runs[rate][CONTROL] = control.runs
    return TieRuns(runs, controls, paper_name(config.spotlight), judged)


def tie_table(found: TieRuns) -> pd.DataFrame:
    """`seed_win_rates.win_rates` against same-data DPO at every rate, with tie_rate in front."""
    frames = []
    for rate, methods in found.runs.items():
        evaluation = found.judged.together(methods, "DPO")
        table = win_rates(evaluation, CONTROL if found.controls else None)
        table.insert(0, "tie_rate", rate)
        frames.append(table)
    return pd.concat(frames, ignore_index=True)


def published_ties() -> pd.DataFrame:
    """The paper's injected-tie stress test, a row a method, a column a rate."""
    table = published("tie_injection")
    table["ties"] = table["tie_rate"].map("{:.0%}".format)
    wide = table.pivot_table("win_rate", "method", "ties", aggfunc="first", sort=False)
    return wide.map("{:.1f}".format)


def tie_sentence(table: pd.DataFrame, found: TieRuns) -> str:
    """What the spotlight wins against same-data DPO at every tie rate, beside its controls."""
    own = table[table["method"] == found.spotlight]
    said = results_in_words(
        headline(own), "tie_rate", lambda rate: f"with {rate:.0%} ties", found.spotlight
    )
    paper = published("tie_injection", method=found.spotlight).set_index("tie_rate")["win_rate"]
    if len(paper):
        said += (
            f" The paper reports {paper.iloc[0]:.1f} % at {paper.index[0]:.0%} of ties and "
            f"{paper.iloc[-1]:.1f} % at {paper.index[-1]:.0%}."
        )
    where = f"Win rates are against DPO trained on the same data, over {prompts_in_words(own)}."
    return f"{said} {where}"


def tie_set_scores(config: ExactTieConfig, found: TieRuns) -> dict[str, dict[str, pd.DataFrame]]:
    """How clean policies route sets with `probe_rate` exact ties, by the set's name and the policy.

    In the set `TRAINED` the ties are unseen and the unmodified pairs are those that the policies
    were trained on; in `HELD_OUT` all are unseen.
    """
    rate, count = config.probe_rate, config.held_out
    clean = {
        found.spotlight: found.runs[0.0][found.spotlight],
        "DPO (shadow)": found.runs[0.0]["DPO"],
    }
    sets: dict[str, tuple[str, Callable[[Run], Pairs]]] = {
        TRAINED: (f"ties-{rate:g}", lambda run: corrupted_pairs(run, tie_rate=rate))
    }
    if count:
        name = f"held-out-ties-{rate:g}-{count}"
        sets[HELD_OUT] = (name, lambda run: held_out_ties(run, count, rate))
    return {name: _probed(config, clean, *how) for name, how in sets.items()}


def _probed(
    config: StudyConfig,
    runs: Mapping[str, Sequence[Run]],
    name: str,
    pairs_of: Callable[[Run], Pairs],
) -> dict[str, pd.DataFrame]:
    for run in (run for own in runs.values() for run in own):
        check_probe(run, name, config.make)
    return {
        method: mean_of_seeds([score_probe(run, name, pairs_of(run), config.make) for run in own])
        for method, own in runs.items()
    }
