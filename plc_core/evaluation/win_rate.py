"""Pairwise win rates: the share of prompts on which one policy's response earns more.

Two methods are compared over the same prompts, joined by prompt id. Prompts that one side lacks,
has twice or has no number for are an error, or on request a counted sentence that stays with the
result: no win rate is ever over silently fewer prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import scipy

from plc_core.analysis.statistics import Floats, MeanInterval, bootstrap_mean, format_p

Incomplete: TypeAlias = Literal["error", "common"]
"""What to do where two sides do not cover the same prompts: refuse, or compare the common ones."""

_SHOWN = 3  # prompt ids that a sentence names


class JoinError(ValueError):
    """Two sides that cannot be compared prompt by prompt; a sentence with the counts."""


class JoinReport(NamedTuple):
    """How two sides' prompts met; counts of prompts."""

    matched: int  # on both sides, with a number on each
    missing: int  # the baseline has them, the other side does not
    extra: int  # the baseline does not have them
    without_number: int  # on both sides, but NaN on one, or infinite on both

    @property
    def complete(self) -> bool:
        """Whether nothing was left out."""
        return not (self.missing or self.extra or self.without_number)

    def __str__(self) -> str:
        if self.complete:
            return f"all {self.matched} prompts compared"
        total = sum(self)
        return (
            f"{self.matched} of {total} prompts compared: {self.missing} missing, {self.extra} not "
            f"in the baseline, {self.without_number} without a number"
        )


class PairedTest(NamedTuple):
    """A two-sided paired test; `n` is what it rests on, after ties were left out."""

    name: str
    p: float
    n: int

    def __str__(self) -> str:
        return f"{self.name} test: {format_p(self.p)} (n={self.n})"


class WinRate(NamedTuple):
    """A win rate as a share with its 95 % bootstrap interval over prompts; ties count one half.

    `sign` asks whether wins and losses are equally likely, which is the win rate's own question.
    `wilcoxon` also weighs by how much a response is better; verdicts without scores have none.
    """

    share: MeanInterval
    ties: int
    wins: int
    losses: int
    sign: PairedTest
    wilcoxon: PairedTest | None
    join: JoinReport

    @property
    def note(self) -> str:
        """What a reader must know beside the number; empty where there is nothing."""
        sentences = [] if self.join.complete else [str(self.join)]
        for name, count in (("win", self.wins), ("tie", self.ties), ("loss", self.losses)):
            if count == self.share.n > 1:
                sentences.append(f"all {count} verdicts are a {name}")
        return "; ".join(sentences)

    def __str__(self) -> str:
        share = self.share
        if not share.n:
            return "n/a (n=0)"
        return f"{100 * share.mean:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def win_rate(rewards: pd.Series, baseline: pd.Series, incomplete: Incomplete = "error") -> WinRate:
    """How often `rewards` beats `baseline`, both indexed by prompt id.

    The interval is over prompts, with one training seed on either side. The paired tests are the
    sign test and Wilcoxon's signed-rank test (Pratt's handling of ties).

    Raises:
        JoinError: where a side has a prompt twice; unless `incomplete` is "common", also where the
            two do not cover the same prompts or a reward is NaN. With the counts.
    """
    own, other, join = join_prompts(rewards, baseline, incomplete)
    return win_rate_of_gaps(own - other, join)


def win_rate_of_gaps(gaps: pd.Series, join: JoinReport) -> WinRate:
    """The win rate from the differences of both sides' rewards."""
    decided = int((gaps != 0).sum())
    p = float(scipy.stats.wilcoxon(gaps, zero_method="pratt").pvalue) if decided else math.nan
    return _win_rate(np.sign(gaps.to_numpy()), join, PairedTest("Wilcoxon", p, decided))


def win_rate_of_shares(shares: pd.Series, join: JoinReport) -> WinRate:
    """The win rate of verdicts: 1 for a win, 0.5 for a tie, 0 for a loss; JoinError for others."""
    if odd := sorted(set(shares) - {0.0, 0.5, 1.0}):
        raise JoinError(
            f"A verdict is 1 (win), 0.5 (tie) or 0 (loss); among these {len(shares)} is {odd[0]:g}."
        )
    return _win_rate(2 * shares.to_numpy(dtype=np.float64) - 1, join, None)


