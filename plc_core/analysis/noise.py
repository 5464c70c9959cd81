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

WIDEST = 0.40
"""The widest interval that counts as an estimate; the prior's is [0, 0.48]."""


@dataclass(frozen=True)
class NoiseEstimate:
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


def known_rates(metrics: pd.DataFrame) -> pd.Series:
    """For each step whether its noise rate is an estimate rather than the prior, [steps] of bool.

    The flat prior over [0, 0.48] has the mean 0.24, which says nothing about the data. A rate is
    known where the margins had settled (it is NaN otherwise, see `FlipPosterior`) and its interval
    has become clearly narrower than the prior's.
    """
    width = metrics["noise_high"] - metrics["noise_low"]
    return metrics["noise_rate"].notna() & (width <= WIDEST)


def noise_rate(metrics: pd.DataFrame) -> NoiseEstimate | None:
    """The estimate at the last step of the first epoch, from a run's metrics.

    Later epochs see labels that the policy remembers, and would give too low a rate. None where it
    is not known (yet), see `known_rates`, or the run's version did not record it.
    """
    if not _recorded(metrics):
        return None
    first = metrics[metrics["epoch"] < 1].sort_values("step").tail(1)
    if not known_rates(first).any():
        return None
    rate, low, high = (float(first[name].iloc[0]) for name in NOISE_COLUMNS[2:])
    return NoiseEstimate(rate, low, high, int(first["step"].iloc[0]))


def noise_sentence(metrics: pd.DataFrame) -> str:
    """`noise_rate` as a sentence for a person, also where there is none."""
    if (found := noise_rate(metrics)) is not None:
        return str(found)
    if not _recorded(metrics):
        return "This run did not record an estimate of its share of reversed labels."
    return (
        "Share of reversed labels: not known yet. An estimate takes 24 steps and 256 pairs or more "
        "in the first epoch once the margins have spread, and an interval of at most "
        f"{100 * WIDEST:.0f} points."
    )


def _recorded(metrics: pd.DataFrame) -> bool:
    return len(metrics) > 0 and all(name in metrics for name in NOISE_COLUMNS)
