"""An audit of preference labels: from a file of pairs to a probability and a reason a pair."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plc_core.data import DataError, Pairs
from plc_core.label_audit.cleaning import Policy, cleaned, export_pairs
from plc_core.label_audit.contradictions import disputes, questions, reconciled
from plc_core.label_audit.evidence import DEFAULT, EVIDENCE, Evidence, Kind, ModelReadings, gathered
from plc_core.label_audit.other_models import dpo_margins, judge_scores, run_margins
from plc_core.label_audit.posterior import (
    WITH_HIDDEN_STATES,
    WITHOUT,
    FlipModel,
    NoiseRate,
    Stack,
    stacked,
)
from plc_core.label_audit.probe import prompt_folds
from plc_core.label_audit.reasons import reasons
from plc_core.loading import load_pairs
from plc_core.progress import Progress
from plc_core.runs import Run, open_run

FEWEST = 100
"""Pairs below which nothing can be read out of fold."""
_FEWEST_OF_A_GROUP = 50
_ON_LABELS = ("contradiction", "cycle", "inverted-scores", "ratings-disagree")
"""Rules of validation that bear on a label, and so are reasons."""


@dataclass(frozen=True)
class Audit:
    """What the evidence says of every label.

    Attributes:
        pairs: that were audited, in the order of the file.
        probabilities: [pairs] p_flip, that the label is reversed.
        ties: [pairs] p_tie, from equal scores and votes; NaN where neither is known.
        stack: the evidence added up.
        evidence: its columns one by one.
        noise: the share of reversed labels over all pairs.
        why: [pairs] in words.
        model: that hidden states were read from, or None.
        flips: from margins to probabilities.
        scale: what was expected of the evidence's scale; see `posterior`.
    """

    pairs: Pairs
    probabilities: NDArray[np.float64]
    ties: NDArray[np.float64]
    stack: Stack
    evidence: Evidence
    noise: NoiseRate
    why: list[str]
    model: str | None
    flips: FlipModel
    scale: tuple[float, float]

    def judged(self) -> pd.DataFrame:
        """One row a pair, in the order of the file, without texts.

        Columns: pair_id, source, p_flip, p_tie, margin (of the evidence added up, positive for the
        label), reason, and one an evidence.
        """
        frame = self.pairs.dataset.select_columns(["pair_id", "source"]).to_pandas()
        numbers = {"p_flip": self.probabilities, "p_tie": self.ties, "margin": self.stack.margins}
        columns = self.evidence.columns | {n: c for n, (c, _) in self.evidence.aside.items()}
        return frame.assign(**numbers, reason=self.why, **columns)

    def table(self, most: int | None = None) -> pd.DataFrame:
        """The columns of `judged`, prompt (its last turn), chosen and rejected, a row a pair; the
        most suspicious first."""
        frame = self.judged()
        order = np.argsort(-self.probabilities, kind="stable")[:most]
        texts = self.pairs.dataset.select(order).select_columns(["prompt", "chosen", "rejected"])
        shown = texts.to_pandas()
        shown["prompt"] = [turns[-1]["content"] for turns in shown["prompt"]]
        return pd.concat([frame.iloc[order].reset_index(drop=True), shown], axis=1)

    def evidence_table(self) -> pd.DataFrame:
        """A row an evidence: pairs, what it gains over chance in nats a label, weight, note."""
        return evidence_table(self.evidence, self.stack.weights)

    def noise_by(self, column: str = "source") -> pd.DataFrame:
        """The noise rate of each group of pairs: group, pairs, rate (NaN: not known), low, high.

        Args:
            column: of the pairs, or one of your own (an annotator, say).

        Raises:
            DataError: where the pairs have no such column.
        """
        groups = pd.Series(_column(self.pairs, column)).fillna("(none)").astype(str)
        rows = []
        for name, places in groups.groupby(groups).indices.items():
            enough = len(places) >= _FEWEST_OF_A_GROUP
            noise = self.flips.noise(self.stack.margins[places]) if enough else None
            rows.append(
                {
                    "group": name,
                    "pairs": len(places),
                    "rate": noise.rate if noise and noise.rate is not None else np.nan,
                    "low": noise.low if noise else np.nan,
                    "high": noise.high if noise else np.nan,
                }
            )
        return pd.DataFrame(rows).sort_values("pairs", ascending=False, ignore_index=True)

    def cleaned(self, policy: Policy = "flip", above: float = 0.5) -> Pairs:
        """The pairs with labels turned, left out, weighted or with a prior each: `POLICIES`.

        Args:
            policy: flip, drop, weight or prior.
            above: the p_flip from which on flip and drop act.
        """
        return cleaned(self.pairs, self.probabilities, self.ties, policy, above)

    def export(self, path: Path | str, policy: Policy = "flip", above: float = 0.5) -> Path:
        """Write `cleaned` pairs to a .jsonl or .parquet that `DPOTrainer` and `load_pairs` read.

        The user's own columns stay, and p_flip and p_tie come in.
        """
        export_pairs(self.cleaned(policy, above), Path(path))
        return Path(path)

    def sentences(self) -> list[str]:
        """What was found, for a person."""
        said = [_noise_sentence(self.noise, self.model)]
        count = int((self.probabilities > 0.5).sum())
        said.append(
            f"{count:,} of {len(self.pairs):,} labels are more likely reversed than not; over all "
            f"labels p_flip adds up to {self.probabilities.sum():,.0f}."
        )
        if self.noise.rate is None and count:
            said.append(
                "While the rate is not known, turning or dropping labels is a guess: weight them, "
                "or check some blind first."
            )
        worth = {name: self.evidence.log_likelihoods[name] for name in self.evidence.columns}
        best = max(worth, key=lambda name: worth[name])
        gain = worth[best] - np.log(0.5)
        if gain < _CHANCE:
            said.append(
                "No evidence agrees with the labels better than chance, so nothing can be said of "
                "single pairs."
            )
        else:
            said.append(
                f"The strongest evidence is {best}, {_worth(gain)}: {gain:.3f} nats a label over "
                "chance, of 0.693."
            )
        said += [f"{reason}." for _, reason in self.evidence.aside.values()]
        return said


_CHANCE = 0.002


def audit(
    data: Pairs | Path | str,
    model: str | None = None,
    *,
    evidence: Collection[Kind] = DEFAULT,
    max_length: int = 1024,
    run: Run | Path | str | None = None,
    judge: str | None = None,
    dpo: Mapping[str, Any] | None = None,
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
    table = _facts(pairs)
    prompts = table["prompt"].tolist()
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
    asked = questions(pairs)
    probabilities = reconciled(flips.p_flip(stack.margins), *asked)
    findings = _findings(pairs)
    for row, other in disputes(*asked):
        name, against = table["pair_id"].iloc[row], table["pair_id"].iloc[other]
        findings.setdefault(name, f"contradicts pair {against}, of which one is wrong")
    aside = {name: column for name, (column, _) in found.aside.items()}
    unit = "words" if read.token_lengths is None else "tokens"
    why = reasons(stack.contributions, aside, table, found.sizes, unit, findings)
    ties = _ties(pairs, table)
    return Audit(pairs, probabilities, ties, stack, found, flips.noise(), why, model, flips, scale)


def _facts(pairs: Pairs) -> pd.DataFrame:
    """pair_id, prompt (a hash), source, score_chosen and score_rejected, row by row."""
    parts = []
    for batch in pairs.batches(["pair_id", "prompt", "source", "score_chosen", "score_rejected"]):
        part = batch.drop_columns("prompt").to_pandas()
        prompts = pd.Series([json.dumps(turns) for turns in batch["prompt"].to_pylist()])
        part["prompt"] = pd.util.hash_pandas_object(prompts, index=False).astype(str)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


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


def _worth(gain: float) -> str:
    """A gain in nats a label over chance, in words."""
    return "worth little" if gain < 0.01 else "worth something" if gain < 0.1 else "worth much"


def _column(pairs: Pairs, name: str) -> list[Any]:
    if name in ("source", "split"):
        return list(pairs.dataset[name])
    values = [json.loads(text or "{}") for text in pairs.dataset["metadata"]]
    if not any(name in row for row in values):
        known = sorted({key for row in values[:1000] for key in row})
        near = difflib.get_close_matches(name, known, n=1)
        raise DataError(
            f"The pairs have no column {name!r}"
            + (f"; did you mean {near[0]!r}?" if near else "")
            + f" They have {', '.join(['source', 'split', *known])}."
        )
    return [row.get(name) for row in values]


def _noise_sentence(noise: NoiseRate, model: str | None) -> str:
    interval = f"[{noise.low:.0%}, {noise.high:.0%}]"
    if noise.rate is None:
        narrower = "more pairs or a stronger model" if model else "more pairs or a model (--model)"
        return (
            f"How many labels are reversed is not known: the evidence leaves {interval}, which "
            f"{narrower} would narrow."
        )
    return f"About {noise.rate:.0%} of the labels are reversed, 95 % interval {interval}."


def evidence_table(found: Evidence, weights: Mapping[str, float]) -> pd.DataFrame:
    """A row an evidence: what it gains over chance alone, nats a label, and its weight."""
    rows = [
        {
            "evidence": name,
            "pairs": int(np.isfinite(column).sum()),
            "nats over chance": found.log_likelihoods[name] - np.log(0.5),
            "weight": weights[name],
            "note": "",
        }
        for name, column in found.columns.items()
    ]
    rows += [
        {
            "evidence": name,
            "pairs": int(np.isfinite(column).sum()),
            "nats over chance": np.nan,
            "weight": 0.0,
            "note": reason,
        }
        for name, (column, reason) in found.aside.items()
    ]
    return pd.DataFrame(rows).sort_values("nats over chance", ascending=False, ignore_index=True)