def verdict_win_rate(
    verdicts: pd.Series, prompts: Iterable[str] | None = None, incomplete: Incomplete = "error"
) -> WinRate:
    """The win rate of a pairwise judge's verdicts, indexed by prompt id.

    Args:
        verdicts: 1 for a win, 0.5 for a tie, 0 for a loss; NaN where none could be read.
        prompts: ids of the prompts that were to be judged; None takes those in `verdicts`.
        incomplete: as in `win_rate`.

    Raises:
        JoinError: as `win_rate`, and for a verdict of any other value.
    """
    wanted = pd.Index(verdicts.index.unique() if prompts is None else list(prompts))
    shares, _, join = join_prompts(
        verdicts, pd.Series(0.0, index=wanted), incomplete, names=("verdicts", "prompts")
    )
    return win_rate_of_shares(shares, join)


def verdicts(
    rewards: pd.Series, baseline: pd.Series, incomplete: Incomplete = "error"
) -> pd.Series:
    """The verdicts of a scoring judge: 1, 0.5 or 0 by prompt id, as pairwise judges give them.

    Raises:
        JoinError: as `win_rate`.
    """
    own, other, _ = join_prompts(rewards, baseline, incomplete)
    return pd.Series((np.sign(own - other) + 1) / 2, index=own.index)


def join_prompts(
    own: pd.Series,
    baseline: pd.Series,
    incomplete: Incomplete = "error",
    names: tuple[str, str] = ("rewards", "baseline"),
) -> tuple[pd.Series, pd.Series, JoinReport]:
    """Both sides' numbers of the same prompts, in the order of `own`, and how they met.

    Raises:
        JoinError: as `win_rate` says.
    """
    for name, series in zip(names, (own, baseline), strict=True):
        twice = series.index[series.index.duplicated()].unique()
        if len(twice):
            raise JoinError(f"{name} has {len(twice)} prompts twice, as {_some(twice)}.")
    missing = baseline.index.difference(own.index)
    extra = own.index.difference(baseline.index)
    common = own.index[own.index.isin(baseline.index)]
    try:
        left = own.loc[common].to_numpy(dtype=np.float64)
        right = baseline.loc[common].to_numpy(dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise JoinError(f"Not all {names[0]} and {names[1]} are numbers: {error}.") from None
    with np.errstate(invalid="ignore"):
        known = ~np.isnan(left - right)
    report = JoinReport(int(known.sum()), len(missing), len(extra), int((~known).sum()))
    if incomplete == "error":
        _refuse(own, baseline, missing, extra, common[~known], names)
    kept = common[known]
    return pd.Series(left[known], index=kept), pd.Series(right[known], index=kept), report


def _refuse(
    own: pd.Series,
    baseline: pd.Series,
    missing: pd.Index,
    extra: pd.Index,
    without: pd.Index,
    names: tuple[str, str],
) -> None:
    if len(missing) or len(extra):
        parts = []
        if len(missing):
            parts.append(f"{len(missing)} of {len(baseline)} are missing (as {_some(missing)})")
        if len(extra):
            parts.append(f"{len(extra)} are not in the {names[1]} (as {_some(extra)})")
        kinds = [{type(i).__name__ for i in side.index} for side in (own, baseline)]
        hint = ""
        if len(own) and len(baseline) and not kinds[0] & kinds[1]:
            hint = f" Ids are {', '.join(kinds[0])} on one side and {', '.join(kinds[1])} on the "
            hint += "other."
        raise JoinError(f"The two sides answer different prompts: {' and '.join(parts)}.{hint}")
    if len(without):
        raise JoinError(
            f"{len(without)} of {len(own)} {names[0]} are NaN on one side, or infinite on both, as "
            f"{_some(without)}."
        )


def _some(ids: pd.Index) -> str:
    shown = ", ".join(repr(i) for i in ids[:_SHOWN].tolist())
    return shown + (", …" if len(ids) > _SHOWN else "")


def _win_rate(signs: Floats, report: JoinReport, wilcoxon: PairedTest | None) -> WinRate:
    wins, losses = int((signs > 0).sum()), int((signs < 0).sum())
    decided = wins + losses
    p = float(scipy.stats.binomtest(wins, decided).pvalue) if decided else math.nan
    return WinRate(
        bootstrap_mean((signs + 1) / 2, seed=0),
        int((signs == 0).sum()),
        wins,
        losses,
        PairedTest("sign", p, decided),
        wilcoxon,
        report,
    )
