"""Pairs with the votes of several people, real or simulated, routed by clean policies."""

from __future__ import annotations

from typing import Any

import pandas as pd
from pydantic import Field

from notebooks.studies.routing_probe import (
    CALIBRATIONS,
    check_probe,
    held_out_pairs,
    score_probe,
    with_votes,
)
from notebooks.studies.study import StudyConfig
from notebooks.studies.tie_selectivity import clean_variants
from plc_core.analysis.routing.human_disagreement import Agreement, agreement
from plc_core.analysis.routing.pooling import mean_of_seeds, of_calibration
from plc_core.data import DATASETS, DataError, Pairs, load_pairs
from plc_core.engine.config import ObjectiveName
from plc_core.runs import Run
from plc_core.storage.paths import project_path


class VotesConfig(StudyConfig):
    """The parameters of `notebooks/07_multipref.ipynb`."""

    votes: str | None = None  # a file or a public dataset with votes; None simulates them
    votes_files: str | None = None  # a local copy of the public dataset
    votes_split: str | None = None  # of the file or dataset; None takes all
    num_pairs: int = Field(3000, ge=1)  # that are judged; of a file at most
    annotators: int = Field(4, ge=2)  # simulated ones
    methods: list[ObjectiveName] = Field(["plc", "dpo"], min_length=1)

    def variants(self) -> dict[str, dict[str, Any]]:
        """The methods on uncorrupted labels."""
        return clean_variants(self.methods)


def judged_pairs(config: VotesConfig, run: Run) -> Pairs:
    """The pairs with votes that a run's policy is shown.

    Raises:
        DataError: where a file has no pair with two votes or more, or cannot be read.
    """
    if config.votes is None:
        pairs = held_out_pairs(run, config.num_pairs)
        return with_votes(pairs, int(run.info["config"]["seed"]), config.annotators)
    known = config.votes in DATASETS
    pairs = load_pairs(
        config.votes if known else project_path(config.votes),
        config.num_pairs,
        split=config.votes_split,
        files=project_path(config.votes_files) if config.votes_files else None,
    )
    counts = pd.Series([len(votes or ()) for votes in pairs.dataset["votes"]])
    if not (counts >= 2).any():
        raise DataError(
            f"No pair of {config.votes} has the votes of two people: expected a field votes with "
            "a, b or tie for each annotator, beside response_a and response_b."
        )
    return pairs


def pairs_sentence(config: VotesConfig, run: Run) -> str:
    """How many pairs are judged, and what became of the rows that they were read from."""
    pairs = judged_pairs(config, run)
    if config.votes is None:
        return f"{len(pairs):,} held-out pairs, {config.annotators} simulated votes on each."
    left_out = pairs.rows_read - len(pairs)
    return f"{pairs.rows_read:,} rows read: {len(pairs):,} pairs kept, {left_out:,} rows left out."


def vote_scores(config: VotesConfig, runs: dict[str, list[Run]]) -> dict[str, pd.DataFrame]:
    """The routing of pairs with votes by policy, under both calibrations.

    A pair that several training seeds were shown counts once, with its mean over them.
    """
    return {
        method: mean_of_seeds([_scores(config, run) for run in own]) for method, own in runs.items()
    }


def _scores(config: VotesConfig, run: Run) -> pd.DataFrame:
    name = f"votes-{config.num_pairs}-{config.annotators}" if config.votes is None else "votes-file"
    check_probe(run, name, config.make)
    return score_probe(run, name, judged_pairs(config, run), config.make)


def all_agreements(scores: dict[str, pd.DataFrame]) -> dict[tuple[str, str], Agreement]:
    """The groups of agreement under every policy and calibration."""
    return {
        (method, calibration): agreement(of_calibration(table, calibration))
        for method, table in scores.items()
        for calibration in CALIBRATIONS
    }


def group_rows(
    found: dict[tuple[str, str], Agreement], calibration: str, measure: str = "q_tie"
) -> dict[str, Any]:
    """The groups of one measure and calibration by policy, for `figures.group_means`."""
    return {
        method: result.groups[result.groups["measure"] == measure]
        for (method, own), result in found.items()
        if own == calibration
    }
