"""Whether the paper's printed numbers can be what they are said to be, without computing any again.

Shares of so many prompts, one of three seeds, the largest of a column.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import pandas as pd

from plc_core.analysis.paper import BENCHMARK_SIZES, published

Rows: TypeAlias = list[dict[str, Any]]
"""One dictionary a check: table, quantity, published, recomputed, agrees."""


def seeds() -> Rows:
    """One of the three seeds is 42, the main tables' run: is any model's cell within reach?

    Of n numbers with standard deviation s none is farther from the mean than s (n-1)/sqrt(n).
    """
    cells = pd.concat([published("cells"), published("main_results")])
    cells = cells[cells["dataset"] == "UltraFeedback"]
    rows: Rows = []
    for method, group in published("seeds").groupby("method", sort=False):
        own = cells[cells["method"] == method]
        printed: list[Any] = list(group.itertuples())
        if own.empty:  # DPO has no cells: it is what they are measured against
            continue
        fitting = [
            str(model)
            for model, of_model in own.groupby("model", sort=False)
            if all(
                (
                    of_model[of_model["benchmark"] == line.benchmark]["win_rate"]
                    .sub(line.win_rate)
                    .abs()
                    <= (line.sd + 0.05) * (line.seeds - 1) / math.sqrt(line.seeds) + 0.1
                ).any()
                for line in printed
            )
        ]
        rows.append(
            {
                "table": "tab:seed-stability",
                "quantity": f"models whose cells of {method} can be one of the three seeds",
                "published": "one (not named)",
                "recomputed": ", ".join(fitting) or "none",
                "agrees": bool(fitting),
            }
        )
    return rows


def sizes() -> Rows:
    """Shares of n prompts with half wins are multiples of 1/(2n)."""
    main = published("main_results")
    rows: Rows = []
    for benchmark, group in main.groupby("benchmark", sort=False):
        n = BENCHMARK_SIZES.get(str(benchmark))
        if n is not None:
            rows.append(
                {
                    "table": "tab:main-results",
                    "quantity": f"win rates on {benchmark} are shares of its prompts",
                    "published": str(n),
                    "recomputed": str(n) if fits_size(group["win_rate"], n) else "no",
                    "agrees": fits_size(group["win_rate"], n),
                }
            )
    return rows


def fits_size(win_rates: pd.Series, n: int) -> bool:
    """Whether all `win_rates` (percent, two decimals) can be shares of n prompts with half wins."""
    steps = win_rates * 2 * n / 100
    return bool(((steps - steps.round()).abs() <= 0.0051 * 2 * n / 100 + 1e-9).all())


def marks() -> Rows:
    """Bold is the largest of its group, underline the second largest, equal numbers alike."""
    groups = {
        "main_results": ["table", "model", "benchmark"],
        "cells": ["table", "model", "benchmark"],
        "aggregates": ["table", "dataset", "model", "statistic"],
        "noise": ["table", "dataset", "noise_rate"],
        "ablations": ["table", "benchmark"],
        "tie_injection": ["table", "tie_rate"],
        "seeds": ["table", "benchmark"],
        "commercial_judge": ["table", "benchmark"],
    }
    rows: Rows = []
    for name, keys in groups.items():
        for key, group in published(name).groupby(keys, sort=False):
            ranks = group["win_rate"].rank(method="dense", ascending=False)
            expected = ranks.map({1.0: "best", 2.0: "second"})
            printed = group["mark"].fillna("")
            who = group["variant" if name == "ablations" else "method"]
            if (printed == "").all():
                continue
            rows.append(
                {
                    "table": str(key[0]),
                    "quantity": "best and second best of " + ", ".join(map(str, key[1:])),
                    "published": _marked(who, printed),
                    "recomputed": _marked(who, expected.fillna("")),
                    "agrees": bool((printed == expected.fillna("")).all()),
                }
            )
    return rows


def _marked(who: pd.Series, marks: pd.Series) -> str:
    return "; ".join(
        f"{mark}: {', '.join(who[marks == mark])}"
        for mark in ("best", "second")
        if mark in set(marks)
    )
