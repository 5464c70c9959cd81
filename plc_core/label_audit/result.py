"""What an audit found: a probability and a reason a pair, the noise rate, and what to do."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from plc_core.data import DataError, Pairs
from plc_core.label_audit.cleaning import cleaned, export_pairs
from plc_core.label_audit.config import Policy
from plc_core.label_audit.evidence import Evidence
from plc_core.label_audit.next_steps import GUESS, fewer_wrong, turning_sentence
from plc_core.label_audit.posterior import FlipModel, NoiseRate, Stack

_FEWEST_OF_A_GROUP = 50
_CHANCE = 0.002
"""Nats a label below which an evidence does not tell."""


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
        groups: [pairs] whose noise rates p_flip tells apart, as annotators; or None.
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
    groups: NDArray[Any] | None = None

    def judged(self) -> pd.DataFrame:
        """One row a pair, in the order of the file, without texts.

        Columns: pair_id, source, p_flip, p_tie, margin (of the evidence added up, positive for the
        label), reason, one an evidence, and group where noise rates are told apart by groups.
        """
        frame = self.pairs.dataset.select_columns(["pair_id", "source"]).to_pandas()
        numbers = {"p_flip": self.probabilities, "p_tie": self.ties, "margin": self.stack.margins}
        columns = self.evidence.columns | {n: c for n, (c, _) in self.evidence.aside.items()}
        frame = frame.assign(**numbers, reason=self.why, **columns)
        return frame if self.groups is None else frame.assign(group=self.groups)

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
        """A row an evidence: pairs, what it gains over chance in nats per label, weight, note."""
        return evidence_table(self.evidence, self.stack.weights)

    def noise_by(self, column: str = "source") -> pd.DataFrame:
        """The noise rate of each group of pairs: group, pairs, rate (NaN: not known), low, high.

        Args:
            column: of the pairs, or one of your own (an annotator, say).

        Raises:
            DataError: where the pairs have no such column.
        """
        groups = pd.Series(groups_of(self.pairs, column))
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
        export_pairs(self.cleaned(policy, above).batches(), Path(path))
        return Path(path)

    def fewer_wrong(self) -> tuple[float, float]:
        """How many labels fewer are expected to be wrong once the suspicious ones are turned.

        And the probability that it is fewer at all; see `next_steps.fewer_wrong`.
        """
        return fewer_wrong(self.flips, self.probabilities, self.stack.margins, self.groups)

    def sentences(self) -> list[str]:
        """What was found, for a person."""
        said = [_noise_sentence(self.noise, self.model)]
        count = int((self.probabilities > 0.5).sum())
        said.append(
            f"{count:,} of {len(self.pairs):,} labels are more likely reversed than not; p_flip "
            f"summed over all labels gives {self.probabilities.sum():,.0f} expected errors."
        )
        if self.noise.rate is None and count:
            said.append(GUESS)
        elif count:
            said.append(turning_sentence(*self.fewer_wrong()))
        worth = {name: self.evidence.log_likelihoods[name] for name in self.evidence.columns}
        best = max(worth, key=lambda name: worth[name])
        gain = worth[best] - np.log(0.5)
        if gain < _CHANCE:
            said.append(
                "No evidence agrees with the labels better than chance, so nothing can be said "
                "about single pairs."
            )
        else:
            said.append(
                f"The best evidence is {best} ({_strength(gain)}): it predicts a label {gain:.3f} "
                "nats better than a coin; 0.693 would be certainty."
            )
        said += [f"{reason}." for _, reason in self.evidence.aside.values()]
        return said


def _strength(gain: float) -> str:
    """A gain in nats per label over chance, in words."""
    return "weak" if gain < 0.01 else "moderate" if gain < 0.1 else "strong"


def groups_of(pairs: Pairs, column: str) -> NDArray[Any]:
    """[pairs] the values of a column of the pairs, or of the user's own, as text.

    Raises:
        DataError: where the pairs have no such column.
    """
    return pd.Series(_column(pairs, column)).fillna("(none)").astype(str).to_numpy(dtype=object)


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


def group_in_words(column: str, group: Any) -> str:
    """The name of a group behind that of its column, unless it says it itself."""
    name = str(group)
    return name if name.startswith(column) else f"{column} {name}"


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
    """A row an evidence: what it gains over chance alone, nats per label, and its weight."""
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
