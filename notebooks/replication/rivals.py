"""What else ranks labels by how likely they are reversed, from what the audit's model says of them.

Lengths, words and hidden states are columns of the audit itself; margins, q_flip and the
reliabilities of RE-PO come from training runs.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

Rival = Literal["confident learning", "perplexity difference", "reward model of clean labels"]
RIVALS: tuple[Rival, ...] = get_args(Rival)
CONFIDENT, PERPLEXITY, REWARD = RIVALS
"""The second is PerpCorrect's, of the model as it is given (Kong et al. 2024)."""

_PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)


def confident_learning(
    differences: NDArray[np.floating], folds: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[pairs] 1 − self-confidence: 1 − the probability, out of fold, of each label as given.

    That is how cleanlab ranks labels (Northcutt et al. 2021), by a logistic regression of the side
    that is preferred; its penalty is the one of the highest likelihood out of fold.

    Args:
        differences: [pairs, features], chosen − rejected.
        folds: [pairs], pairs of one prompt in one.
    """
    side = np.random.default_rng(0).choice((-1.0, 1.0), len(folds))  # of the label in each row
    rows = differences * side[:, None]
    odds = np.zeros((len(_PENALTIES), len(folds)))
    for place, penalty in enumerate(_PENALTIES):
        for fold in range(int(folds.max()) + 1):
            fit = make_pipeline(
                StandardScaler(with_mean=False),
                LogisticRegression(C=penalty, fit_intercept=False, max_iter=300),
            )
            fit.fit(rows[folds != fold], side[folds != fold])
            odds[place, folds == fold] = fit.decision_function(rows[folds == fold])
    agree = odds * side
    best = agree[int(np.argmax(log_expit(agree).mean(1)))]
    return np.asarray(-np.expm1(log_expit(best)))


def reward_model(
    clean: NDArray[np.floating], differences: NDArray[np.floating]
) -> NDArray[np.float64]:
    """[pairs] minus the margin of a linear reward model of other prompts' clean labels.

    Args:
        clean: [others, features], chosen − rejected, of pairs whose labels nobody reversed.
        differences: [pairs, features].
    """
    scale = np.sqrt((clean.astype(float) ** 2).mean(0)).clip(1e-6)
    fit = RidgeCV(alphas=np.logspace(2, 6, 9), fit_intercept=False)
    # Both ways round, so that turning a pair turns its margin.
    fit.fit(np.concatenate((clean, -clean)) / scale, np.repeat((1.0, -1.0), len(clean)))
    return np.asarray(-fit.predict(differences / scale))
