"""What the study consists of: its settings, and the jobs that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from notebooks.replication.rivals import RIVALS, Rival
from plc_core.engine.config import TrainConfig, as_number
from plc_core.label_audit.config import Kind, Policy
from plc_core.parameters import ParameterError, checked, read_yaml
from plc_core.storage.paths import project_path

Slice = Literal["choice", "main", "frontier", "ties", "variants", "evidence"]
SLICES: tuple[Slice, ...] = ("choice", "main", "frontier", "ties", "variants", "evidence")

PARTS = ("train", "select", "test", "reward")
"""The parts of the pairs; no two share a prompt."""


class Choice(BaseModel):
    """The learning rate and β of every job, chosen on clean DPO alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(gt=0)
    beta: float = Field(gt=0)

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, values: Any) -> Any:
        return {k: as_number(v) for k, v in values.items()} if isinstance(values, dict) else values


class AuditStep(BaseModel):
    """What an audit of the noisy labels does before training; in a study also as its policy alone.

    Reversed labels have reversed scores, so those are no evidence: they would tell the truth.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: Policy
    evidence: tuple[Kind, ...] = ("hidden states", "lengths", "words")
    alike: bool = False  # every pair gets the mean p_flip: what is known without knowing which


class ReplicationConfig(BaseModel):
    """The settings of a study; unknown names and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    model: str  # as in TrainConfig; "world" takes its pairs from the embedded world
    scored: str | None = None  # files of pairs: with scores, with one human label each
    helpful: str | None = None
    votes: str | None = None  # pairs with the votes of several people
    prompts: str | None = None  # benchmark prompts to answer
    split_seed: int = 20  # of the parts; fixed before anything was trained
    shares: dict[str, float]  # of the prompts, of each of PARTS
    most_pairs: dict[str, int] = Field(default_factory=dict)  # of a part or of votes, at most
    train: dict[str, Any]  # parameters of TrainConfig that all jobs share
    choice: Choice | None = None  # None: chosen by the slice "choice"
    learning_rates: list[float] = Field(default_factory=list)  # its grid
    betas: list[float] = Field(default_factory=list)
    choice_seeds: list[int] = Field(default_factory=list)
    # Name: parameters of TrainConfig; `audit` beside them names what an audit does before training.
    methods: dict[str, dict[str, Any]]  # "dpo" is the baseline
    flip_rates: list[float]
    seeds: list[int]
    frontier: list[float] = Field(default_factory=list)  # of β, as factors, for DPO
    frontier_rates: list[float] = Field(default_factory=list)  # of the learning rate, likewise
    tie_rates: list[float] = Field(default_factory=list)
    tie_methods: list[str] = Field(default_factory=list)
    tie_train: dict[str, Any] = Field(default_factory=dict)  # parameters of the tie jobs
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)  # one change each
    variant_rates: list[float] = Field(default_factory=list)
    # Audits beside their rivals, of labels reversed as these parameters say; nothing is trained.
    evidence: dict[str, dict[str, Any]] = Field(default_factory=dict)
    evidence_rates: list[float] = Field(default_factory=list)
    rivals: list[Rival] = Field(default_factory=lambda: list(RIVALS))
    judge: str | None = None  # backbone of the reward model; None: the study's own model
    responses: int = Field(0, ge=0)  # prompts that every trained policy answers
    response_tokens: int = Field(128, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("learning_rates"), list):
            return values | {"learning_rates": [as_number(v) for v in values["learning_rates"]]}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> ReplicationConfig:
        if "dpo" not in self.methods:
            raise ValueError('methods needs "dpo", the baseline')
        for changes in (*self.methods.values(), *self.variants.values()):
            _audited(changes)
        if set(self.shares) != set(PARTS) or abs(sum(self.shares.values()) - 1) > 1e-6:
            raise ValueError(f"shares are of {', '.join(PARTS)} and sum to 1")
        if self.model != "world" and (self.scored is None or self.helpful is None):
            raise ValueError("a study of a real model needs the files scored and helpful")
        if unknown := set(self.tie_methods) - set(self.methods):
            raise ValueError(f"tie_methods names {', '.join(sorted(unknown))}, no methods")
        if self.choice is None and not (self.learning_rates and self.betas and self.choice_seeds):
            raise ValueError("without a choice, learning_rates, betas and choice_seeds are needed")
        return self


