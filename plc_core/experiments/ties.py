"""Ties: weak gaps among held-out pairs, and exact ties in the training data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from pydantic import Field, model_validator

from plc_core.analysis.paper import published
from plc_core.data import Pairs
from plc_core.engine.config import Objective
from plc_core.evaluation.kl_control import Control, win_rates
from plc_core.evaluation.kl_matching import Judged
from plc_core.evaluation.kl_words import results_in_words
from plc_core.evaluation.probe import (
    Calibrated,
    check_probe,
    corrupted_pairs,
    held_out_pairs,
    score_probe,
)
from plc_core.experiments.hard_pairs import shadow_name
from plc_core.experiments.label_noise import (
    CONTROL,
    check_spotlight,
    controls_follow,
    controls_of,
    with_dpo,
)
from plc_core.experiments.study import (
    JudgedConfig,
    Share,
    StudyConfig,
    judged_by,
    paper_name,
    trained,
)
from plc_core.runs import Run


class WeakGapConfig(StudyConfig):
    """The parameters of `notebooks/05_tie_selectivity.ipynb`."""

    held_out: int = Field(3000, ge=1)  # pairs that no run was trained on
    share: float = Field(0.2, gt=0, le=0.5)  # of the pairs, in each slice
    calibration: Calibrated = "checkpoint"
    methods: list[Objective] = Field(["plc", "dpo"], min_length=1)

    def variants(self) -> dict[str, dict[str, Any]]:
        """The methods on uncorrupted labels."""
        return clean_variants(self.methods)


class ExactTieConfig(JudgedConfig):
    """The parameters of `notebooks/06_exact_ties.ipynb`."""

    rates: list[Share] = Field([0.0, 0.05, 0.1, 0.3], min_length=1)  # shares of injected ties
    methods: list[Objective] = Field(["plc"], min_length=1)  # objectives beside dpo
    spotlight: Objective = "plc"
    probe_rate: float = Field(0.3, gt=0, le=1)  # of the set that clean policies are shown

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
    controls: dict[float, Control]
    spotlight: str
    judged: Judged

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
    """The routing of held-out pairs by policy, seeds one below the other."""
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
    """`kl_control.win_rates` against same-data DPO at every rate, with tie_rate in front."""
    frames = []
    for rate, methods in found.runs.items():
        matched = found.controls[rate].runs
        table = win_rates(methods, methods["DPO"], matched, judged=found.judged)
        if len(table):
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
    rows = table[table["method"] == found.spotlight]
    said = results_in_words(rows, "tie_rate", lambda rate: f"with {rate:.0%} ties", found.spotlight)
    paper = published("tie_injection", method=found.spotlight).set_index("tie_rate")["win_rate"]
    if len(paper):
        said += (
            f" The paper has {paper.iloc[0]:.1f} % at {paper.index[0]:.0%} to "
            f"{paper.iloc[-1]:.1f} % at {paper.index[-1]:.0%}."
        )
    return f"Against DPO on the same data. {said}"


def tie_set_scores(config: ExactTieConfig, found: TieRuns) -> dict[str, pd.DataFrame]:
    """How clean policies route the set with `probe_rate` ties, which PLC-DPO and DPO never saw."""
    rate = config.probe_rate
    clean = {
        found.spotlight: found.runs[0.0][found.spotlight],
        "DPO (shadow)": found.runs[0.0]["DPO"],
    }
    return _probed(config, clean, f"ties-{rate:g}", lambda run: corrupted_pairs(run, tie_rate=rate))


def _probed(
    config: StudyConfig,
    runs: Mapping[str, Sequence[Run]],
    name: str,
    pairs_of: Callable[[Run], Pairs],
) -> dict[str, pd.DataFrame]:
    for run in (run for own in runs.values() for run in own):
        check_probe(run, name, config.make)
    return {
        method: _stacked([score_probe(run, name, pairs_of(run), config.make) for run in own])
        for method, own in runs.items()
    }


def _stacked(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """The scores of several seeds one below the other, ids told apart by the seed's number."""
    parts = [
        frame.assign(pair_id=frame["pair_id"] + (f"/{number}" if len(frames) > 1 else ""))
        for number, frame in enumerate(frames)
    ]
    return pd.concat(parts, ignore_index=True)
