"""Evidence without a model: which words the preferred answers have, read out of fold."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import Ridge

from plc_core.label_audit.probe import Probe, best, labels_and_coins

_WORDS = 2**16
_PENALTIES = (1e3, 1e4, 1e5)


def word_differences(
    batches: Iterable[tuple[list[str], list[str]]],
) -> csr_matrix:
    """[pairs, hashed words] log counts in the chosen answer minus those in the rejected one."""
    hashing = HashingVectorizer(
        n_features=_WORDS, alternate_sign=False, norm=None, token_pattern=r"\w+|[^\w\s]"
    )
    parts = []
    for chosen, rejected in batches:
        sides = [hashing.transform(texts) for texts in (chosen, rejected)]
        for side in sides:
            side.data = 1 + np.log(side.data)
        parts.append((sides[0] - sides[1]).astype(np.float32))
    return vstack(parts, format="csr")


def words_out_of_fold(differences: csr_matrix, folds: NDArray[np.int64]) -> Probe:
    """Ridge regression of the labels on words, each pair predicted from the other folds."""
    readings = np.zeros((len(_PENALTIES), len(folds), 2))
    targets = labels_and_coins(len(folds))
    for fold in range(int(folds.max()) + 1):
        others = np.flatnonzero(folds != fold)
        mine = np.flatnonzero(folds == fold)
        for place, penalty in enumerate(_PENALTIES):
            model = Ridge(alpha=penalty, fit_intercept=False, solver="sparse_cg", tol=1e-3)
            model.fit(differences[others], targets[others])
            readings[place, mine] = model.predict(differences[mine])
    return best(readings, _PENALTIES)
