"""Win rates as they would be between answers of equal length.

The model is the one published as AlpacaEval's length-controlled win rate (Dubois et al. 2024,
arXiv 2404.04475, section 3): a logistic regression of the verdict on the method, on tanh of the
standardised difference in length, and, where it is known, on the instruction's difficulty; the
win rate is then predicted at a difference of 0.

alpaca_eval 0.6.6's own function cannot run here: it downloads instruction difficulties and
annotations of two "gamed" models with every call, and these exist for AlpacaEval's 805
instructions against its own baseline only. What follows is its formula without them
("length_controlled_minimal", and "length_controlled_noreg" with a difficulty of the caller's),
fitted as there: L1-penalised, no free intercept, the penalty chosen by five-fold cross-validation.
On the same verdicts alpaca_eval's fit gives the same numbers: to all digits in the tests, and to
0.01 points where liblinear stops elsewhere.

Its penalty gives a number for any verdicts, also where they do not say what it is: where the longer
answer always wins, where all verdicts are one, or where all answers are longer by as much. There is
then no maximum of the likelihood at equal lengths (Albert and Anderson 1984), and none is given.
Intervals are those of the fit without a penalty.

`length_controlled` is for one comparison; `length_controlled_cells` for a whole evaluation.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize, stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from statsmodels.genmod.families import Binomial
from statsmodels.genmod.generalized_linear_model import GLM

from plc_core.analysis.statistics import LEVEL, Floats, MeanInterval
from plc_core.evaluation.comparison import CELL, Evaluation
from plc_core.evaluation.results import interval
from plc_core.evaluation.sides import LENGTHS
from plc_core.evaluation.win_rate import JoinError, join_prompts

_FOLDS = 5
_PENALTIES = np.logspace(-4, 4, 10)  # C of scikit-learn: the inverse of the penalty

_UNKNOWN = "not identified"
_COLLAPSED = "the penalty left nothing of the data: the 50 % is its answer, the interval is theirs"
_PULLED = "the penalty holds it outside the interval, which is of a fit without one"


class LengthControl(NamedTuple):
    """A length-controlled win rate, and what it was made from; shares, not percent."""

    share: MeanInterval  # at equal lengths, its 95 % interval without a penalty; NaN: see note
    raw: float
    length_effect: float  # logit of a win for tanh(difference / deviation) = 1
    mean_difference: float  # in the unit of the lengths given, own minus baseline
    note: str  # what a reader must know: that it is not identified, and why; or empty

    def __str__(self) -> str:
        share = self.share
        if not share.n:
            return "n/a (n=0)"
        raw = f"{100 * self.raw:.1f} % as they are (n={share.n})"
        if np.isnan(share.mean):
            return f"{raw}; {self.note}"
        return (
            f"{100 * share.mean:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}] at equal "
            f"lengths, {raw}"
        ) + (f"; {self.note}" if self.note else "")


def length_controlled(
    verdicts: pd.Series,
    lengths: pd.Series,
    baseline_lengths: pd.Series,
    difficulty: pd.Series | None = None,
) -> LengthControl:
    """The win rate at equal lengths; every series is indexed by prompt id.

    Args:
        verdicts: the share of a win, from 0 to 1: 1 for a win, 0.5 for a tie, 0 for a loss.
        lengths, baseline_lengths: of both answers, in characters as AlpacaEval does, or tokens.
        difficulty: of each instruction, on any scale; None leaves it out.

    Returns:
        The published fit, and the 95 % interval of the fit without a penalty (Wald's, on the
        logit; a tie counts there as half a win and half a loss, which makes it rather wide). Both
        are NaN, and the note says why, where the verdicts do not identify them.

    Raises:
        JoinError: where the series do not cover the same prompts, a number is missing, or a
            verdict is no share.
    """
    won, own = _joined(verdicts, lengths, "lengths")
    other = _joined(verdicts, baseline_lengths, "baseline_lengths")[1]
    size = len(won)
    if size == 0:
        return LengthControl(_missing(0), np.nan, np.nan, np.nan, "")
    if won.min() < 0 or won.max() > 1:
        odd = won.min() if won.min() < 0 else won.max()
        raise JoinError(f"A verdict is a share from 0 to 1; one is {odd:g}.")
    difference = own - other
    spread = difference.std(ddof=1) if size > 1 else 0.0
    # Of one difference throughout, tanh(difference / 0) is its sign.
    scaled = np.tanh(difference / spread) if spread else np.sign(difference)
    features = [scaled, np.ones(size)]
    if difficulty is not None:
        features.insert(1, _joined(verdicts, difficulty, "difficulty")[1])
    design = np.column_stack(features)
    raw, mean_difference = float(won.mean()), float(difference.mean())
    ends = None
    if not (why := _unidentified(design, won)) and (ends := _bounds(design, won)) is None:
        why = "the fit did not converge"
    if ends is None:
        note = f"{_UNKNOWN}: {why}"
        return LengthControl(_missing(size), raw, np.nan, mean_difference, note)
    weights, converged = _fit(design, won, chosen_penalty(design, won))
    share = MeanInterval(_equal_lengths(design, weights), *ends, size)
    notes = []
    if (won == 0.5).all():
        notes.append(f"all {size} verdicts are a tie")
    elif not weights.any():
        notes.append(_COLLAPSED)
    elif not share.low <= share.mean <= share.high:
        notes.append(_PULLED)
    if not converged:
        notes.append("the published fit did not converge")
    if difference.min() > 0 or difference.max() < 0:
        side = "longer" if difference.min() > 0 else "shorter"
        notes.append(f"every answer is {side} than the baseline's: extrapolated")
    return LengthControl(share, raw, float(weights[0]), mean_difference, "; ".join(notes))


def length_controlled_cells(evaluation: Evaluation, baseline: str | None = None) -> pd.DataFrame:
    """Win rates at equal lengths in characters, one row a cell, method and seed.

    Returns:
        `CELL`, seed, method, n; win_rate, lc, lc_low, lc_high (percent; NaN where they are not
        identified); characters (mean difference to the baseline's answers), note (why there is no
        number, how it must be read, which prompts were left out). Verdicts of a pairwise judge,
        which are against the evaluation's baseline alone, are rows of the judge "…, side by side".

    Raises:
        JoinError: where two sides do not answer the same prompts.
    """
    against = baseline or evaluation.baseline
    found = evaluation.sides(against) if len(evaluation.judged) else []
    if against == evaluation.baseline:
        found += [
            side._replace(where=side.where | {"judge": f"{side.where['judge']}, side by side"})
            for side in evaluation.verdict_sides()
        ]
    if not found:
        raise JoinError(f"No method but the baseline {against!r} was judged.")
    rows = []
    for where, answers, join in found:
        control = length_controlled(answers["win"], *(answers[name] for name in LENGTHS))
        lc, low, high = (100 * value for value in control.share[:3])
        notes = ["" if join.complete else str(join), control.note]
        rows.append(
            {name: where[name] for name in (*CELL, "seed", "method")}
            | {"n": control.share.n, "win_rate": 100 * control.raw}
            | {"lc": lc, "lc_low": low, "lc_high": high, "characters": control.mean_difference}
            | {"note": "; ".join(filter(None, notes))}
        )
    return pd.DataFrame(rows)


def lengths_shown(cells: pd.DataFrame) -> pd.DataFrame:
    """Length-controlled cells as text: a row a method, for each judge and decoding the win rate as
    it is and at equal lengths, with its 95 % interval, and the prompts that it rests on; over
    benchmarks their mean, over seeds mean ± sd. Notes stand in a column beside their numbers.
    """
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for key, own in cells.groupby(["method", "judge", "decoding"], sort=False):
        method, judge, decoding = map(str, key)
        row = rows.setdefault(method, {})
        head = f"{judge}, {decoding}"
        row[head, "WR"] = f"{own['win_rate'].mean():.1f}"
        unknown = int(own["lc"].isna().sum())
        # A mean over the cells that happen to have a number would be of other cells than the WR.
        known = interval(own, "lc", "lc_low", "lc_high")
        of = f" in {unknown} of {len(own)} cells" if len(own) > 1 else ""
        row[head, "WR at equal lengths"] = f"{_UNKNOWN}{of}" if unknown else known
        row[head, "prompts"] = f"{own['n'].sum():,}"
        row[head, "characters longer"] = f"{own['characters'].mean():+.1f}"
        if cells["note"].any():
            notes = [note.replace(f"{_UNKNOWN}: ", "") for note in own["note"] if note]
            row[head, "note"] = "; ".join(dict.fromkeys(notes))
    frame = pd.DataFrame(list(rows.values()), index=pd.Index(list(rows), name="method"))
    columns = pd.MultiIndex.from_tuples([*frame.columns.to_flat_index()])
    return frame.set_axis(columns, axis=1).fillna("–")


def _joined(verdicts: pd.Series, other: pd.Series, name: str) -> tuple[Floats, Floats]:
    left, right, _ = join_prompts(verdicts, other, names=("verdicts", name))
    return left.to_numpy(), right.to_numpy()


def _missing(size: int) -> MeanInterval:
    return MeanInterval(np.nan, np.nan, np.nan, size)


# ---- the fit: a design has a row a prompt: tanh of the length, the difficulty if known, and 1 ----


def _unidentified(design: Floats, won: Floats) -> str:
    """Why the likelihood has no maximum at equal lengths; empty where it has one.

    It grows without end along every w with x w >= 0 for wins, <= 0 for losses and 0 for ties. The
    win rate at equal lengths is not identified if one of these moves more than the length's weight:
    then it runs to 0 or 1, or anywhere, as the penalty pleases.
    """
    scaled = design / np.maximum(np.abs(design).max(axis=0), 1e-12)
    towards = np.where(won == 1, -1.0, 1.0)[:, None] * scaled
    decided = (won == 0) | (won == 1)
    rules: dict[str, Any] = {"bounds": (-1, 1)}
    if decided.any():
        rules |= {"A_ub": towards[decided], "b_ub": np.zeros(int(decided.sum()))}
    if not decided.all():
        rules |= {"A_eq": scaled[~decided], "b_eq": np.zeros(int((~decided).sum()))}
    width = design.shape[1]
    ways = [sign * np.eye(width)[place] for place in range(1, width) for sign in (1, -1)]
    if all(optimize.linprog(-way, **rules).fun > -1e-6 for way in ways):
        return ""
    if len(set(won)) == 1 and decided.all():
        return f"all {len(won)} verdicts are a {'win' if won[0] else 'loss'}"
    if np.linalg.matrix_rank(scaled, tol=1e-6) < width:
        return "the differences in length do not vary"
    what = "the length separates" if width == 2 else "length and difficulty separate"
    return f"{what} wins from losses"


def _bounds(design: Floats, won: Floats) -> tuple[float, float] | None:
    """The 95 % interval of the share at equal lengths, without a penalty; None without a fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a length's weight without end, which need not matter
        found = GLM(won, design, family=Binomial()).fit()
    even = design * ([0] + [1] * (design.shape[1] - 1))
    shares = 1 / (1 + np.exp(-(even @ found.params)))
    share = shares.mean()
    # Of the logit of the mean share, by the delta method; without difficulty it is a weight.
    slope = (shares * (1 - shares)) @ even / len(even) / (share * (1 - share))
    error = float(np.sqrt(slope @ found.cov_params() @ slope))
    if not found.converged or not np.isfinite(error):
        return None
    reach = stats.norm.ppf((1 + LEVEL) / 2) * error
    low, high = 1 / (1 + np.exp(-(np.log(share / (1 - share)) + np.array([-reach, reach]))))
    return float(low), float(high)


