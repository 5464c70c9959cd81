"""Simulated annotators, who see the true score gap through noise, a length bias and a threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from plc_core.data.corruption.draws import normal, read_columns, score_gaps, uniform
from plc_core.data.corruption.flips import reverse
from plc_core.data.pairs import SCHEMA, DataError, Pairs, set_column

NOISE, THRESHOLD, LENGTH_BIAS = 1.6, 0.6, 0.04
"""The embedded world's, in units of its gold reward.

Over 60 panels of four annotators, 39 % of its pairs are unanimous, 53 % divergent and 8 %
tie-majority (standard deviations 3, 3 and 2 points); of MultiPref's it is 42, 46 and 12 %.
"""


@dataclass(frozen=True)
class Annotator:
    """One annotator: a function of (seed, number) alone.

    Attributes:
        noise: standard deviation of what is added to the score gap, in units of the score.
        threshold: a perceived gap smaller than this is a tie, in units of the score.
        length_bias: what a word more is worth, in units of the score.
    """

    seed: int
    number: int
    noise: float
    threshold: float
    length_bias: float

    def perceived(self, pair_id: str, gap: float, words: int, flipped: bool) -> float:
        """The gap of the observed labels as this annotator sees it.

        The noise depends on (seed, number, pair_id) alone and belongs to the answers: it changes
        its sign with the label.
        """
        noise = self.noise * normal("vote", self.seed, self.number, pair_id)
        return gap + self.length_bias * words + (-noise if flipped else noise)

    def vote(self, perceived: float) -> str:
        """chosen, rejected or tie."""
        if abs(perceived) < self.threshold:
            return "tie"
        return "chosen" if perceived > 0 else "rejected"


def simulate_votes(
    pairs: Pairs,
    annotators: int = 4,
    seed: int = 0,
    noise: float = NOISE,
    threshold: float = THRESHOLD,
    length_bias: float = LENGTH_BIAS,
) -> Pairs:
    """Set votes: what simulated annotators say of each pair, relative to its observed label.

    Annotator j perceives gap + b_j * (words of chosen - words of rejected) + N(0, s_j), with
    s_j = noise * U(0.7, 1.4) and b_j ~ N(0, length_bias), and votes tie where that is smaller
    than threshold * U(0.6, 1.5), else for the answer it favours. More annotators extend the votes
    of fewer. The votes are of the answers: simulated before or after flips, they are the same.

    The paper has human votes and simulates none; this is the embedded world's, and the defaults
    are in units of its gold reward.

    Raises:
        DataError: for fewer than one annotator, a negative parameter, and pairs without scores.
    """
    if type(annotators) is not int or annotators < 1:
        raise DataError(f"Votes need at least one annotator; annotators is {annotators}.")
    _check_parameters(noise, threshold, length_bias)
    _check_scores(pairs)
    panel = [_annotator(seed, j, noise, threshold, length_bias) for j in range(annotators)]

    def voted(batch: pa.Table, _: int) -> pa.Table:
        votes = [[a.vote(a.perceived(*pair)) for a in panel] for pair in _seen(batch)]
        return set_column(batch, "votes", pa.array(votes, SCHEMA.field("votes").type))

    return pairs.map(voted)


def label_by_annotator(
    pairs: Pairs,
    seed: int = 0,
    annotator: int = 0,
    noise: float = NOISE,
    threshold: float = THRESHOLD,
    length_bias: float = LENGTH_BIAS,
) -> Pairs:
    """Give each pair the label that one simulated annotator would, forced to choose.

    The annotator of `simulate_votes` with the same seed and number; where it would vote tie, the
    label is drawn at random. Labels that change are marked as flipped, so errors are frequent
    where the gap is small. The label does not depend on the one before. Warm pairs and injected
    ties are left alone. The paper does not define this corruption.

    Raises:
        DataError: for a negative number or parameter, and pairs without scores.
    """
    if annotator < 0:
        raise DataError(f"Annotators are numbered from 0; annotator is {annotator}.")
    _check_parameters(noise, threshold, length_bias)
    _check_scores(pairs)
    one = _annotator(seed, annotator, noise, threshold, length_bias)

    def prefers_rejected(pair_id: str, gap: float, words: int, flipped: bool) -> bool:
        vote = one.vote(one.perceived(pair_id, gap, words, flipped))
        if vote == "tie":
            return (uniform("forced", seed, annotator, pair_id) < 0.5) != flipped
        return vote == "rejected"

    def labelled(batch: pa.Table, _: int) -> pa.Table:
        return reverse(batch, np.array([prefers_rejected(*pair) for pair in _seen(batch)], bool))

    return pairs.map(labelled)


def _annotator(
    seed: int, number: int, noise: float, threshold: float, length_bias: float
) -> Annotator:
    return Annotator(
        seed,
        number,
        noise=noise * (0.7 + 0.7 * uniform("annotator", seed, number, "noise")),
        threshold=threshold * (0.6 + 0.9 * uniform("annotator", seed, number, "threshold")),
        length_bias=length_bias * normal("annotator", seed, number, "length bias"),
    )


def _seen(batch: pa.Table) -> list[tuple[str, float, int, bool]]:
    """Of each pair: id, score gap, difference of the answers in words, whether it is flipped."""
    names = ("pair_id", "score_chosen", "score_rejected", "chosen", "rejected", "flipped")
    rows = zip(*(batch[name].to_pylist() for name in names), strict=True)
    return [
        (pair_id, a - b, len(chosen.split()) - len(rejected.split()), flipped)
        for pair_id, a, b, chosen, rejected, flipped in rows
    ]


def _check_parameters(noise: float, threshold: float, length_bias: float) -> None:
    named = {"noise": noise, "threshold": threshold, "length_bias": length_bias}
    for name, value in named.items():
        if not 0 <= value < float("inf"):
            raise DataError(f"{name} is a size, finite and not negative; it is {value!r}.")


def _check_scores(pairs: Pairs) -> None:
    keys = read_columns(pairs, ["pair_id", "score_chosen", "score_rejected"])
    score_gaps(keys, "Simulated annotators look at the scores.")
