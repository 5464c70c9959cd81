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

`length_controlled` is for one comparison; `length_controlled_cells` for a whole evaluation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from plc_core.analysis.statistics import LEVEL, Floats, MeanInterval
from plc_core.evaluation.judged import CELL, Evaluation
from plc_core.evaluation.win_rate import JoinError, join_prompts, joined

_FOLDS = 5
_PENALTIES = np.logspace(-4, 4, 10)  # C of scikit-learn: the inverse of the penalty


class LengthControl(NamedTuple):
    """A length-controlled win rate, and what it was made from; shares, not percent."""

    share: MeanInterval  # at equal lengths; bootstrap over prompts, the penalty held, if weak
    raw: float
    length_effect: float  # logit of a win for tanh(difference / deviation) = 1
    mean_difference: float  # in the unit of the lengths given, own minus baseline
    collapsed: bool  # the penalty put every weight to 0, as it may with few prompts

    def __str__(self) -> str:
        share = self.share
        if not share.n:
            return "n/a (n=0)"
        return (
            f"{100 * share.mean:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}] at equal "
            f"lengths, {100 * self.raw:.1f} % as they are (n={share.n})"
        ) + ("; the 50 % is the penalty's answer, not the data's" if self.collapsed else "")


def length_controlled(
    verdicts: pd.Series,
    lengths: pd.Series,
    baseline_lengths: pd.Series,
    difficulty: pd.Series | None = None,
    resamples: int = 500,
) -> LengthControl:
    """The win rate at equal lengths; every series is indexed by prompt id.

    Args:
        verdicts: the share of a win, from 0 to 1: 1 for a win, 0.5 for a tie, 0 for a loss.
        lengths, baseline_lengths: of both answers, in characters as AlpacaEval does, or tokens.
        difficulty: of each instruction, on any scale; None leaves it out.
        resamples: of the bootstrap over prompts.

    Raises:
        JoinError: where the series do not cover the same prompts, a number is missing, or a
            verdict is no share.
    """
    won, own, _ = join_prompts(verdicts, lengths, names=("verdicts", "lengths"))
    _, other, _ = join_prompts(verdicts, baseline_lengths, names=("verdicts", "baseline_lengths"))
    size = len(won)
    if size == 0:
        nothing = MeanInterval(np.nan, np.nan, np.nan, 0)
        return LengthControl(nothing, np.nan, np.nan, np.nan, False)
    if won.min() < 0 or won.max() > 1:
        odd = won.min() if won.min() < 0 else won.max()
        raise JoinError(f"A verdict is a share from 0 to 1; one is {odd:g}.")
    difference = own - other
    spread = difference.std(ddof=1) if size > 1 else 0.0
    # Answers of one difference throughout say nothing of the length's effect: the term is 0.
    scaled = np.tanh(difference / spread) if spread else np.zeros(size)
    features = [scaled, np.ones(size)]
    if difficulty is not None:
        hardness = join_prompts(verdicts, difficulty, names=("verdicts", "difficulty"))[1]
        features.insert(1, hardness)
    design = np.column_stack(features)
    penalty = _penalty(design, won)
    weights = _fit(design, won, penalty)
    rng = np.random.default_rng(0)
    means = np.empty(resamples)
    # A strong penalty would hold every resample at one half: an interval of no width.
    weak = max(penalty, 1.0)
    for i in range(resamples):
        drawn = rng.integers(0, size, size)
        means[i] = _equal_lengths(design[drawn], _fit(design[drawn], won[drawn], weak))
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    share = MeanInterval(_equal_lengths(design, weights), float(low), float(high), size)
    return LengthControl(
        share, float(won.mean()), float(weights[0]), float(difference.mean()), not weights.any()
    )