def _equal_lengths(design: Floats, weights: Floats) -> float:
    """The mean predicted share with the length's column set to 0."""
    return float((1 / (1 + np.exp(-(design[:, 1:] @ weights[1:])))).mean())


def _fit(design: Floats, won: Floats, penalty: float) -> tuple[Floats, bool]:
    """Weights of the columns, and whether they converged.

    A share counts as a win and a loss of that much weight.
    """
    # l1_ratio=1 is the L1 penalty; liblinear is what AlpacaEval uses, and exact at this size.
    model: Any = LogisticRegression(
        C=penalty,
        l1_ratio=1.0,
        solver="liblinear",
        fit_intercept=False,
        max_iter=1000,
        random_state=123,
    )
    outcome = np.repeat([1, 0], len(won))
    weight = np.concatenate([won, 1 - won])
    present = weight > 0
    if len(set(outcome[present])) == 1:
        # liblinear needs both outcomes: the one that never was gets next to no weight.
        weight[~present] = 1e-9
        present[:] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # returned
        rows = np.vstack([design, design])[present]
        model.fit(rows, outcome[present], sample_weight=weight[present])
    return np.asarray(model.coef_[0], dtype=np.float64), bool(model.n_iter_ < model.max_iter)


def chosen_penalty(design: Floats, won: Floats) -> float:
    """The C whose predictions of left-out prompts have the smallest log-loss."""
    folds = np.arange(len(won)) % min(_FOLDS, len(won))
    if len(won) < 2 * _FOLDS:  # too few to choose from
        return 1.0
    losses = np.zeros(len(_PENALTIES))
    for place, penalty in enumerate(_PENALTIES):
        for fold in range(_FOLDS):
            out = folds == fold
            logits = design[out] @ _fit(design[~out], won[~out], float(penalty))[0]
            losses[place] += (np.logaddexp(0, logits) - won[out] * logits).sum()
    return float(_PENALTIES[losses.argmin()])
