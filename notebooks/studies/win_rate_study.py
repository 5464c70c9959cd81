"""What the win-rate studies share: plain DPO at several β as controls, and one evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pandas as pd
from pydantic import Field, model_validator

from notebooks.studies.study import (
    Benchmarks,
    Positive,
    StudyConfig,
    check_gold,
    check_world,
    paper_name,
    started_from,
    trained,
)
from plc_core.engine.config import ObjectiveName
from plc_core.evaluation.comparison import MEAN, Evaluation
from plc_core.evaluation.completeness import EvaluationConfig
from plc_core.evaluation.judges.named import check_judges
from plc_core.evaluation.methods import Contestant, contestants
from plc_core.evaluation.results import interval
from plc_core.evaluation.win_tables import WinTable, win_table
from plc_core.runs import Run
from plc_core.storage.files import RunError

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
    several_judges: ClassVar[bool] = False

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
        if len(self.judges) > 1 and not self.several_judges:
            raise ValueError(
                f"judges has {', '.join(self.judges)}; the tables here are by one judge, and those "
                "of 14_judges by several: give one"
            )
        if len(controls(self)) < len(self.control_betas):
            raise ValueError(f"control_betas has two that tables call alike: {self.control_betas}")
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

    methods: list[ObjectiveName] = Field(["plc"], min_length=1)  # objectives beside dpo

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
    """Every cell of an evaluation (data, model, benchmark), with the controls of the study."""
    return evaluation.results(list(controls(config)))


def means_of(evaluation: Evaluation, config: ContestConfig) -> pd.DataFrame:
    """The same as means over benchmarks, each weighing alike: one row a method and decoding."""
    return evaluation.results(list(controls(config)), MEAN)


def cell_table(table: pd.DataFrame, decoding: str, paper: pd.DataFrame | None = None) -> WinTable:
    """The paper's kind of table for one decoding: a column a benchmark, a row a method, and a group
    of rows a data set and model; best and second best of each group marked.

    Args:
        table: of `results_of`.
        decoding: greedy or sampled.
        paper: published win rates (dataset, model, method, benchmark as the paper names it,
            win_rate), to stand beside the benchmarks that are the paper's.
    """
    rows = table[(table["decoding"] == decoding) & table["win_rate"].notna()]
    keys = [key for key in ("dataset", "model") if len(set(rows[key])) > 1]
    known = None
    if paper is not None:
        named = paper.assign(benchmark=paper["benchmark"].map(BENCHMARK_NAMES))
        known = named.merge(rows[["dataset", "model", "benchmark"]].drop_duplicates())
    return win_table(
        rows, [*keys, "method"], published=known if known is not None and len(known) else None
    )


def category_table(table: pd.DataFrame, decoding: str) -> pd.DataFrame:
    """Win rates by category, the second view: a row a category of a benchmark, a column a method.

    Args:
        table: of `results_of`, by `Evaluation.by_category`.
        decoding: greedy or sampled.
    """
    rows = table[(table["decoding"] == decoding) & table["win_rate"].notna()]
    keys = [key for key in ("dataset", "model") if len(set(rows[key])) > 1]
    keys += ["benchmark", "n"]
    texts = {
        (*key[:-1], str(key[-1])): interval(own, "win_rate", "low", "high")
        for key, own in rows.groupby([*keys, "method"], sort=False)
    }
    names = [*keys, "method"]
    long = pd.DataFrame(list(texts), columns=names).assign(text=list(texts.values()))
    wide = long.pivot_table("text", keys, "method", aggfunc="first", sort=False)
    return wide.fillna("–").rename_axis(index={"benchmark": "benchmark: category"}, columns=None)


def keep_table(report: Run, name: str, table: WinTable) -> None:
    """Write a table as tables/<name>.md, .tex and .csv of the report."""
    folder = report.path / "tables"
    folder.mkdir(exist_ok=True)
    for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
        (folder / f"{name}.{ending}").write_text(text, encoding="utf-8")
