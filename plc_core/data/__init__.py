"""What a preference pair is, where pairs come from and how they are corrupted; no torch.

pairs            the schema and its Arrow files
sources          `load_pairs`: files (`formats`, `folders`), public data sets (`public`)
rows             one row to one pair, of whatever shape (`shapes`, `dialogues`, `rendered`)
validation       every row kept or listed: `rules`, `row_rules`, `cross_pair_checks`
corruption       flips, ties, annotators, warm starts
slices, votes    parts of the pairs; groups of agreement; `exact_ties` of scored answers
world            the embedded world
"""

from plc_core.data.corruption import (
    flip_hardest,
    flip_labels,
    inject_ties,
    label_by_annotator,
    mark_oracle_states,
    simulate_votes,
    tie_pool,
    warm_start,
)
from plc_core.data.pairs import DataError, Pairs, pair_id
from plc_core.data.public import DATASETS
from plc_core.data.rules import RULES, Report
from plc_core.data.slices import gap_slices, split_held_out
from plc_core.data.sources import load_pairs
from plc_core.data.validation import Options, pairs_from_rows
from plc_core.data.votes import vote_groups

__all__ = [
    "DATASETS",
    "RULES",
    "DataError",
    "Options",
    "Pairs",
    "Report",
    "flip_hardest",
    "flip_labels",
    "gap_slices",
    "inject_ties",
    "label_by_annotator",
    "load_pairs",
    "mark_oracle_states",
    "pair_id",
    "pairs_from_rows",
    "simulate_votes",
    "split_held_out",
    "tie_pool",
    "vote_groups",
    "warm_start",
]
