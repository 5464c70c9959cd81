"""How noisy a run's data is.

From the flip posterior (`plc_core.objective.flip_posterior`), which every training run
records beside the routing, under any objective.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

P_FLIP_FROM = 24
"""From this optimizer step on, counted from 0, a pair's p_flip may be read: before it there are
too few margins in memory. Runs of earlier versions wrote one nevertheless; later ones write NaN."""

NOISE_COLUMNS = ["step", "epoch", "noise_rate", "noise_low", "noise_high"]
"""The columns of metrics.parquet that `noise_rate` reads."""


@dataclass(frozen=True)
class NoiseRate:
    """The estimated share of reversed labels in the data of a run.

    `rate` with its 95 % interval [`low`, `high`], read from the margins of the steps before
    optimizer step `step`. The grid of rates ends at 0.48.
    """

    rate: float
    low: float
    high: float
    step: int

    @property
    def short(self) -> str:
        """The rate and its interval in percent, for a cell of a table."""
        return f"{100 * self.rate:.0f} % [{100 * self.low:.0f}, {100 * self.high:.0f}]"

    def __str__(self) -> str:
        return (
            f"Estimated share of reversed labels: {self.short} (95 %, from the margins before step "
            f"{self.step:,})."
        )


def noise_rate(metrics: pd.DataFrame) -> NoiseRate | None:
    """The estimate at the last step of the first epoch, from a run's metrics.

    Later epochs see labels that the policy remembers, and would give too low a rate. None where
    there is no step yet, or the run is of a version that did not record the estimate.
    """
    if not len(metrics) or any(name not in metrics for name in NOISE_COLUMNS):
        return None
    first = metrics[(metrics["epoch"] < 1) & metrics["noise_rate"].notna()]
    if not len(first):
        return None
    last = first.sort_values("step").iloc[-1]
    rate, low, high = (float(last[name]) for name in NOISE_COLUMNS[2:])
    return NoiseRate(rate, low, high, int(last["step"]))


def noise_sentence(metrics: pd.DataFrame) -> str:
    """`noise_rate` as a sentence for a person, also where there is none."""
    found = noise_rate(metrics)
    if found is None:
        return "This run did not record an estimate of its share of reversed labels."
    return str(found)
