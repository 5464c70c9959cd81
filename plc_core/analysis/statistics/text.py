"""How numbers read: decimals, and p values that became too small for a float."""

from __future__ import annotations

import math
import sys

import scipy


def format_number(value: float, digits: int = 3) -> str:
    """`value` with `digits` decimals, or "n/a" where it is not a finite number."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "n/a"


def format_interval(value: float, low: float, high: float) -> str:
    """A number with its interval, as "0.523 [0.491, 0.554]"."""
    return f"{format_number(value)} [{format_number(low)}, {format_number(high)}]"


def format_p(p: float, log10_p: float = math.nan) -> str:
    """A p value as text; one that underflowed to zero becomes a bound, never "0".

    `log10_p` is its decimal logarithm, which is shown with the bound where it is known.
    """
    if math.isnan(p):
        return "p = n/a"
    if p < sys.float_info.min:
        power = f" (10^{log10_p:,.0f})" if math.isfinite(log10_p) else ""
        return f"p < {sys.float_info.min:.1e}{power}"
    return f"p = {p:.3f}" if p >= 0.001 else f"p = {p:.1e}"


def log10_p(p: float, z: float, sides: int) -> float:
    """log10 of a p value that may have underflowed: of the normal tail beyond `z`, then.

    Args:
        z: the standardised statistic, positive in the direction that was tested.
        sides: 1, or 2 for a two-sided test.
    """
    if math.isnan(p):
        return math.nan
    if p >= sys.float_info.min:
        return math.log10(p)
    return float(scipy.stats.norm.logsf(z) + math.log(sides)) / math.log(10)