def length_controlled_cells(
    evaluation: Evaluation, baseline: str | None = None, resamples: int = 200
) -> pd.DataFrame:
    """Win rates at equal lengths in characters, one row a cell, method and seed.

    Args:
        evaluation: judged answers.
        baseline: the method that win rates are against; None takes the evaluation's.
        resamples: of the bootstrap over prompts.

    Returns:
        `CELL`, method, seed, n; win_rate, lc, lc_low, lc_high (percent); characters (mean
        difference to the baseline's answers), collapsed (50 is the penalty's answer, not the
        data's), note (which prompts were left out).

    Raises:
        JoinError: where two sides do not answer the same prompts.
    """
    against = baseline or evaluation.baseline
    names = [*CELL, "seed", "method"]
    sides = {
        tuple(key): own.set_index("prompt_id")
        for key, own in evaluation.judged.groupby(names, sort=False)
    }
    rows = []
    for key, own in sides.items():
        *cell, method = key
        if method == against:
            continue
        other = sides.get((*cell, against))
        if other is None:
            raise JoinError(f"{', '.join(map(str, key))}: there are no answers of {against!r}.")
        try:
            left, right, met = joined(own["reward"], other["reward"], evaluation.incomplete)
        except JoinError as error:
            raise JoinError(f"{', '.join(map(str, key))}: {error}") from None
        won = pd.Series((np.sign(left - right) + 1) / 2, index=left.index)
        mine, theirs = (side["characters"].reindex(won.index) for side in (own, other))
        found = length_controlled(won, mine, theirs, resamples=resamples)
        numbers = [100 * value for value in (found.raw, *found.share[:3])]
        rows.append(
            dict(zip(names, key, strict=True))
            | {"n": found.share.n}
            | dict(zip(("win_rate", "lc", "lc_low", "lc_high"), numbers, strict=True))
            | {"characters": found.mean_difference}
            | {"collapsed": found.collapsed, "note": "" if met.complete else str(met)}
        )
    if not rows:
        raise JoinError(f"No method but the baseline {against!r} was judged.")
    return pd.DataFrame(rows)


def lengths_shown(cells: pd.DataFrame) -> pd.DataFrame:
    """Length-controlled cells as text: a row a method, for each judge and decoding the win rate as
    it is and at equal lengths, with its 95 % interval, and the prompts that it rests on; over seeds
    or benchmarks their mean ± sd and how many they are. A star where the penalty left nothing of
    the data.
    """
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for key, own in cells.groupby(["method", "judge", "decoding"], sort=False):
        method, judge, decoding = map(str, key)
        row = rows.setdefault(method, {})
        head = f"{judge}, {decoding}"
        row[head, "WR"] = f"{own['win_rate'].mean():.1f}"
        text = f"{own['lc'].mean():.1f}"
        if len(own) == 1:
            line = own.iloc[0]
            text += f" [{line['lc_low']:.1f}, {line['lc_high']:.1f}]"
        else:
            text += f" ± {own['lc'].std(ddof=1):.1f} ({len(own)} cells)"
        row[head, "WR at equal lengths"] = text + ("*" if own["collapsed"].any() else "")
        row[head, "prompts"] = f"{own['n'].sum():,}"
        row[head, "characters longer"] = f"{own['characters'].mean():+.1f}"
    frame = pd.DataFrame(list(rows.values()), index=pd.Index(list(rows), name="method"))
    columns = pd.MultiIndex.from_tuples([*frame.columns.to_flat_index()])
    return frame.set_axis(columns, axis=1).fillna("–")


def _equal_lengths(design: Floats, weights: Floats) -> float:
    """The mean predicted share with the length's column set to 0."""
    return float((1 / (1 + np.exp(-(design[:, 1:] @ weights[1:])))).mean())


def _fit(design: Floats, won: Floats, penalty: float) -> Floats:
    """Weights of the columns. A share counts as a win and a loss of that much weight."""
    # l1_ratio=1 is the L1 penalty; liblinear is what AlpacaEval uses, and exact at this size.
    model: Any = LogisticRegression(
        C=penalty, l1_ratio=1.0, solver="liblinear", fit_intercept=False, random_state=123
    )
    outcome = np.repeat([1, 0], len(won))
    weight = np.concatenate([won, 1 - won])
    present = weight > 0
    if len(set(outcome[present])) == 1:
        # liblinear needs both outcomes: the one that never was gets next to no weight.
        weight[~present] = 1e-9
        present[:] = True
    model.fit(np.vstack([design, design])[present], outcome[present], sample_weight=weight[present])
    return np.asarray(model.coef_[0], dtype=np.float64)


def _penalty(design: Floats, won: Floats) -> float:
    """The C whose predictions of left-out prompts have the smallest log-loss."""
    folds = np.arange(len(won)) % min(_FOLDS, len(won))
    if len(won) < 2 * _FOLDS:  # too few to choose from
        return 1.0
    losses = np.zeros(len(_PENALTIES))
    for place, penalty in enumerate(_PENALTIES):
        for fold in range(_FOLDS):
            out = folds == fold
            logits = design[out] @ _fit(design[~out], won[~out], float(penalty))
            losses[place] += (np.logaddexp(0, logits) - won[out] * logits).sum()
    return float(_PENALTIES[losses.argmin()])
