"""What the win-rate studies share: plain DPO at several β as controls, and one evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pydantic import Field, model_validator

from plc_core.engine.config import Objective
from plc_core.evaluation.contestants import Contestant, contestants
from plc_core.evaluation.judged import Evaluation
from plc_core.evaluation.judges.named import check_judges
from plc_core.evaluation.results import results
from plc_core.evaluation.standing import EvaluationConfig
from plc_core.evaluation.tables import WinTable, win_table
from plc_core.experiments.study import (
    Benchmarks,
    Positive,
    StudyConfig,
    check_gold,
    check_world,
    paper_name,
    started_from,
    trained,
)
from plc_core.files import RunError
from plc_core.runs import Run

DPO, PLC = "DPO", "PLC-DPO"
BENCHMARK_NAMES = {
    "UltraFeedback": "ultrafeedback-test",
    "AlpacaEval": "alpaca-eval",
    "AlpacaEval 2": "alpaca-eval-2",
    "MT-Bench": "mt-bench",
    "Vicuna": "vicuna",
    "Evol-Instruct": "evol-instruct",
    "HH-RLHF": "hh-rlhf",
}
"""The benchmarks of this project that the paper's names mean."""


class ContestConfig(StudyConfig, EvaluationConfig):
    """The parameters that every notebook on win rates has."""

    benchmarks: Benchmarks = Field(["world"])
    common: dict[str, Any] = Field(default_factory=lambda: {"flip_rate": 0.2})
    control_betas: list[Positive] = Field(
        [0.14, 0.1, 0.08]
    )  # of plain DPO, one of like KL among them

    def compared(self) -> dict[str, dict[str, Any]]:
        """Parameters of 01_train of what is compared with plain DPO, by name."""
        return {}

    def variants(self) -> dict[str, dict[str, Any]]:
        """Plain DPO, what is compared with it, and plain DPO at each of the control's β."""
        return with_controls(self, self.compared())

    def start_models(self) -> list[str]:
        """What the runs start from."""
        return [started_from(self.recipe, self.common)]

    @model_validator(mode="after")
    def _judgeable(self) -> ContestConfig:
        try:
            for asked in (self.judges, self.pairwise_judges):
                check_judges(asked)
        except RunError as error:
            raise ValueError(str(error)) from None
        check_gold(self.judges, self.benchmarks)
        check_world(self.start_models(), self.benchmarks)
        return self


class MethodsConfig(ContestConfig):
    """The parameters of a notebook that compares some objectives with plain DPO."""

    methods: list[Objective] = Field(["plc"], min_length=1)  # objectives beside dpo

    def compared(self) -> dict[str, dict[str, Any]]:
        """The objectives by their names in the paper."""
        return {paper_name(name): {"objective": name} for name in self.methods}


def entries_of(
    config: ContestConfig,
    variants: Mapping[str, Mapping[str, Any]],
    dataset: str = "pairs",
    shared: Mapping[str, Any] | None = None,
) -> list[Contestant]:
    """Contestants of variants, plain DPO and its controls among them; what is missing is trained.

    Args:
        config: of the study.
        variants: parameters of 01_train by method; DPO is added where it is missing.
        dataset: the name of their pairs.
        shared: parameters of 01_train of all of them, as those that make the pairs.
    """
    return contestants(trained(config, with_controls(config, variants, shared)), dataset)


def with_controls(
    config: ContestConfig,
    variants: Mapping[str, Mapping[str, Any]],
    shared: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Variants with plain DPO before and its controls behind them, all with what is `shared`."""
    everyone = {DPO: {"objective": "dpo"}, **variants, **controls(config)}
    return {name: {**(shared or {}), **own} for name, own in everyone.items()}


def controls(config: ContestConfig) -> dict[str, dict[str, Any]]:
    """Plain DPO at each of the control's β, by its name in tables."""
    return {f"{DPO} β={b:g}": {"objective": "dpo", "beta": b} for b in config.control_betas}


def named_runs(entries: Sequence[Contestant]) -> dict[str, list[Run]]:
    """The runs under one name each, for the report's record."""
    named: dict[str, list[Run]] = {}
    for entry in entries:
        named.setdefault(f"{entry.method}, {entry.dataset}, {entry.model}", []).append(entry.run)
    return named


def results_of(evaluation: Evaluation, config: ContestConfig) -> pd.DataFrame:
    """Every number of an evaluation, with the controls of the study."""
    return results(evaluation, list(controls(config)))


def cell_table(table: pd.DataFrame, decoding: str, paper: pd.DataFrame | None = None) -> WinTable:
    """The paper's kind of table for one decoding: a column a cell, best and second best marked.

    Args:
        table: of `results_of`, one data set, model and seed.
        decoding: greedy or sampled.
        paper: published win rates (method, benchmark, win_rate), to stand beside the benchmarks
            that are the paper's; those of other benchmarks are left out.
    """
    rows = table[(table["decoding"] == decoding) & table["win_rate"].notna()]
    known = None
    if paper is not None:
        named = paper.assign(benchmark=paper["benchmark"].map(BENCHMARK_NAMES))
        known = named[named["benchmark"].isin(rows["benchmark"])]
    return win_table(rows, published=known if known is not None and len(known) else None)


def keep_table(report: Run, name: str, table: WinTable) -> None:
    """Write a table as tables/<name>.md, .tex and .csv of the report."""
    folder = report.path / "tables"
    folder.mkdir(exist_ok=True)
    for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
        (folder / f"{name}.{ending}").write_text(text, encoding="utf-8")
