"""A test as one sentence: what was found, how large it is, how sure, and over how many."""

from __future__ import annotations

import math

from plc_core.analysis.statistics.means import LEVEL
from plc_core.analysis.statistics.ranks import MannWhitney, Side, Spearman
from plc_core.analysis.statistics.text import format_p
from plc_core.analysis.statistics.trends import Jonckheere


def read_aloud(
    test: MannWhitney | Jonckheere | Spearman,
    measure: str,
    first: str = "",
    second: str = "",
    adjusted: float | None = None,
) -> str:
    """A sentence on `test`, which says as much where nothing was found or could be tested.

    Args:
        measure: what was compared, as "q_tie".
        first, second: for Mann-Whitney the names of groups a and b; for Spearman `second` is the
            other measure. The groups of a trend have their names.
        adjusted: the p value after Holm's correction, which then decides and is the one named.
    """
    if isinstance(test, MannWhitney):
        return _difference(test, measure, first, second, adjusted)
    if isinstance(test, Jonckheere):
        return _trend(test, measure, adjusted)
    return _association(test, measure, second, adjusted)


def _difference(test: MannWhitney, measure: str, a: str, b: str, adjusted: float | None) -> str:
    if not test.n_a or not test.n_b:
        nobody = " and ".join(name for name, n in ((a, test.n_a), (b, test.n_b)) if not n)
        return f"{measure} cannot be compared: {nobody} has n=0."
    found = _found(test.p, adjusted)
    # Of a test of one side the other side is never a finding.
    if test.side == "two-sided":
        word = "higher" if test.auroc > 0.5 else "lower"
    else:
        word = {"greater": "higher", "less": "lower"}[test.side]
    claim = (
        f"{measure} is {word} in {a} than in {b}"
        if found
        else f"No difference in {measure} between {a} and {b} is shown"
        if test.side == "two-sided"
        else f"It is not shown that {measure} is {word} in {a} than in {b}"
    )
    bounds = "" if math.isnan(test.auroc_low) else f" [{test.auroc_low:.3f}, {test.auroc_high:.3f}]"
    return (
        f"{claim} (AUROC {test.auroc:.3f}{bounds}, "
        f"{_p(test.p, test.log10_p, adjusted, test.side)}, n={test.n_a:,} and {test.n_b:,})."
    )


def _trend(test: Jonckheere, measure: str, adjusted: float | None) -> str:
    order = ", ".join(f"{name} (n={n:,})" for name, n in test.n.items())
    if math.isnan(test.J):
        return f"No trend of {measure} can be tested over {order or 'no groups'}."
    if test.side == "two-sided":
        word = "rises" if test.concordance > 0.5 else "falls"
    else:
        word = {"greater": "rises", "less": "falls"}[test.side]
    found = _found(test.p, adjusted)
    claim = f"{measure} {word}" if found else f"{measure} is not shown to {word.removesuffix('s')}"
    return (
        f"{claim} over {order}: the later of two groups has the larger value in "
        f"{_percent(test.concordance, test.low, test.high)} of cases "
        f"({_p(test.p, test.log10_p, adjusted, test.side)})."
    )


def _association(test: Spearman, measure: str, other: str, adjusted: float | None) -> str:
    if math.isnan(test.rho):
        return f"No correlation of {measure} with {other} can be computed (n={test.n:,})."
    word = "rises" if test.rho > 0 else "falls"
    claim = f"{measure} {word} with {other}"
    if not _found(test.p, adjusted):
        claim = f"No correlation of {measure} with {other} is shown"
    bounds = "" if math.isnan(test.low) else f" [{test.low:+.3f}, {test.high:+.3f}]"
    return (
        f"{claim}: Spearman {test.rho:+.3f}{bounds} "
        f"({_p(test.p, test.log10_p, adjusted, 'two-sided')}, n={test.n:,})."
    )


def _found(p: float, adjusted: float | None) -> bool:
    return (p if adjusted is None else adjusted) < 1 - LEVEL


def _percent(share: float, low: float, high: float) -> str:
    bounds = "" if math.isnan(low) else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{100 * share:.1f} %{bounds}"


def _p(p: float, log10_p: float, adjusted: float | None, side: Side) -> str:
    sides = "" if side == "two-sided" else ", one-sided"
    if adjusted is not None:
        return f"{format_p(adjusted)} after Holm's correction{sides}"
    return f"{format_p(p, log10_p)}{sides}"
