"""Reversed hard pairs: the runs of the dose response, and of its shadow under plain DPO."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from notebooks.studies.study import Share, StudyConfig, paper_name, trained
from plc_core.engine.config import ObjectiveName
from plc_core.runs import Run


class HardPairConfig(StudyConfig):
    """The parameters of `notebooks/04_hard_pair_routing.ipynb`."""

    rates: list[Share] = Field([0.05, 0.1, 0.2, 0.3], min_length=1)  # shares of reversed pairs
    flips: Literal["lowest-margin", "largest-gap", "smallest-gap"] = "lowest-margin"
    methods: list[ObjectiveName] = Field(["plc", "dpo"], min_length=1)  # dpo: its shadow routing

    def variants(self) -> dict[str, dict[str, Any]]:
        """The policies that rank the pairs, where margins do; every reversal otherwise."""
        if self.flips == "lowest-margin":
            return {"clean": {"objective": "dpo", "flip_rate": 0.0}}
        return self.reversed_by(None)

    def reversed_by(self, ranking: str | None) -> dict[str, dict[str, Any]]:
        """Every method at every rate, the pairs ranked by the run `ranking` if by any."""
        data = {"flips": self.flips, "margins_run": ranking}
        return {
            f"{objective} {rate:g}": {"objective": objective, "flip_rate": rate, **data}
            for objective in self.methods
            for rate in self.rates
        }


def shadow_name(objective: str) -> str:
    """The name of a method whose routing is shown: that of others than PLC-DPO is a shadow."""
    name = paper_name(objective)
    return name if objective == "plc" else f"{name} (shadow)"


def hard_pair_runs(config: HardPairConfig) -> dict[str, dict[float, list[Run]]]:
    """The runs by method and rate, one a seed.

    Pairs with the lowest margins are ranked by plain DPO on the clean labels of the same seed.
    """
    found: dict[str, dict[float, list[Run]]] = {}
    ranking = {}
    if config.flips == "lowest-margin":
        count = len(config.methods) * len(config.rates) * len(config.seeds)
        then = (
            f"Then {count} more follow, whose pairs are ranked by these. Run the notebook again "
            "for their names."
        )
        clean = trained(config, config.variants(), then=then)["clean"]
        ranking = {run.info["config"]["seed"]: run.name for run in clean}
    labels = [(objective, rate) for objective in config.methods for rate in config.rates]
    for seed in config.seeds:
        ready = trained(config, config.reversed_by(ranking.get(seed)), [seed])
        for objective, rate in labels:
            own = found.setdefault(shadow_name(objective), {})
            own.setdefault(rate, []).extend(ready[f"{objective} {rate:g}"])
    return found
