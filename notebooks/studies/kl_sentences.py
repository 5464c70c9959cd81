"""Win rates beside their KL control, in sentences: every interval, and which of them are clear."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from plc_core.evaluation.kl_matching import TOLERANCE


def is_matched(line: Mapping[Any, Any]) -> bool:
    """Whether the control of a row of `win_rates` moved as far as the method, within a tenth."""
    return line["control_kl"] > 0 and abs(line["control_kl"] - line["kl"]) <= (
        TOLERANCE * line["kl"]
    )


def beyond_control(line: Mapping[Any, Any]) -> str:
    """What a row of `win_rates` leaves of its win rate beside the control, in words."""
    if math.isnan(line.get("over_control", math.nan)):
        return "there is no control to say what a like KL does"
    text = f"{_points(line)} beyond {_control(line)}"
    verdict = _verdict(line["over_low"], line["over_high"], 0)
    return f"{text}, {f'{verdict} than it' if verdict else 'no difference shown'}"


def results_in_words(
    rows: pd.DataFrame, dose: str, said: Callable[[float], str], method: str
) -> str:
    """Every row of a method in sentences, one a dose, and then which intervals are clear.

    Args:
        rows: of `win_rates` against DPO on the same data, those of one method, one row a dose and
            decoding (`kl_control.headline`); without a control nothing is said of one.
        dose: the column that tells the data apart, as noise_rate.
        said: what a dose is in words, as "with 30% of the labels flipped".
        method: its name.
    """
    sentences, clear = [], []
    for value, own in rows.groupby(dose):
        where = said(float(str(value)))
        parts = []
        for line in own.to_dict("records"):
            verdict = _verdict(line["low"], line["high"], 50)
            word = f"{verdict} than half" if verdict else "no difference shown"
            share = f"{line['win_rate']:.1f} % [{line['low']:.1f}, {line['high']:.1f}]"
            beyond = f"; {beyond_control(line)}" if "over_control" in line else ""
            parts.append(f"{share} in {line['decoding']} decoding ({word}{beyond})")
            place = f"{where} in {line['decoding']} decoding"
            if verdict:
                clear.append(f"{place}, {share} against DPO on the same data, {verdict}")
            if "over_low" in line and (over := _verdict(line["over_low"], line["over_high"], 0)):
                clear.append(f"{place}, {_points(line)} beyond {_control(line)}, {over}")
        sentences.append(f"{where[0].upper()}{where[1:]}, {method} wins {' and '.join(parts)}.")
    count = len(rows)
    if "over_control" in rows:
        count += int(rows["over_control"].notna().sum())
    sentences.append(
        f"Of these {count} intervals {len(clear)} exclude{'s' if len(clear) == 1 else ''} a "
        f"difference of 0: {'; '.join(clear)}."
        if clear
        else f"All of these {count} intervals include a difference of 0: nothing is clear."
    )
    return " ".join(sentences)


def _points(line: Mapping[Any, Any]) -> str:
    bounds = f"[{line['over_low']:+.1f}, {line['over_high']:+.1f}]"
    return f"{line['over_control']:+.1f} points {bounds}"


def _control(line: Mapping[Any, Any]) -> str:
    if is_matched(line):
        return "the control of like KL"
    return (
        f"the nearest control, whose KL is not matched ({line['control_kl']:.2f} nats where the "
        f"method moved {line['kl']:.2f})"
    )


def _verdict(low: float, high: float, even: float) -> str:
    """Whether it is "more" or "less"; "" where the interval includes no difference."""
    return "more" if low > even else "less" if high < even else ""
