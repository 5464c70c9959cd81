"""Evidence for or against each label, one column each: positive speaks for the label as given.

All of it is antisymmetric (a pair turned round changes its sign) and read out of fold by prompt,
so no label is judged by a model that learnt from it. A pair that lacks an evidence has NaN there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from plc_core.data import Pairs
from plc_core.label_audit.bag_of_words import word_differences, words_out_of_fold
from plc_core.label_audit.config import Kind
from plc_core.label_audit.probe import Probe, Rows, log_likelihood, out_of_fold

_FOLLOWED = 0.995
"""Labels that agree with an evidence this often were made from it, and it cannot judge them."""


@dataclass(frozen=True)
class ModelReadings:
    """What one model says of the pairs; nothing without a model.

    Attributes:
        hidden: rows of hidden-state differences by layer.
        token_lengths: [pairs, 2] of chosen and rejected.
        log_probs: [pairs, 2] of both answers, in nats.
    """

    hidden: Mapping[int, Rows] | None = None
    token_lengths: NDArray[np.int64] | None = None
    log_probs: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Evidence:
    """What is known of every pair.

    Attributes:
        columns: [pairs] each, by name; the columns that are added up.
        aside: columns that are shown and not added up, each with the reason.
        log_likelihoods: of each column alone, mean log σ(a · column) per pair that has it, nats.
        details: which layer and penalty were chosen, for the record.
        sizes: [pairs, 2] lengths of chosen and rejected, in tokens or words.
        chance: [pairs] each, what columns fitted to labels read of coin flips.
    """

    columns: dict[str, NDArray[np.float64]]
    aside: dict[str, tuple[NDArray[np.float64], str]]
    log_likelihoods: dict[str, float]
    details: dict[str, object]
    sizes: NDArray[np.int64]
    chance: dict[str, NDArray[np.float64]]


def lengths(chosen: NDArray[np.float64], rejected: NDArray[np.float64]) -> Mapping[str, NDArray]:
    """Two columns: the difference of lengths, and that of their logarithms."""
    return {
        "length": chosen - rejected,
        "log length": np.log(np.maximum(chosen, 1)) - np.log(np.maximum(rejected, 1)),
    }


def likelihoods(
    log_probs: NDArray[np.float64], lengths: NDArray[np.int64]
) -> Mapping[str, NDArray[np.float64]]:
    """Two columns, [pairs] each: the difference of log-probs, and of those a token.

    The second is PerpCorrect's difference of log perplexities with the other sign (Kong et al.
    2024), under the model as it is given.
    """
    a_token = log_probs / np.maximum(lengths, 1)
    return {
        "log-likelihood": log_probs[:, 0] - log_probs[:, 1],
        "log-likelihood a token": a_token[:, 0] - a_token[:, 1],
    }


def score_gaps(table: pd.DataFrame) -> NDArray[np.float64]:
    """Gap of the scores, ranked by size within a source, with its sign: in [−1, 1], NaN without.

    Scales differ between sources, so only ranks compare.
    """
    gap = (table["score_chosen"] - table["score_rejected"]).astype(float)
    size = gap.abs().groupby(table["source"]).rank(pct=True)
    signed: NDArray[np.float64] = np.sign(gap.to_numpy()) * size.to_numpy(dtype=float)
    return signed


def vote_shares(pairs: Pairs) -> NDArray[np.float64]:
    """(votes for the label − votes against) / votes, in [−1, 1]; NaN without votes."""
    shares = []
    for batch in pairs.batches(["votes"]):
        for votes in batch["votes"].to_pylist():
            known = votes or []
            ahead = known.count("chosen") - known.count("rejected")
            shares.append(ahead / len(known) if known else np.nan)
    return np.array(shares, dtype=float)


def gathered(
    pairs: Pairs,
    table: pd.DataFrame,
    folds: NDArray[np.int64],
    kinds: set[Kind],
    read: ModelReadings,
    given: Mapping[str, NDArray[np.float64]],
) -> Evidence:
    """All evidence of `kinds` that the pairs have.

    Args:
        table: pair_id, source, score_chosen, score_rejected of the pairs, in their order.
        folds: [pairs].
        read: by the model; without one, lengths are in words.
        given: further columns, [pairs] each, that no label was needed for.
    """
    columns: dict[str, NDArray[np.float64]] = dict(given)
    details: dict[str, object] = {}
    chance: dict[str, NDArray[np.float64]] = {}
    sizes = read.token_lengths if read.token_lengths is not None else _word_counts(pairs)
    if "lengths" in kinds:
        columns |= lengths(*sizes.astype(float).T)
        details["lengths in"] = "words" if read.token_lengths is None else "tokens"
    if "likelihood" in kinds and read.log_probs is not None:
        columns |= likelihoods(read.log_probs, sizes)
    if "words" in kinds:
        batches = pairs.batches(["chosen", "rejected"])
        texts = ((b["chosen"].to_pylist(), b["rejected"].to_pylist()) for b in batches)
        probe = words_out_of_fold(word_differences(texts), folds)
        columns["words"], chance["words"] = probe.margins, probe.chance
    if "hidden states" in kinds and read.hidden is not None:
        probes: dict[int, Probe] = {
            layer: out_of_fold(rows, folds) for layer, rows in read.hidden.items()
        }
        layer = max(probes, key=lambda number: probes[number].log_likelihood)
        columns["hidden states"] = probes[layer].margins
        chance["hidden states"] = probes[layer].chance
        details["layer"] = layer
        details["penalty"] = probes[layer].penalty
    if "scores" in kinds and table["score_chosen"].notna().any():
        columns["scores"] = score_gaps(table)
    if "votes" in kinds and len(shares := vote_shares(pairs)) and np.isfinite(shares).any():
        columns["votes"] = shares
    aside: dict[str, tuple[NDArray[np.float64], str]] = {
        str(name): (columns.pop(name), reason)
        for name in ("scores", "votes")
        if name in columns and (reason := _follows(name, columns[name]))
    }
    worth = {name: log_likelihood(column[np.isfinite(column)]) for name, column in columns.items()}
    return Evidence(columns, aside, worth, details, sizes, chance)


def _follows(name: str, column: NDArray[np.float64]) -> str:
    """Why an evidence cannot judge the labels, or nothing."""
    known = column[np.isfinite(column) & (column != 0)]
    if len(known) and np.mean(known > 0) >= _FOLLOWED:
        return (
            f"{np.mean(known > 0):.1%} of the labels agree with the {name}, so the labels were "
            f"probably made from them: the {name} expose contradictions, and nothing else"
        )
    return ""


def _word_counts(pairs: Pairs) -> NDArray[np.int64]:
    counts = [
        [len(text.split()) for text in row]
        for batch in pairs.batches(["chosen", "rejected"])
        for row in zip(batch["chosen"].to_pylist(), batch["rejected"].to_pylist(), strict=True)
    ]
    return np.array(counts, dtype=np.int64).reshape(-1, 2)
