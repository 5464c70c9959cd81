"""What all studies share: their parameters, their runs, their report."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeAlias

import pandas as pd
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from notebooks.studies.ensure_runs import ensure_runs
from notebooks.studies.plan_runs import check_common, plan_runs, read_recipe
from plc_core.analysis.paper import NAMES
from plc_core.batch.report_order import FINDING
from plc_core.engine.config import Parameters, TrainConfig, as_number
from plc_core.evaluation.benchmarks import WORLD, is_named, model_for
from plc_core.evaluation.chain import evaluate_runs
from plc_core.evaluation.completeness import EvaluationConfig
from plc_core.evaluation.judged import ITSELF, JudgedRuns
from plc_core.evaluation.judges.named import benchmark_for
from plc_core.evaluation.methods import Contestant
from plc_core.progress import Progress
from plc_core.runs import Run, create_run, open_run, resolve
from plc_core.storage.files import RunError
from plc_core.storage.paths import project_path

Share: TypeAlias = Annotated[float, BeforeValidator(as_number), Field(ge=0, le=1)]
Positive: TypeAlias = Annotated[float, BeforeValidator(as_number), Field(gt=0)]

FEW_STEPS = 24
"""Optimizer steps below which a run shows little: those that a noise rate is estimated from."""


def from_checkout(benchmarks: list[str]) -> list[str]:
    """Benchmarks with relative files and folders below the checkout, wherever the notebook runs."""
    found = []
    for source in benchmarks:
        path, hash_, part = source.partition("#")
        file = project_path(path)
        is_path = "/" in path or file.suffix != "" or file.exists()
        found.append(source if is_named(path) or not is_path else f"{file}{hash_}{part}")
    return found


Benchmarks: TypeAlias = Annotated[list[str], Field(min_length=1), AfterValidator(from_checkout)]


class StudyConfig(Parameters):
    """The parameters that every notebook on a table of the paper has.

    The runs that a study can name before any is made are planned when its parameters are checked,
    so that a wrong value of 01_train's inside them is refused before anything runs.
    """

    name: str  # name of the report's folder
    runs_dir: str = "runs"
    recipe: str = "world"  # the setting that runs are trained in
    common: dict[str, Any] = Field(default_factory=dict)  # of 01_train's, in all runs
    seeds: list[int] = Field([0], min_length=1)
    make: bool = True  # train, answer and judge what is missing; False says what is
    workers: int = Field(2, ge=1)  # runs that train at once

    def variants(self) -> dict[str, dict[str, Any]]:
        """Parameters of 01_train by label: the runs that are known before any of them is made."""
        return {}

    @model_validator(mode="after")
    def _trainable(self) -> StudyConfig:
        variants = self.variants()
        check_common(self.recipe, self.common, variants)
        if variants:
            plan_runs(self.recipe, variants, self.seeds, common=self.common)
        return self


class JudgedConfig(StudyConfig):
    """The parameters of a study that has win rates, and by default controls of like KL."""

    benchmarks: Benchmarks = Field(["world"])  # names or files
    judge: str = "gold"  # of the world; or a reward model, as plc_core.evaluation.judges.named
    prompt_limit: int | None = Field(None, ge=1)  # first prompts of each benchmark but the world
    max_new_tokens: int = Field(1024, ge=1)  # of an answer to another benchmark than the world
    decodings: list[Literal["greedy", "sampled"]] = Field(["greedy", "sampled"], min_length=1)
    kl_control: bool = True  # train the plain DPO that moved as far, and show it beside

    @model_validator(mode="after")
    def _measurable(self) -> JudgedConfig:
        if len(set(self.decodings)) < len(self.decodings):
            raise ValueError(f"decodings has one of {', '.join(self.decodings)} twice")
        if self.kl_control and "sampled" not in self.decodings:
            raise ValueError(
                "kl_control needs sampled answers, which the KL is read from: add sampled to "
                "decodings, or set kl_control to false"
            )
        return self

    @model_validator(mode="after")
    def _judgeable(self) -> JudgedConfig:
        check_gold([self.judge], self.benchmarks)
        check_world([started_from(self.recipe, self.common)], self.benchmarks)
        if WORLD in self.benchmarks and not answered_prompts(self):
            raise ValueError(
                f"The runs answer no prompt of the benchmark {WORLD!r}, as eval_prompts is 0: set "
                "it in common, or other benchmarks"
            )
        return self


def answered_prompts(config: StudyConfig) -> int:
    """How many held-out prompts of the world each run answers when it is trained."""
    trained_with = {**read_recipe(config.recipe), **config.common}
    return int(trained_with.get("eval_prompts", TrainConfig.model_fields["eval_prompts"].default))


def started_from(recipe: str, common: Mapping[str, Any]) -> str:
    """The model that runs of a recipe and these parameters of 01_train start from."""
    return str({**read_recipe(recipe), **common}.get("model", "world"))


def check_world(models: Sequence[str], benchmarks: Sequence[str]) -> None:
    """ValueError where a model that knows nothing of the world would answer its prompts."""
    for benchmark in benchmarks:
        others = [model for model in models if model_for(benchmark) not in (None, model)]
        if others:
            raise ValueError(
                f"The runs start from {others[0]!r}, which the benchmark {benchmark!r} is not for: "
                "set benchmarks and judges"
            )


def check_gold(judges: Sequence[str], benchmarks: Sequence[str]) -> None:
    """ValueError where the world's own judge would meet other prompts than the world's."""
    for judge in judges:
        only = benchmark_for(judge)
        others = [name for name in benchmarks if only not in (None, name)]
        if others:
            raise ValueError(
                f"The judge {judge!r} knows the benchmark {only!r} alone, and benchmarks has "
                f"{others[0]!r}: set another judge"
            )


def evaluation_of(config: JudgedConfig) -> EvaluationConfig:
    """What a study asks of the chain of answers and judgements."""
    return EvaluationConfig(
        benchmarks=config.benchmarks,
        judges=[config.judge],
        decodings=config.decodings,
        prompt_limit=config.prompt_limit,
        max_new_tokens=config.max_new_tokens,
        eval_prompts=answered_prompts(config) or 1,  # 0 where the world is no benchmark
        make=config.make,
    )


def judged_by(config: JudgedConfig) -> JudgedRuns:
    """The judged answers of any runs, made where they are missing."""
    asked = evaluation_of(config)
    return JudgedRuns(lambda run: evaluate_runs([Contestant(ITSELF, run)], asked, ITSELF))


def trained(
    config: StudyConfig,
    variants: Mapping[str, Mapping[str, Any]],
    seeds: list[int] | None = None,
    then: str = "",
) -> dict[str, list[Run]]:
    """The runs of each variant, one a seed, by rising seed; what is missing is made.

    The report's status.json says how many of the missing ones are there.

    Args:
        config: of the study.
        variants: parameters of 01_train by label.
        seeds: other than the study's.
        then: what has to be made after these, for the sentence on what is missing.

    Raises:
        RunError: where runs are missing and `make` is False, which ones and how to make them.
    """
    planned = plan_runs(config.recipe, dict(variants), seeds or config.seeds, common=config.common)
    return ensure_runs(
        planned, config.runs_dir, config.make, config.workers, Progress(_report(config)), then
    )


def _report(config: StudyConfig) -> Run | None:
    with contextlib.suppress(RunError):
        run = open_run(resolve(config.runs_folder, config.name))
        return run if run.info.get("kind") == "analysis" else None
    return None


def open_report(config: StudyConfig) -> Run:
    """The report's own folder; an older one of this name is replaced."""
    info = {"kind": "analysis", "config": config.model_dump()}
    return create_run(config.runs_folder, config.name, info)


