"""Reversed hard pairs: the runs of the dose response, and of its shadow under plain DPO."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plc_core.experiments.study import StudyConfig, paper_name, trained
from plc_core.runs import Run


class HardPairConfig(StudyConfig):
    """The parameters of `notebooks/04_hard_pair_routing.ipynb`."""

    rates: list[float] = Field([0.05, 0.1, 0.2, 0.3], min_length=1)  # shares of reversed pairs
    flips: Literal["lowest-margin", "largest-gap", "smallest-gap"] = "lowest-margin"
    methods: list[str] = Field(["plc", "dpo"], min_length=1)  # dpo: its shadow routing


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
        clean = trained(config, {"clean": {"objective": "dpo", "flip_rate": 0.0}})["clean"]
        ranking = {seed: run.name for seed, run in zip(config.seeds, clean, strict=True)}
    labels = [(objective, rate) for objective in config.methods for rate in config.rates]
    for seed in config.seeds:
        data = {"flips": config.flips, "margins_run": ranking.get(seed)}
        variants = {
            f"{objective} {rate:g}": {"objective": objective, "flip_rate": rate, **data}
            for objective, rate in labels
        }
        ready = trained(config, variants, [seed])
        for objective, rate in labels:
            own = found.setdefault(shadow_name(objective), {})
            own.setdefault(rate, []).extend(ready[f"{objective} {rate:g}"])
    return found
