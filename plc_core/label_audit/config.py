"""The parameters of an audit, validated before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from plc_core.engine.config import DataConfig
from plc_core.files import project_path
from plc_core.label_audit.cleaning import ENDINGS, Policy
from plc_core.label_audit.evidence import DEFAULT, Kind


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
