"""An audit of preference labels: from a file of pairs to a probability and a reason a pair."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plc_core.data import DataError, Pairs
from plc_core.label_audit.config import DEFAULT, EVIDENCE, Kind
from plc_core.label_audit.contradictions import QUESTION, disputes, questions, reconciled
from plc_core.label_audit.evidence import ModelReadings, gathered
from plc_core.label_audit.other_models import dpo_margins, judge_scores, run_margins
from plc_core.label_audit.posterior import (
    WITH_HIDDEN_STATES,
    WITHOUT,
    FlipModel,
    stacked,
)
from plc_core.label_audit.probe import FOLDS, prompt_folds
from plc_core.label_audit.reasons import reasons
from plc_core.label_audit.result import Audit, group_in_words, groups_of
from plc_core.loading import load_pairs
from plc_core.progress import Progress
from plc_core.runs import Run, open_run

FEWEST = 100
"""Pairs below which nothing can be read out of fold."""
_ON_LABELS = ("contradiction", "cycle", "inverted-scores", "ratings-disagree")
"""Rules of validation that bear on a label, and so are reasons."""


def audit(
    data: Pairs | Path | str,
    model: str | None = None,
    *,
    evidence: Collection[Kind] = DEFAULT,
    max_length: int = 1024,
    run: Run | Path | str | None = None,
    judge: str | None = None,
    dpo: Mapping[str, Any] | None = None,
    by: str | None = None,
    progress: Progress | None = None,
    **reading: Any,
) -> Audit:
    """How likely each preference label is reversed, and why.

    Every evidence is read out of fold by prompt: fitted on the labels of the other prompts.
    Without a model, what texts, lengths, scores and votes say is left.

    Args:
        data: pairs, or what `load_pairs` reads.
        model: a local folder or a name on the hub, whose frozen hidden states are evidence.
        evidence: names of `EVIDENCE`; what the rows do not have is passed over.
        max_length: tokens of a prompt and its longer answer, for the model.
        run: a finished training run on these pairs, whose margins at first visit are evidence.
        judge: a reward model or a server, as `named_judge` takes it; its scores are evidence.
        dpo: parameters of a training run: DPO is trained three times, each time on the prompts of
            two thirds, and its margins on the others are evidence.
        by: a column of the pairs or one of your own, as an annotator's name, whose groups each have
            a noise rate of their own in p_flip.
        progress: shows how far it is.
        reading: options of `load_pairs`.

    Raises:
        DataError: for pairs that cannot be read, or too few of them.
        ModelError: for a model that cannot be loaded.
        RunError: for a run or judge that cannot be used.
    """
    if unknown := set(evidence) - set(EVIDENCE):
        raise DataError(
            f"There is no evidence {', '.join(sorted(unknown))}; known are {', '.join(EVIDENCE)}."
        )
    progress = progress or Progress()
    pairs = data if isinstance(data, Pairs) else load_pairs(data, progress=progress, **reading)
    read = ModelReadings()
    if model is not None:
        from plc_core.label_audit.hidden_states import read_model  # torch

        pairs, read = read_model(pairs, model, max_length, set(evidence), progress)
    if len(pairs) < FEWEST:
        raise DataError(
            f"{len(pairs)} pairs are too few for an audit: at least {FEWEST} are needed, as each "
            "label is judged by those of the other prompts."
        )
    groups = None if by is None else groups_of(pairs, by)
    table = _facts(pairs)
    prompts = table["prompt"].tolist()
    if (different := len(set(prompts))) < FOLDS:
        raise DataError(
            f"The {len(pairs):,} pairs have {different} different prompts, too few for an audit: "
            f"at least {FOLDS} are needed, as each label is judged by those of the other prompts."
        )
    folds = prompt_folds(prompts)
    given: dict[str, NDArray[np.float64]] = {}
    if run is not None:
        given["run"] = run_margins(run if isinstance(run, Run) else open_run(run), pairs)
    if judge is not None:
        given["judge"] = judge_scores(judge, pairs, progress)
    if dpo is not None:
        given["DPO out of fold"] = dpo_margins(pairs, prompts, dpo, "audit", progress)
    found = gathered(pairs, table, folds, set(evidence), read, given)
    if not found.columns:
        raise DataError("None of the evidence asked for is there: add lengths or words.")
    stack = stacked(found.columns, folds, found.chance)
    scale = WITH_HIDDEN_STATES if "hidden states" in found.columns else WITHOUT
    flips = FlipModel(stack.margins, stack.reliability, scale)
    asked = questions(pairs.batches(QUESTION))
    probabilities = reconciled(flips.p_flip(stack.margins, groups), *asked)
    findings = _findings(pairs)
    for row, other in disputes(*asked):
        name, against = table["pair_id"].iloc[row], table["pair_id"].iloc[other]
        findings.setdefault(name, f"contradicts pair {against}, of which one is wrong")
    aside = {name: column for name, (column, _) in found.aside.items()}
    unit = "words" if read.token_lengths is None else "tokens"
    of_group = [] if by is None or groups is None else _noisier(flips, stack.margins, groups, by)
    why = reasons(stack.contributions, aside, table, found.sizes, unit, findings, of_group)
    ties = _ties(pairs, table)
    noise = flips.noise()
    return Audit(pairs, probabilities, ties, stack, found, noise, why, model, flips, scale, groups)


def _facts(pairs: Pairs) -> pd.DataFrame:
    """pair_id, prompt (a hash), source, score_chosen and score_rejected, row by row."""
    parts = []
    for batch in pairs.batches(["pair_id", "prompt", "source", "score_chosen", "score_rejected"]):
        part = batch.drop_columns("prompt").to_pandas()
        prompts = pd.Series([json.dumps(turns) for turns in batch["prompt"].to_pylist()])
        part["prompt"] = pd.util.hash_pandas_object(prompts, index=False).astype(str)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def _noisier(
    flips: FlipModel, margins: NDArray[np.float64], groups: NDArray[Any], by: str
) -> list[str]:
    """Of each pair whose group's labels are worse than those of all: which group, and its rate."""
    said = np.full(len(margins), "", dtype=object)
    if (whole := flips.noise().rate) is None:
        return list(said)
    for name in np.unique(groups):
        own = groups == name
        noise = flips.of_group(margins[own]).noise()
        if noise.rate is not None and noise.low > whole:
            group = group_in_words(by, name)
            said[own] = f"{group}: some {noise.rate:.0%} of these labels are reversed"
    return list(said)


def _findings(pairs: Pairs) -> dict[str, str]:
    """By pair id, what validation found that bears on the label."""
    table = pairs.findings
    chosen = table.filter(pc.is_in(table["rule"], pa.array(_ON_LABELS)))
    found: dict[str, str] = {}
    for row in chosen.to_pylist():
        if row["pair_id"] is not None and row["action"] == "keep":
            before = found.get(row["pair_id"])
            found[row["pair_id"]] = f"{before}; {row['reason']}" if before else row["reason"]
    return found


def _ties(pairs: Pairs, table: pd.DataFrame) -> NDArray[np.float64]:
    """p_tie: the share of votes that are ties, or 1 and 0 for equal and other scores."""
    scores = table[["score_chosen", "score_rejected"]].to_numpy(dtype=float)
    ties = np.where(np.isfinite(scores).all(1), (scores[:, 0] == scores[:, 1]) * 1.0, np.nan)
    start = 0
    for batch in pairs.batches(["votes"]):
        for row, votes in enumerate(batch["votes"].to_pylist(), start):
            if votes:
                ties[row] = votes.count("tie") / len(votes)
        start += len(batch)
    return ties
