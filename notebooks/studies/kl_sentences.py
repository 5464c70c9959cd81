"""Win rates beside their KL control for a reader: the table, each interval, and which are clear."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from plc_core.evaluation.results import bracketed, is_matched


def win_rates_shown(table: pd.DataFrame, keys: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The table as text: one row a method, benchmark and other keys, decodings side by side.

    Args:
        table: of `win_rates`.
        keys: the columns that tell rows apart, by what they are called; None is the method alone.
            Where there are several benchmarks, they are told apart too.

    Raises:
        ValueError: where two rows of the table have one place, as they have the same keys.
    """
    keys = dict(keys or {"method": "method"})
    if len(set(table["benchmark"])) > 1:
        keys["benchmark"] = "benchmark"
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for line in table.to_dict("records"):
        key = tuple(_key(line[column]) for column in keys)
        row = rows.setdefault(key, {})
        name = str(line["decoding"])
        if f"win %, {name}" in row:
            raise ValueError(f"Two rows of the win rates are those of {key} in {name} decoding.")
        text = bracketed(line[name] for name in ("win_rate", "low", "high"))
        text += " all ties" if line["ties"] == 100 else ""
        row[f"win %, {name}"] = text + (f" ({line['by_seed']})" if line["seeds"] > 1 else "")
        if "over_control" in line:
            over = "–"
            if not math.isnan(line["over_control"]):
                far = "" if is_matched(line["control_kl"], line["kl"]) else ", not matched"
                over = f"{_beyond(line)}{far}"
            row[f"over KL control, {name}"] = over
        if "kl" in line:
            row["KL, nats"] = bracketed((line["kl"], line["kl_low"], line["kl_high"]), 2)
        row["seeds × prompts"] = f"{line['seeds']} × {line['n']}"
    names = list(keys.values())
    index: pd.Index = pd.MultiIndex.from_tuples(list(rows), names=names)
    if len(names) == 1:
        index = pd.Index([key[0] for key in rows], name=names[0])
    shown = pd.DataFrame(list(rows.values()), index=index)
    last = [c for c in ("KL, nats", "seeds × prompts") if c in shown]
    return shown[[c for c in shown if c not in last] + last].fillna("–")


def _key(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def beyond_control(line: Mapping[Any, Any]) -> str:
    """What a row of `win_rates` leaves of its win rate beside the control, in words."""
    if math.isnan(line.get("over_control", math.nan)):
        return "no control shows what moving as far does"
    text = f"{_points(line)} beyond {_control(line)}"
    verdict = _verdict(line["over_low"], line["over_high"], 0)
    return f"{text}, {f'{verdict} than it' if verdict else 'no difference shown'}"


def results_in_words(
    rows: pd.DataFrame, dose: str, said: Callable[[float], str], method: str
) -> str:
    """How often a method is clearly better or worse, and then every row, a sentence a dose.

    Args:
        rows: of `win_rates` against DPO on the same data, those of one method, one row a dose and
            decoding (`seed_win_rates.headline`); without a control nothing is said of one.
        dose: the column that tells the data apart, as noise_rate.
        said: what a dose is in words, as "with 30% of the labels flipped".
        method: its name.
    """
    sentences = [_tally(rows, method)]
    for value, own in rows.groupby(dose):
        where = said(float(str(value)))
        parts = []
        for line in own.to_dict("records"):
            verdict = _verdict(line["low"], line["high"], 50)
            word = f"{verdict} than half" if verdict else "no difference shown"
            share = f"{line['win_rate']:.1f} % [{line['low']:.1f}, {line['high']:.1f}]"
            beyond = f"; {beyond_control(line)}" if "over_control" in line else ""
            parts.append(f"{share} in {line['decoding']} decoding ({word}{beyond})")
        sentences.append(f"{where[0].upper()}{where[1:]}, {method} wins {' and '.join(parts)}.")
    return " ".join(sentences)


def _tally(rows: pd.DataFrame, method: str) -> str:
    sides = {"DPO on the same data": ("low", "high", 50.0)}
    if "over_control" in rows:
        sides["plain DPO that moved as far (the KL control)"] = ("over_low", "over_high", 0.0)
    said = []
    for rival, (low, high, even) in sides.items():
        known = rows[rows[low].notna()]
        verdicts = [_verdict(*ends, even) for ends in zip(known[low], known[high], strict=True)]
        said.append(
            f"against {rival}, {method} wins clearly more in {verdicts.count('more')} of "
            f"{len(known)} comparisons and clearly less in {verdicts.count('less')}"
        )
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]} (95 % intervals)."


def _beyond(line: Mapping[Any, Any]) -> str:
    return bracketed((line["over_control"], line["over_low"], line["over_high"]), sign="+")


def _points(line: Mapping[Any, Any]) -> str:
    return _beyond(line).replace(" ", " points ", 1)


def _control(line: Mapping[Any, Any]) -> str:
    if is_matched(line["control_kl"], line["kl"]):
        return "the control of like KL"
    return (
        f"the nearest control, whose KL is not matched ({line['control_kl']:.2f} nats where the "
        f"method moved {line['kl']:.2f})"
    )


def _verdict(low: float, high: float, even: float) -> str:
    """Whether it is "more" or "less"; "" where the interval includes no difference."""
    return "more" if low > even else "less" if high < even else ""
