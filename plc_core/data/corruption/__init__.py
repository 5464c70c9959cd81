"""Injected corruption whose truth is known: seeded, nested over rates, marked, composable.

Every function takes pairs and gives pairs, batch by batch, so that memory does not grow with
their texts. Which pairs are hit depends on hashes of the seed and the pair ids: it is the same on
every machine, in every order of the pairs and under every objective.

Warm pairs (`warm_start`) are never hit, and an injected tie has no label that could be reversed:
flips pass over both. So random flips and ties give the same pairs in either order, and a warm
start holds against everything that comes after it. Hard-pair flips rank the pairs that are there,
so their place in the order of calls matters.
"""

from plc_core.data.corruption.annotators import label_by_annotator, simulate_votes
from plc_core.data.corruption.flips import (
    TIE_GAP,
    HardPair,
    flip_hardest,
    flip_labels,
    mark_oracle_states,
    warm_start,
)
from plc_core.data.corruption.ties import inject_ties, tie_pool

__all__ = [
    "TIE_GAP",
    "HardPair",
    "flip_hardest",
    "flip_labels",
    "inject_ties",
    "label_by_annotator",
    "mark_oracle_states",
    "simulate_votes",
    "tie_pool",
    "warm_start",
]