def record(report: Run, runs: Mapping[str, Sequence[Run]]) -> str:
    """Write down which runs the report is computed from, by label; what they are, in a sentence."""
    known = [run for own in runs.values() for run in own]
    report.update_info(
        runs={label: [run.name for run in own] for label, own in runs.items()},
        least_steps=min(int(run.info["trained_steps"]) for run in known),
    )
    return _what_they_are(known)


_SENTENCE_END = re.compile(r"(?<=[.)])\s+(?=[A-Z])")


def concluded(report: Run, *sentences: str) -> str:
    """What was found, as Markdown: the first sentence in bold, with which the report begins, after
    the warning where runs were too short; and what it says below its picture.

    Args:
        sentences: paragraphs of one or more sentences.
    """
    warning = _too_few([report.info["least_steps"]])
    first, *more = _SENTENCE_END.split(sentences[0], maxsplit=1)
    said = [f"**{first}**{FINDING}", *more, *sentences[1:]]
    return "\n\n".join([warning, *said] if warning else said)


def _what_they_are(runs: Sequence[Run]) -> str:
    known = list({run.path: run for run in runs}.values())
    configs = [run.info["config"] for run in known]
    steps = [int(run.info["trained_steps"]) for run in known]
    models, sources = (
        ", ".join(sorted({PurePath(str(config[name])).name for config in configs}))
        for name in ("model", "data")
    )
    seeds = sorted({int(config["seed"]) for config in configs})
    text = (
        f"{len(known)} training run{'s' if len(known) > 1 else ''} of the model {models} on pairs "
        f"of {sources}: {_span([run.info['data']['rows'] for run in known])} pairs and "
        f"{_span(steps)} steps each, seed{'s' if len(seeds) > 1 else ''} "
        f"{', '.join(map(str, seeds))}."
    )
    return f"{text} {warning}" if (warning := _too_few(steps)) else text


def _too_few(steps: Sequence[int]) -> str:
    if min(steps) >= FEW_STEPS:
        return ""
    return f"In fewer than {FEW_STEPS} steps little is learnt: this shows that it runs, no more."


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


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
