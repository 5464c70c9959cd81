"""pairs.parquet: which of its columns are long texts or lengths, and how its rows are grouped."""

TEXT_COLUMNS = ("prompt", "chosen", "rejected", "metadata", "votes", "marks")
"""Columns of pairs.parquet that are read for the pair on the screen only."""

LENGTH_COLUMNS = ("chosen_tokens", "rejected_tokens")
"""Columns of pairs.parquet with the tokens of both answers; runs of older versions lack them."""

PAIRS_A_GROUP = 2_000
"""Rows of a row group of pairs.parquet: what is decoded to show the texts of one pair."""
