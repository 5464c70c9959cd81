"""Whether a forecast means what it says: reliability, Brier score, log loss, calibration error.

A forecast is a probability of an event, one a pair, beside whether the event is true. Scores are
given beside those of a constant forecast of the base rate, which knows how often the event is true
and nothing about any pair: a forecast that scores worse is worth less than that one number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.metrics import brier_score_loss, log_loss

from plc_core.analysis.statistics import Floats, format_number, wilson


@dataclass(frozen=True)
class Calibration:
    """How far a forecast is from a probability.

    `table` has one row a bin of equal width up to the highest forecast that can be: bin (its
    middle), n, forecast (its mean),
    share (how often the event was true), low, high (Wilson's 95 % interval of the share).
    `brier` and `nll` (nats) stand beside those of the base rate; `ece` is the mean absolute gap of
    the bins, weighted by n. All are NaN where n = 0. `missing` forecasts were NaN.
    """

    table: pd.DataFrame
    n: int
    missing: int
    mean: float
    base_rate: float
    brier: float
    brier_base: float
    nll: float
    nll_base: float
    ece: float

    def __str__(self) -> str:
        if self.n and self.brier_base == 0:
            return (
                f"nothing to compare it with: of {self.n:,} pairs none, or all, are known to be so"
            )
        return (
            f"Brier {format_number(self.brier)} (base rate {format_number(self.brier_base)}), "
            f"NLL {format_number(self.nll)} (base rate {format_number(self.nll_base)}), "
            f"ECE {format_number(self.ece)} (n={self.n:,})"
        )

    def sentence(self, forecast: str, event: str) -> str:
        """What this says of `forecast`, as "q_flip", about `event`, as "flipped"."""
        if not self.n:
            return f"{forecast} cannot be compared with what is {event}: n=0."
        worse = [
            name
            for name, own, base in (
                ("Brier score", self.brier, self.brier_base),
                ("log loss", self.nll, self.nll_base),
            )
            if own > base
        ]
        verdict = f"both scores beat a constant forecast of the base rate {self.base_rate:.3f}"
        if worse:
            verdict = (
                f"by its {' and its '.join(worse)} it is worth less than a constant forecast of "
                f"the base rate {self.base_rate:.3f}"
            )
        return (
            f"{forecast} is {self.mean:.3f} on average where {100 * self.base_rate:.1f} % are "
            f"{event}, off by {self.ece:.3f} (ECE); {verdict} (n={self.n:,})."
        )


def calibrate(
    forecast: Iterable[float], event: Iterable[bool], bins: int = 10, top: float = 1.0
) -> Calibration:
    """Compare `forecast` with whether `event` was true, both 1-d over the same pairs.

    Args:
        bins: of equal width between 0 and `top`.
        top: the highest forecast that can be; higher ones are in the last bin.

    Raises:
        ValueError: for unequal lengths, or forecasts outside [0, 1] by more than rounding.
    """
    values = np.asarray(pd.Series(forecast), dtype=np.float64)
    true = np.asarray(pd.Series(event), dtype=bool)
    if values.shape != true.shape:
        raise ValueError(f"{len(values)} forecasts cannot be of {len(true)} pairs.")
    known = ~np.isnan(values)
    missing = int((~known).sum())
    values, true = values[known], true[known]
    if len(values) and (values.min() < -1e-6 or values.max() > 1 + 1e-6):
        raise ValueError(
            f"A forecast is a probability; these lie in [{values.min():g}, {values.max():g}]."
        )
    values = values.clip(0, 1)
    table = _bins(values, true, bins, top)
    n = len(values)
    if not n:
        return Calibration(table, 0, missing, *[math.nan] * 7)
    base = float(true.mean())
    gaps = (table["forecast"] - table["share"]).abs() * table["n"] / n
    return Calibration(
        table,
        n,
        missing,
        float(values.mean()),
        base,
        brier=float(brier_score_loss(true, values, pos_label=True)),
        brier_base=base * (1 - base),
        nll=float(log_loss(true, values, labels=[False, True])),
        nll_base=float(log_loss(true, np.full(n, base), labels=[False, True])),
        ece=float(gaps.sum()),
    )


def _bins(values: Floats, true: np.ndarray, bins: int, top: float) -> pd.DataFrame:
    place = np.minimum((values / top * bins).astype(int), bins - 1)
    rows = []
    for number in range(bins):
        inside = place == number
        n, hits = int(inside.sum()), int(true[inside].sum())
        low, high = wilson(hits, n)
        rows.append(
            {
                "bin": top * (number + 0.5) / bins,
                "n": n,
                "forecast": values[inside].mean() if n else math.nan,
                "share": hits / n if n else math.nan,
                "low": low,
                "high": high,
            }
        )
    return pd.DataFrame(rows)
