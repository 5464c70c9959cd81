"""What all studies share: their parameters, their runs, their report."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from plc_core.analysis.paper import NAMES
from plc_core.evaluation.chain_judged import ChainJudged
from plc_core.evaluation.kl_matching import WORLD, Judged
from plc_core.evaluation.standing import EvaluationConfig
from plc_core.evaluation.world import evaluate
from plc_core.experiments import plan_runs, ready_runs
from plc_core.files import RunError, project_path
from plc_core.progress import Progress
from plc_core.runs import Run, create_run, open_run, resolve


class StudyConfig(BaseModel):
    """The parameters that every notebook on a table of the paper has."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    name: str  # name of the report's folder
    runs_dir: str = "runs"
    recipe: str = "world"  # the setting that runs are trained in
    common: dict[str, Any] = Field(default_factory=dict)  # of 01_train's, in all runs
    seeds: list[int] = Field([0], min_length=1)
    make: bool = True  # train what is missing; False says what is
    workers: int = Field(2, ge=1)  # runs that train at once


class JudgedConfig(StudyConfig):
    """The parameters of a study that has win rates."""

    benchmarks: list[str] = Field(["world"], min_length=1)  # names or files
    judge: str = "gold"  # of the world; or a reward model, as plc_core.evaluation.judges.named
    prompt_limit: int | None = Field(None, ge=1)  # first prompts of each benchmark but the world
    max_new_tokens: int = Field(1024, ge=1)  # of an answer to another benchmark than the world


def judged_by(config: JudgedConfig) -> Judged:
    """Where the study reads rewards: what runs of the world leave, or the chain of any judge."""
    if config.benchmarks == ["world"] and config.judge == "gold":
        return WORLD
    return ChainJudged(
        EvaluationConfig(
            benchmarks=config.benchmarks,
            judges=[config.judge],
            decodings=["greedy", "sampled"],
            prompt_limit=config.prompt_limit,
            max_new_tokens=config.max_new_tokens,
            eval_prompts=config.common.get("eval_prompts", 600),
        )
    )


def trained(
    config: StudyConfig, variants: Mapping[str, Mapping[str, Any]], seeds: list[int] | None = None
) -> dict[str, list[Run]]:
    """The runs of each variant, one a seed, by rising seed; what is missing is made.

    The report's status.json says how many of the missing ones are there.

    Raises:
        RunError: where runs are missing and `make` is False, which ones and how to make them.
    """
    planned = plan_runs(config.recipe, dict(variants), seeds or config.seeds, common=config.common)
    ready = ready_runs(
        planned, config.runs_dir, config.make, config.workers, Progress(_report(config))
    )
    if isinstance(config, JudgedConfig):
        for run in (run for own in ready.values() for run in own):
            _answer_as_trained(run)
    return ready


def _report(config: StudyConfig) -> Run | None:
    with contextlib.suppress(RunError):
        run = open_run(resolve(project_path(config.runs_dir), config.name))
        return run if run.info.get("kind") == "analysis" else None
    return None


def _answer_as_trained(run: Run) -> None:
    # A study with an evaluation of its own may have left answers to more or fewer prompts of the
    # world, and two runs compare over the same ones only.
    own = run.info["config"]
    if own["model"] == "world" and own["eval_prompts"]:
        judged = run.table("judgements/gold-world.parquet")["prompt_id"].nunique()
        if judged != own["eval_prompts"]:
            evaluate(run, own["eval_prompts"])


def open_report(config: StudyConfig) -> Run:
    """The report's own folder; an older one of this name is replaced."""
    info = {"kind": "analysis", "config": config.model_dump()}
    return create_run(project_path(config.runs_dir), config.name, info)


def record(report: Run, runs: Mapping[str, Sequence[Run]]) -> None:
    """Write down which runs the report is computed from, by label."""
    report.update_info(runs={label: [run.name for run in own] for label, own in runs.items()})


def keep(report: Run, **tables: pd.DataFrame) -> None:
    """Write tables as tables/<name>.csv of the report: numbers unrounded, as they were shown."""
    folder = report.path / "tables"
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        named = any(index is not None for index in table.index.names)
        table.to_csv(folder / f"{name.replace('_', '-')}.csv", index=named)


def paper_name(objective: str) -> str:
    """The paper's name of an objective, or its own where the paper has none."""
    return NAMES.get(objective, objective)
