"""Pairs that several people judged: does routing know where they disagree?

Table "Zero-shot tie routing on MultiPref human-agreement groups".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from plc_core.analysis.paper import published
from plc_core.analysis.routing.pooling import between, number
from plc_core.analysis.statistics import (
    Jonckheere,
    MannWhitney,
    format_p,
    holm,
    jonckheere,
    mann_whitney,
    mean_interval,
    read_aloud,
)
from plc_core.data.votes import VOTE_GROUPS

_MEASURES = ("q_tie", "q_flip", "abs_margin")
NAMES = {"q_tie": "q_tie", "q_flip": "q_flip", "abs_margin": "|m|"}
"""How the measures are written."""


@dataclass(frozen=True)
class Agreement:
    """Groups of human agreement under one policy and calibration.

    `groups`: measure, group, n, missing, mean, low, high, change (percent of the unanimous mean),
    p, log10_p and p_holm (Mann-Whitney against unanimous: q larger, |m| smaller; Holm over the
    two groups of a measure). `trends`: the Jonckheere-Terpstra test of each measure over the
    groups in their order, unanimous, divergent, tie-majority; of |m| that it falls.
    `last_step`: Mann-Whitney of q_tie in tie-majority against divergent, as a trend over three
    groups may come from the first alone.
    `ungrouped` pairs have fewer than two votes.
    """

    groups: pd.DataFrame
    trends: dict[str, Jonckheere]
    last_step: MannWhitney
    ungrouped: int


def agreement(scores: pd.DataFrame) -> Agreement:
    """The groups of a probe's scores under one calibration (see `of_calibration`)."""
    table = scores.assign(abs_margin=scores["margin"].abs())
    rows = []
    trends = {}
    for measure in _MEASURES:
        falls = measure == "abs_margin"
        parts: dict[str, pd.Series] = {
            name: table.loc[table["group"] == name, measure] for name in VOTE_GROUPS
        }
        base = mean_interval(parts[VOTE_GROUPS[0]])
        family: list[dict[str, Any]] = []
        for name, values in parts.items():
            mean = mean_interval(values)
            test = mann_whitney(values, parts[VOTE_GROUPS[0]], "less" if falls else "greater")
            first = name == VOTE_GROUPS[0]
            family.append(
                {
                    "measure": measure,
                    "group": name,
                    "n": mean.n,
                    "missing": int(values.isna().sum()),
                    "mean": mean.mean,
                    "low": mean.low,
                    "high": mean.high,
                    "change": math.nan if first else 100 * (mean.mean / base.mean - 1),
                    "p": math.nan if first else test.p,
                    "log10_p": math.nan if first else test.log10_p,
                }
            )
        adjusted = holm([float(row["p"]) for row in family])
        rows += [row | {"p_holm": p} for row, p in zip(family, adjusted, strict=True)]
        trends[measure] = jonckheere(parts, "less" if falls else "greater")
    q_tie = {name: table.loc[table["group"] == name, "q_tie"] for name in VOTE_GROUPS}
    last = mann_whitney(q_tie["tie-majority"], q_tie["divergent"], "greater")
    return Agreement(pd.DataFrame(rows), trends, last, int(table["group"].isna().sum()))


def agreement_shown(found: Mapping[tuple[str, str], Agreement]) -> pd.DataFrame:
    """The paper's table for q_tie, by policy and calibration, with its own rows below."""
    rows = []
    for (policy, calibration), result in found.items():
        for row in result.groups[result.groups["measure"] == "q_tie"].to_dict("records"):
            p = "" if math.isnan(row["p_holm"]) else format_p(row["p_holm"], row["log10_p"])
            rows.append(
                {
                    "policy": policy,
                    "calibration": calibration,
                    "group": row["group"],
                    "n": f"{row['n']:,}",
                    "mean q_tie": between(row["mean"], row["low"], row["high"], 4),
                    "against unanimous": _change(row["change"]),
                    "Mann–Whitney, Holm": p,
                }
            )
    for line in published("multipref").to_dict("records"):
        change = line["change_percent"]
        rows.append(
            {
                "policy": "paper, MultiPref",
                "calibration": "",
                "group": line["group"],
                "n": f"{line['n']:,}",
                "mean q_tie": number(line["mean_q_tie"], 4),
                "against unanimous": _change(change),
                "Mann–Whitney, Holm": "" if math.isnan(change) else "p < 1e-15, uncorrected",
            }
        )
    return pd.DataFrame(rows).set_index(["policy", "calibration", "group"])


def other_measures_shown(found: Mapping[tuple[str, str], Agreement]) -> pd.DataFrame:
    """Means of q_flip and |m| by group beside q_tie's, and the trend of each."""
    rows = []
    for (policy, calibration), result in found.items():
        for measure, part in result.groups.groupby("measure", sort=False):
            trend = result.trends[str(measure)]
            means = {
                str(row["group"]): between(row["mean"], row["low"], row["high"], 4)
                for row in part.to_dict("records")
            }
            rows.append(
                {
                    "policy": policy,
                    "calibration": calibration,
                    "measure": NAMES[str(measure)],
                    **means,
                    "trend": _direction(trend),
                    "concordance": between(trend.concordance, trend.low, trend.high),
                    "p": format_p(trend.p, trend.log10_p).removeprefix("p = "),
                }
            )
    return pd.DataFrame(rows).set_index(["policy", "calibration", "measure"])


def _direction(trend: Jonckheere) -> str:
    if not (trend.low > 0.5 or trend.high < 0.5):
        return "not shown"
    return "rises" if trend.concordance > 0.5 else "falls"


def agreement_sentence(result: Agreement, policy: str) -> str:
    """The trend of q_tie aloud, its last step, and the pairs that are in no group."""
    trend = read_aloud(result.trends["q_tie"], "q_tie")
    last = read_aloud(result.last_step, "q_tie", "tie-majority", "divergent")
    # Both stand behind a colon.
    trend, last = (said[0].lower() + said[1:] for said in (trend, last))
    sentence = f"{policy}: {trend} The last step alone: {last}"
    if result.ungrouped:
        sentence += f" {result.ungrouped:,} pairs have fewer than two votes and are in no group."
    return sentence


def _change(percent: float) -> str:
    return "–" if math.isnan(percent) else f"{percent:+.1f} %"
