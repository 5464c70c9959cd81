"""How far two judges agree on the same comparisons."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import cohen_kappa_score, confusion_matrix

from plc_core.analysis.statistics import LEVEL, MeanInterval, bootstrap_mean, format_interval
from plc_core.evaluation.win_rate import Incomplete, JoinError, JoinReport, join_prompts

_VERDICTS = [-1, 0, 1]  # loss, tie, win


class JudgeAgreement(NamedTuple):
    """Raw agreement and Cohen's kappa of two judges' verdicts, with 95 % intervals over prompts.

    kappa is NaN where both judges gave one and the same verdict throughout: chance alone would
    agree as well. `decided` is the raw agreement over prompts that neither judge called a tie.
    """

    raw: MeanInterval
    kappa: MeanInterval
    decided: MeanInterval
    table: pd.DataFrame  # counts; rows the first judge, columns the second: loss, tie, win
    join: JoinReport

    def __str__(self) -> str:
        if not self.raw.n:
            return "n/a (n=0)"
        text = f"agreement {self.raw}, kappa {format_interval(*self.kappa[:3])}"
        return text if self.join.complete else f"{text}; {self.join}"


def agreement_of_judges(
    first: pd.Series, second: pd.Series, incomplete: Incomplete = "error"
) -> JudgeAgreement:
    """Compare two judges of the same comparisons, each indexed by prompt id.

    Args:
        first, second: verdicts as 1 (win), 0.5 (tie) and 0 (loss).
        incomplete: as in `win_rate`.

    Raises:
        JoinError: where the two judged different prompts, or a verdict has another value.
    """
    a, b, report = join_prompts(first, second, incomplete, names=("first", "second"))
    if odd := sorted((set(a) | set(b)) - {0.0, 0.5, 1.0}):
        raise JoinError(f"A verdict is 1 (win), 0.5 (tie) or 0 (loss); one is {odd[0]:g}.")
    own, other = ((2 * side.to_numpy() - 1).astype(int) for side in (a, b))
    neither = (own != 0) & (other != 0)
    counts = np.zeros((3, 3), dtype=np.int64)
    if len(own):
        counts = confusion_matrix(own, other, labels=_VERDICTS)
    names = ["loss", "tie", "win"]
    return JudgeAgreement(
        bootstrap_mean(own == other, seed=0),
        _kappa(own, other, counts),
        bootstrap_mean((own == other)[neither], seed=0),
        pd.DataFrame(counts, index=names, columns=names),
        report,
    )


def _kappa(own: np.ndarray, other: np.ndarray, counts: np.ndarray, n: int = 2000) -> MeanInterval:
    size = len(own)
    if size == 0:
        return MeanInterval(math.nan, math.nan, math.nan, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one verdict throughout: NaN, which is said
        value = float(cohen_kappa_score(own, other, labels=_VERDICTS))
    # Drawing prompts with replacement is drawing the table's counts from a multinomial.
    rng = np.random.default_rng(0)
    tables = rng.multinomial(size, counts.ravel() / size, n).reshape(n, 3, 3) / size
    observed = np.trace(tables, axis1=1, axis2=2)
    chance = (tables.sum(1) * tables.sum(2)).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        kappas = (observed - chance) / (1 - chance)
    kappas = kappas[np.isfinite(kappas)]
    if math.isnan(value) or not len(kappas):
        return MeanInterval(math.nan, math.nan, math.nan, size)
    low, high = np.quantile(kappas, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return MeanInterval(value, float(low), float(high), size)
