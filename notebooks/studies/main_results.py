"""Methods over benchmarks, data and models: what the paper's main table and 57 cells are of."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from notebooks.studies.study import Benchmarks, paper_name, started_from
from notebooks.studies.win_rate_study import ContestConfig, entries_of, with_controls
from plc_core.analysis.paper import published
from plc_core.engine.config import ObjectiveName
from plc_core.evaluation.methods import Contestant, short_name

DATASETS: dict[str, dict[str, Any]] = {
    "flipped": {"flip_rate": 0.2},
    "clean": {},
    "annotator": {"annotator": True},
}
"""World pairs with random flips, without, and with one annotator's labels."""
METHODS = ["cdpo", "rdpo-length", "kto-pair", "rso", "gamma-po", "dr-dpo", "ropo", "re-po", "plc"]
"""The rows of the paper's main table."""


class MainConfig(ContestConfig):
    """The parameters of `notebooks/02_main_results.ipynb`."""

    common: dict[str, Any] = Field(default_factory=dict)
    datasets: dict[str, dict[str, Any]] = Field(
        default_factory=lambda: dict(DATASETS), min_length=1
    )  # names and parameters of 01_train; the first has all methods
    models: dict[str, str] = Field(default_factory=dict)  # to start from, by name; none: recipe's
    grid: dict[str, dict[str, Benchmarks | None]] = Field(
        default_factory=dict
    )  # benchmarks by dataset and model, None for all; none given: all of everything
    methods: list[ObjectiveName] = Field(
        default_factory=list
    )  # objectives beside dpo; none: `METHODS`
    paper_model: str = "Qwen2.5-7B"  # whose published table stands beside
    transfer: list[ObjectiveName] = Field(["ropo", "plc"])  # beside dpo, on the other datasets

    def starts(self) -> dict[str, str]:
        """The models to start from by their names in tables."""
        start = started_from(self.recipe, self.common)
        return self.models or {short_name(start): start}

    def places(self) -> dict[tuple[str, str], tuple[str, ...] | None]:
        """Each dataset and model that is trained, and the benchmarks it answers (None: all)."""
        whole = {name: dict.fromkeys(self.starts()) for name in self.datasets}
        return {
            (dataset, model): None if benchmarks is None else tuple(benchmarks)
            for dataset, of in (self.grid or whole).items()
            for model, benchmarks in of.items()
        }

    def parts(self) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
        """What is trained of each dataset and model but plain DPO: parameters by method.

        All methods on the first dataset and those of `transfer` on the others.
        """
        first = next(iter(self.places()))[0]
        return {
            (dataset, model): {
                paper_name(name): {"objective": name}
                for name in (self.methods or METHODS if dataset == first else self.transfer)
            }
            for dataset, model in self.places()
        }

    def shared(self, dataset: str, model: str) -> dict[str, Any]:
        """Parameters of 01_train of all methods with this dataset and model."""
        start = {"model": self.models[model]} if self.models else {}
        return {**start, **self.datasets[dataset]}

    def variants(self) -> dict[str, dict[str, Any]]:
        """The runs of all datasets and models; ValueError for a grid that names others."""
        self._check_grid()
        return {
            f"{method}, {dataset}, {model}": own
            for (dataset, model), methods in self.parts().items()
            for method, own in with_controls(self, methods, self.shared(dataset, model)).items()
        }

    def start_models(self) -> list[str]:
        """What the runs start from."""
        return list(self.starts().values())

    @field_validator("models", mode="before")
    @classmethod
    def _named(cls, models: Any) -> Any:
        if not isinstance(models, list):
            return models
        names = [short_name(str(model)) for model in models]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"tables would call two of them {twice[0]!r}; name each, as {{name: folder}}"
            )
        return dict(zip(names, models, strict=True))

    @model_validator(mode="after")
    def _possible(self) -> MainConfig:
        if odd := [name for name in self.transfer if name not in (self.methods or METHODS)]:
            raise ValueError(f"transfer has {', '.join(odd)}, which methods has not")
        known = dict.fromkeys(published("main_results")["model"])
        if self.paper_model not in known:
            raise ValueError(
                f"paper_model is {self.paper_model!r}; the paper's main table has "
                f"{', '.join(known)}"
            )
        return self

    def _check_grid(self) -> None:
        if not self.grid:
            return
        used = {
            "datasets": list(self.grid),
            "models": [model for of in self.grid.values() for model in of],
            "benchmarks": [
                name
                for of in self.grid.values()
                for own in of.values()
                for name in (self.benchmarks if own is None else own)
            ],
        }
        asked = {
            "datasets": list(self.datasets),
            "models": list(self.starts()),
            "benchmarks": self.benchmarks,
        }
        for what, names in asked.items():
            if odd := [name for name in used[what] if name not in names]:
                raise ValueError(f"grid has {odd[0]!r}, which {what} has not: {', '.join(names)}")
            if odd := [name for name in names if name not in used[what]]:
                raise ValueError(f"{what} has {odd[0]!r}, which grid has nowhere")


def main_entries(config: MainConfig) -> list[Contestant]:
    """Every method on the first dataset and those of `transfer` on the others, for every model."""
    return [
        entry._replace(start=model, benchmarks=config.places()[dataset, model])
        for (dataset, model), variants in config.parts().items()
        for entry in entries_of(config, variants, dataset, config.shared(dataset, model))
    ]
