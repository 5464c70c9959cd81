"""The fit behind length-controlled win rates: AlpacaEval's, and the one without its penalty.

A design has one row a prompt and the columns tanh of the standardised difference in length, the
instruction's difficulty where it is known, and 1. `plc_core.evaluation.length_control` has the
source.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy import optimize, stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from statsmodels.genmod.families import Binomial
from statsmodels.genmod.generalized_linear_model import GLM

from plc_core.analysis.statistics import LEVEL, Floats

_FOLDS = 5
_PENALTIES = np.logspace(-4, 4, 10)  # C of scikit-learn: the inverse of the penalty


def unidentified(design: Floats, won: Floats) -> str:
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


def bounds(design: Floats, won: Floats) -> tuple[float, float] | None:
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


def equal_lengths(design: Floats, weights: Floats) -> float:
    """The mean predicted share with the length's column set to 0."""
    return float((1 / (1 + np.exp(-(design[:, 1:] @ weights[1:])))).mean())


def fit(design: Floats, won: Floats, penalty: float) -> tuple[Floats, bool]:
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
            logits = design[out] @ fit(design[~out], won[~out], float(penalty))[0]
            losses[place] += (np.logaddexp(0, logits) - won[out] * logits).sum()
    return float(_PENALTIES[losses.argmin()])
