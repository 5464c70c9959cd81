"""Five questions that people open a run with: each answered by one interval, or not known.

An answer is yes or no where the whole 95 % interval lies on one side of a bound that was set
beforehand, and undecided where the bound lies in it; it is unknown only where the run has nothing
to measure it by. A question that is not about the run's objective is not asked of it.

The audit's import takes longer than the first page may: the functions that need it do that only
when they are called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from plc_core.analysis.noise import NoiseEstimate
from plc_core.analysis.statistics import LEVEL, MeanInterval, auroc
from plc_core.evaluation.sides import mean_over_benchmarks, sides_against
from plc_core.typography import minus

if TYPE_CHECKING:
    from plc_core.analysis import audit
    from plc_core.analysis.calibration import Calibration

Said: TypeAlias = Literal["yes", "no", "undecided", "unknown", "unasked"]

EVEN, CHANCE, NOISY = 0.5, 0.5, 0.05
CALIBRATED = 0.05
"""A forecast that is off by less than this on average (ECE) passes for a probability."""

UNMARKED = "no label of this run is known to be reversed"
GAIN = "AUROC gain over"
_STATES = {"clean": "clean pairs", "flip": "reversed pairs"}
_DRAWS = 2_000
_ORDER = ("no", "unknown", "undecided", "yes", "unasked")
_AREAS = ("ties", "others", "score", "auroc", "low", "high", "n_tie", "n_other")


@dataclass(frozen=True)
class Answer:
    """The interval that answers a question, and the bound that it is held against.

    `above` says on which side of the bound a yes lies; `of` what was measured, in words, and
    `beside` what else was, which decides nothing. All numbers are NaN where nothing could be
    measured, or the question was not `asked` of such a run: then `of` says why.
    """

    of: str
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    bound: float = 0.0
    above: bool = True
    beside: str = ""
    asked: bool = True

    @property
    def said(self) -> Said:
        """Yes or no, undecided where the interval holds the bound, unknown without an interval,
        and unasked where the question does not apply.
        """
        if not self.asked:
            return "unasked"
        if math.isnan(self.low) or math.isnan(self.high):
            return "unknown"
        if self.above:
            yes, no = self.low > self.bound, self.high <= self.bound
        else:
            yes, no = self.high < self.bound, self.low >= self.bound
        return "yes" if yes else "no" if no else "undecided"


def weakest(answers: Iterable[Answer]) -> Answer:
    """The answer that decides a question of several parts: all must be yes, one no is enough."""
    return min(answers, key=lambda a: (_ORDER.index(a.said), (a.value - a.bound)))


def beats_dpo(judged: pd.DataFrame, run: str, control: str) -> Answer:
    """Whether a run wins over the DPO run that moved as far, the decodings weighing alike.

    `judged` is the table of `judged_answers.judged`. Raises JoinError where prompts do not meet.
    """
    both = judged[judged["method"].isin([run, control])]
    sides = sides_against(both, control, ("benchmark", "decoding"), incomplete="common")
    wins = {f"{side.where['decoding']}": side.answers["win"] for side in sides}
    found = mean_over_benchmarks(wins)
    of = f"win rate against {control}, ties one half"
    return Answer(of, found.mean, found.low, found.high, EVEN)


def ranks_better(visits: pd.DataFrame, pairs: pd.DataFrame) -> Answer:
    """Whether q_flip ranks reversed labels better than the margin alone and than the lengths.

    The stronger rival alone decides; how q_flip does against the other is said beside it.
    """
    from plc_core.analysis import audit

    if not audit.knows_flips(pairs):
        return Answer(UNMARKED)
    table = audit.join_last_visits(visits, pairs)
    clean, flip = audit.group_names(pairs)[:2]
    table = table[audit.groups(table).isin([clean, flip]) & table["q_flip"].notna()]
    positive = (audit.groups(table) == flip).to_numpy()
    rivals = {"the margin": -table["margin"]}
    if (more := audit.longer(table)) is not None:
        rivals["length"] = audit.against_length(more)
    answers = []
    for name, score in rivals.items():
        found = auroc_difference(table["q_flip"], score, positive)
        answers.append(Answer(f"{GAIN} {name}", found.mean, found.low, found.high))
    decided = weakest(answers)
    beside = [
        f"Against {answer.of.removeprefix(GAIN).strip()} alone: "
        + minus(f"{answer.value:+.3f} [{answer.low:+.3f}, {answer.high:+.3f}]")
        for answer in answers
        if answer is not decided and not math.isnan(answer.low)
    ]
    return replace(decided, beside=beside[0]) if beside else decided


def auroc_difference(
    one: Iterable[float], other: Iterable[float], positive: Iterable[bool]
) -> MeanInterval:
    """By how much `one` ranks the positives better than `other`, both scores of the same items.

    All 1-d of one length; items that lack a score are left out. n is of all items. The interval
    is DeLong's for correlated areas (DeLong et al. 1988, equation 8), NaN below two positives or
    two negatives.
    """
    scores = np.stack([np.asarray(s, np.float64) for s in (one, other)])
    known = np.isfinite(scores).all(axis=0)
    labels, scores = np.asarray(positive, bool)[known], scores[:, known]
    m, n = int(labels.sum()), int((~labels).sum())
    if min(m, n) < 2:
        return MeanInterval(math.nan, math.nan, math.nan, m + n)
    above, below = zip(*(_placements(s[labels], s[~labels]) for s in scores), strict=True)
    gap_above, gap_below = above[0] - above[1], below[1] - below[0]
    difference = float(gap_above.mean())
    error = math.sqrt(gap_above.var(ddof=1) / m + gap_below.var(ddof=1) / n)
    reach = float(scipy.stats.norm.ppf((1 + LEVEL) / 2)) * error
    return MeanInterval(difference, difference - reach, difference + reach, m + n)


def _placements(above: NDArray, below: NDArray) -> tuple[NDArray, NDArray]:
    """The share of `below` that each of `above` exceeds, and the other way; equal ones half."""
    ranks = scipy.stats.rankdata(np.concatenate([above, below]))
    own, others = scipy.stats.rankdata(above), scipy.stats.rankdata(below)
    m = len(above)
    return (ranks[:m] - own) / len(below), (ranks[m:] - others) / m


def is_probability(visits: pd.DataFrame, pairs: pd.DataFrame) -> Answer:
    """Whether q_flip is off by less than `CALIBRATED` on average as a forecast of reversed labels.

    The calibration error of ten bins, with a bootstrap over pairs.
    """
    from plc_core.analysis import audit

    if not audit.knows_flips(pairs):
        return Answer(UNMARKED)
    found = audit.flip_calibration(visits, pairs)
    low, high = ece_interval(found)
    of = "mean error (ECE)"
    return Answer(of, found.ece, low, high, CALIBRATED, above=False)


def ece_interval(found: Calibration) -> tuple[float, float]:
    """The basic bootstrap interval of a calibration error over pairs, at least 0.

    Pairs of a bin and outcome are drawn alike: with their bin's mean forecast. Chance adds to the
    error of every draw as it did to the error itself, which the basic interval takes off again.
    """
    table = found.table[found.table["n"] > 0]
    hits = (table["share"] * table["n"]).round().to_numpy(np.int64)
    cells = np.concatenate([hits, table["n"].to_numpy(np.int64) - hits])
    gap = np.concatenate([table["forecast"] - 1, table["forecast"]])
    drawn = np.random.default_rng(0).multinomial(found.n, cells / found.n, _DRAWS) * gap
    errors = np.abs(drawn[:, : len(table)] + drawn[:, len(table) :]).sum(axis=1) / found.n
    tail = (1 - LEVEL) / 2
    low, high = 2 * found.ece - np.quantile(errors, [1 - tail, tail])
    return max(float(low), 0.0), float(high)


def separates_ties(visits: pd.DataFrame, pairs: pd.DataFrame) -> Answer:
    """Whether q_tie is higher for ties than for clean and for reversed pairs; see `tie_areas`."""
    areas = tie_areas(visits, pairs)
    if areas.empty:
        return Answer("this run has neither known ties nor scores to find them by")
    answers = []
    for row in areas[areas["score"] == "q_tie"].to_dict("records"):
        others = _STATES.get(row["others"], row["others"])
        of = f"AUROC against {others}"
        answers.append(Answer(of, row["auroc"], row["low"], row["high"], CHANCE))
    return weakest(answers)


def tie_areas(visits: pd.DataFrame, pairs: pd.DataFrame, share: float = 0.2) -> pd.DataFrame:
    """How well q_tie, and the margin's size alone, tell ties from clean and from reversed pairs.

    Ties are the pairs of the true state tie; where no state is known, injected ties; else the
    pairs whose scores differ least, against those whose scores differ most (`share` of each).

    Returns:
        One row a comparison and score: ties, others, score, auroc, low, high, n_tie, n_other;
        empty where the run has none of these.
    """
    from plc_core.analysis import audit

    table = audit.join_last_visits(visits, pairs)
    table = table[table["q_tie"].notna()].reset_index(drop=True)
    ties, tie, others = _ties(table, audit.has_oracle(pairs), audit.knows_flips(pairs), share)
    rows = []
    for name, group in others.items():
        both = tie | group
        for score, values in (("q_tie", table["q_tie"]), ("−|margin|", -table["margin"].abs())):
            area = auroc(values[both], tie[both])
            rows.append(
                {"ties": ties, "others": name, "score": score, "auroc": area.value}
                | {"low": area.low, "high": area.high}
                | {"n_tie": area.n_positive, "n_other": area.n_negative}
            )
    return pd.DataFrame(rows, columns=list(_AREAS))


def gap_areas(gaps: audit.TieSelectivity) -> pd.DataFrame:
    """The rows of `tie_areas` for the pairs of small against those of large score gaps, a source's
    tests of `audit.tie_selectivity`; the answers' likeness in length beside them where known.
    """
    tests = pd.concat([gaps.tests, gaps.lengths])
    # Ties have the smaller margin and the smaller difference: the other way round.
    turned = tests["measure"] != "q_tie"
    names = {"q_tie": "q_tie", "abs_margin": "−|margin|", "length_difference": "similar lengths"}
    return pd.DataFrame(
        {
            "ties": f"smallest {gaps.share:.0%} of score gaps",
            "others": f"largest {gaps.share:.0%}",
            "score": tests["measure"].map(names),
            "auroc": tests["auroc"].where(~turned, 1 - tests["auroc"]),
            "low": tests["auroc_low"].where(~turned, 1 - tests["auroc_high"]),
            "high": tests["auroc_high"].where(~turned, 1 - tests["auroc_low"]),
            "n_tie": tests["n_a"],
            "n_other": tests["n_b"],
        }
    )


def _ties(
    table: pd.DataFrame, oracle: bool, marked: bool, share: float
) -> tuple[str, pd.Series, dict[str, pd.Series]]:
    """What counts as ties, in words; which pairs are; and the groups that they are told from."""
    if oracle:
        state = table["oracle_state"]
        return "true ties", state == "tie", {s: state == s for s in ("clean", "flip")}
    flipped = table["flipped"].eq(True) if marked else pd.Series(False, index=table.index)
    if "injected_tie" in table and table["injected_tie"].eq(True).any():
        tie = table["injected_tie"].eq(True)
        return "injected ties", tie, _by_marker(~tie, flipped, "")
    keys = table.reindex(columns=["pair_id", "source", "score_chosen", "score_rejected"])
    gap = keys["score_chosen"].astype("float64") - keys["score_rejected"].astype("float64")
    if not gap.notna().any():
        return "", flipped & False, {}
    keys["source"] = keys["source"].astype("object").fillna("unknown")
    from plc_core.data.slices import slices_of

    part = slices_of(keys, share).table["slice"]
    others = _by_marker(part == "high", flipped, "large gaps")
    return f"smallest {share:.0%} of score gaps", part == "low", others


def _by_marker(group: pd.Series, flipped: pd.Series, name: str) -> dict[str, pd.Series]:
    """A group's pairs whose label was reversed apart from the others, where there are any."""
    if not flipped.any():
        return {name or "other pairs": group}
    end = f", {name}" if name else ""
    return {f"unmarked{end}": group & ~flipped, f"marked{end}": group & flipped}


def noisy(found: NoiseEstimate | None) -> Answer:
    """Whether more than `NOISY` of the labels are reversed, by the run's own estimate."""
    if found is None:
        return Answer("no estimate yet: it takes 24 steps and 256 pairs of the first epoch")
    of = "of labels reversed"
    return Answer(of, found.rate, found.low, found.high, NOISY)
