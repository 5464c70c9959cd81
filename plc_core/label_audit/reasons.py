"""Why a pair is suspicious, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_STRONG = 1.0
"""An evidence is a reason where it speaks against the label as strongly as it speaks of any pair,
in root mean squares of what it adds."""


def reasons(
    contributions: pd.DataFrame,
    aside: dict[str, NDArray[np.float64]],
    table: pd.DataFrame,
    lengths: NDArray[np.int64],
    unit: str,
    findings: dict[str, str],
    of_group: Sequence[str] = (),
) -> list[str]:
    """One text a pair: the evidence that speaks against its label, the strongest first.

    Args:
        contributions: of `posterior.Stack`.
        aside: evidence that is not added up, in the labels' direction.
        table: pair_id, score_chosen and score_rejected.
        lengths: [pairs, 2] of chosen and rejected.
        unit: what lengths count.
        findings: by pair id, what validation found that bears on the label.
        of_group: [pairs], what is known of the labels of the pair's group; "" where nothing.
    """
    typical = np.sqrt((contributions**2).mean()).replace(0.0, np.inf)
    strength = (-contributions / typical).to_numpy()
    strongest = np.argsort(-strength, axis=1, kind="stable")
    names = [str(name) for name in contributions]
    ids = table["pair_id"].tolist()
    texts = []
    for row, pair_id in enumerate(ids):
        parts = []
        if pair_id in findings:
            parts.append(findings[pair_id])
        for name, column in aside.items():
            if np.isfinite(column[row]) and column[row] < 0:
                parts.append(_contradicted(name, table, row))
        parts += [
            _said(names[place], table, row, lengths, unit)
            for place in strongest[row]
            if strength[row, place] >= _STRONG
        ]
        if of_group and of_group[row]:
            parts.append(of_group[row])
        texts.append("; ".join(dict.fromkeys(parts)))
    return texts


def _said(name: str, table: pd.DataFrame, row: int, lengths: NDArray[np.int64], unit: str) -> str:
    if name in ("length", "log length"):
        chosen, rejected = (int(n) for n in lengths[row])
        word = "shorter" if chosen < rejected else "longer"
        return f"unlike most, the preferred answer is {word} ({chosen} against {rejected} {unit})"
    if name == "hidden states":
        return "answers like the rejected one are preferred on other prompts (hidden states)"
    if name == "words":
        return "the rejected answer reads like preferred ones"
    return _contradicted(name, table, row)


def _contradicted(name: str, table: pd.DataFrame, row: int) -> str:
    if name == "scores":
        one, other = table["score_chosen"].iloc[row], table["score_rejected"].iloc[row]
        return f"the scores say the opposite ({one:g} against {other:g})"
    return f"most {name} are against the label"
