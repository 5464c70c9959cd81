"""What a preference pair is, where pairs come from and how they are corrupted; no torch."""

from plc_core.data.corruption import flip_labels, mark_oracle_states
from plc_core.data.pairs import DataError, Pairs, pair_id, pairs_from_rows
from plc_core.data.sources import load_pairs

__all__ = [
    "DataError",
    "Pairs",
    "flip_labels",
    "load_pairs",
    "mark_oracle_states",
    "pair_id",
    "pairs_from_rows",
]
