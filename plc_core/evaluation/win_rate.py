"""Pairwise win rates: the share of prompts on which one policy's response earns more."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from plc_core.analysis.statistics import MeanInterval, bootstrap_mean


class WinRate(NamedTuple):
    """A win rate as a share with its 95 % bootstrap interval over prompts; ties count one half."""

    share: MeanInterval
    ties: int

    def __str__(self) -> str:
        share = self.share
        if not share.n:
            return "n/a (n=0)"
        return f"{100 * share.mean:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def win_rate(rewards: pd.Series, baseline: pd.Series) -> WinRate:
    """How often `rewards` beats `baseline`, both indexed by prompt id.

    The interval is over prompts, with one training seed on either side.

    Raises:
        ValueError: where the two do not cover the same prompts once each, or a reward is NaN,
            with the counts.
    """
    for name, series in (("rewards", rewards), ("baseline", baseline)):
        if not series.index.is_unique:
            raise ValueError(f"{name} has {series.index.duplicated().sum()} prompts twice.")
    missing = len(baseline.index.difference(rewards.index))
    extra = len(rewards.index.difference(baseline.index))
    if missing or extra:
        raise ValueError(
            f"The two sides answer different prompts: {missing} of {len(baseline)} are missing "
            f"and {extra} are not in the baseline."
        )
    difference = rewards.to_numpy() - baseline.loc[rewards.index].to_numpy()
    if np.isnan(difference).any():
        raise ValueError(f"{np.isnan(difference).sum()} of {len(difference)} rewards are NaN.")
    share = bootstrap_mean((np.sign(difference) + 1) / 2, seed=0)
    return WinRate(share, int((difference == 0).sum()))
