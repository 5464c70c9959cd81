"""The parameters of an audit, validated before anything runs; no library of models is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from plc_core.engine.config import DataConfig
from plc_core.storage.paths import project_path

if TYPE_CHECKING:
    from plc_core.runs.cleaned import Format

EVIDENCE: dict[str, str] = {
    "hidden states": "a linear probe of a frozen model's hidden states; needs a model",
    "likelihood": "how likely the model finds the answers, summed and a token; needs a model",
    "lengths": "how much longer the chosen answer is, in tokens or else in words",
    "words": "which words the preferred answers have",
    "scores": "the scores that came with the rows, as the share of pairs with a smaller gap",
    "votes": "how many of the annotators' votes are for the label",
}
if TYPE_CHECKING:
    Kind: TypeAlias = str
else:
    Kind = Literal[tuple(EVIDENCE)]

DEFAULT: tuple[Kind, ...] = ("hidden states", "lengths", "words", "scores", "votes")
"""Without likelihoods, which take a second pass through the model and add next to nothing."""

Policy = Literal["flip", "drop", "weight", "prior"]
POLICIES: dict[Policy, str] = {
    "flip": "labels that are more likely reversed than not are turned round",
    "drop": "those pairs are left out",
    "weight": "each pair has its own label smoothing, for cdpo: p_flip, of at most a half",
    "prior": "each pair has its own prior pi^0, for plc: p_flip, and p_tie where it is known",
}
ENDINGS: dict[str, Format] = {".jsonl": "jsonl", ".parquet": "parquet"}
"""Of files that cleaned pairs are written to, and how."""


class AuditConfig(DataConfig):
    """The parameters of `notebooks/audit.ipynb`."""

    name: str  # name of the audit, and of its folder
    runs_dir: str = "runs"  # where run folders lie
    model: str | None = None  # type: ignore[assignment]  # whose hidden states are evidence
    evidence: list[Kind] = Field(list(DEFAULT), min_length=1)
    run: str | None = None  # a finished training run on these pairs, in runs_dir
    judge: str | None = None  # a reward model, or a server
    dpo: dict[str, Any] | None = None  # parameters of 01_train, for margins out of fold
    noise_by: list[str] = Field(["source"])  # columns to tell noise rates by
    rates_by: str | None = None  # a column whose groups each have a noise rate in p_flip
    most_suspicious: int = Field(20, ge=1, le=1000)  # pairs in the report
    policy: Policy | None = None  # writes cleaned.jsonl: flip, drop, weight or prior
    export: str | None = None  # where to, instead of the audit's folder

    @model_validator(mode="after")
    def _exported(self) -> AuditConfig:
        if self.export is not None and self.policy is None:
            raise ValueError("export needs a policy: flip, drop, weight or prior")
        if self.export_file.suffix not in ENDINGS:
            raise ValueError(f"export should end in {' or '.join(ENDINGS)}; it is {self.export}")
        return self

    @property
    def export_file(self) -> Path:
        """Where cleaned pairs are written."""
        if self.export is not None:
            return project_path(self.export)
        return self.runs_folder / self.name / "cleaned.jsonl"