def read_study(path: str) -> ReplicationConfig:
    """The study in a YAML file.

    Raises:
        RunError: where there is none.
        ParameterError: where it names something unknown or has a wrong value.
    """
    file = project_path(path)
    try:
        return checked(read_yaml(file, dict), ReplicationConfig)
    except ParameterError as error:
        raise ParameterError(f"{file}: {error}") from None


@dataclass(frozen=True)
class Job:
    """One training run of the study, and what is measured on it."""

    slice: Slice
    method: str
    changes: Mapping[str, Any]  # of TrainConfig, beside the study's own
    seed: int
    flip_rate: float = 0.0
    tie_rate: float = 0.0
    mixture: str = "all"  # all, scored or helpful sources of the part train, or fresh pairs
    tags: Mapping[str, Any] = field(default_factory=dict)
    audit: AuditStep | None = None

    @property
    def name(self) -> str:
        """Its name, which says all that makes it this job."""
        tags = "".join(f"-{key}{value:g}" for key, value in self.tags.items())
        ties = f"-t{self.tie_rate:g}" if self.slice == "ties" else ""
        return f"{self.slice}-{self.method}{tags}-f{self.flip_rate:g}{ties}-s{self.seed}"

    def config(
        self, study: ReplicationConfig, choice: Choice | None, files: Mapping[str, str]
    ) -> Any:
        """The parameters of its training run, as `notebooks/01_train.ipynb` takes them.

        `files` has the paths of the pairs to train on, by mixture, and of the pool of ties.
        """
        values = dict(study.train) | (choice.model_dump() if choice else {}) | dict(self.changes)
        for name in ("beta", "learning_rate"):
            if f"{name}_factor" in values:
                values[name] = values.pop(f"{name}_factor") * values[name]
        if study.model != "world":
            base = "tie-base" if self.slice == "ties" else f"train-{self.mixture}"
            values |= {"data": files[base], "data_split": None}
        if self.tie_rate:
            values |= {"tie_rate": self.tie_rate}
            if study.model != "world":
                values |= {"tie_pool": files["ties"]}
        return TrainConfig(
            **values, name=self.name, model=study.model, flip_rate=self.flip_rate, seed=self.seed
        )


def jobs_of(study: ReplicationConfig, part: Slice) -> Iterator[Job]:
    """The jobs of a slice, seed by seed, so that a part of them is a study with fewer seeds."""
    if part == "choice" and study.choice is None:
        for seed in study.choice_seeds:
            for rate in study.learning_rates:
                for beta in study.betas:
                    values = {**study.methods["dpo"], "learning_rate": rate, "beta": beta}
                    yield Job(part, "dpo", values, seed, tags={"lr": rate, "b": beta})
    for seed in study.seeds:
        if part == "main":
            for rate in study.flip_rates:
                for name, changes in study.methods.items():
                    values, audit = _audited(changes)
                    yield Job(part, name, values, seed, rate, audit=audit)
        if part == "frontier":
            for rate in study.flip_rates:
                for name, tag, factors in (
                    ("beta_factor", "x", study.frontier),
                    ("learning_rate_factor", "lr-x", study.frontier_rates),
                ):
                    for factor in factors:
                        values = {**study.methods["dpo"], name: factor}
                        yield Job(part, "dpo", values, seed, rate, tags={tag: factor})
        if part == "ties":
            for rate in study.tie_rates:
                for name in study.tie_methods:
                    changes = study.methods[name] | study.tie_train
                    yield Job(part, name, changes, seed, tie_rate=rate)
        if part in ("variants", "evidence"):
            named, rates = (
                (study.variants, study.variant_rates)
                if part == "variants"
                else (study.evidence, study.evidence_rates)
            )
            for rate in rates:
                for name, changes in named.items():
                    values, audit = _audited(changes)
                    if part == "evidence":
                        audit = audit or AuditStep(policy="flip")
                    mixture = values.pop("mixture", "all")
                    yield Job(part, name, values, seed, rate, mixture=mixture, audit=audit)


def _audited(changes: Mapping[str, Any]) -> tuple[dict[str, Any], AuditStep | None]:
    """The parameters of a training run, and what an audit does before it."""
    values = dict(changes)
    step = values.pop("audit", None)
    if step is None:
        return values, None
    return values, AuditStep.model_validate({"policy": step} if isinstance(step, str) else step)


def seed_by_seed(slices: Iterable[Iterable[Job]]) -> list[Job]:
    """The jobs of all slices, so that the first of them are the whole study with fewer seeds."""
    return sorted((job for jobs in slices for job in jobs), key=lambda job: job.seed)
