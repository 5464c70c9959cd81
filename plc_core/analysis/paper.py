"""The paper's published numbers: every table, and the numbers in its text, as typed data frames.

They lie in `data/paper/*.csv` beside the package, a row a number (or a group of numbers that one
row of the paper shows together), and every row names the table or section that it is from by its
label in the paper's source. Win rates are percent, ties half wins; names of models, datasets and
benchmarks are the paper's, written one way.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from plc_core.storage.files import RunError
from plc_core.storage.paths import resource

_WIN = {"win_rate": "float64", "mark": "string"}
_CELL = {"table": "string", "dataset": "string", "model": "string", "benchmark": "string"}
_CELL |= {"method": "string", **_WIN}

SCHEMAS: dict[str, dict[str, str]] = {
    "main_results": _CELL,
    "cells": _CELL,
    "aggregates": {
        "table": "string",
        "dataset": "string",  # "all": over every dataset
        "model": "string",
        "method": "string",
        "statistic": "string",  # mean or worst, over cells
        "cells": "Int64",  # how many; missing where the paper does not say
        **_WIN,
    },
    "noise": {
        "table": "string",
        "dataset": "string",
        "model": "string",
        "benchmark": "string",
        "baseline": "string",
        "method": "string",
        "noise_rate": "float64",
        **_WIN,
    },
    "ablations": {
        "table": "string",
        "model": "string",
        "variant": "string",
        "benchmark": "string",
        **_WIN,
    },
    "sweeps": {
        "table": "string",
        "model": "string",
        "benchmark": "string",
        "hyperparameter": "string",
        "value": "float64",
        "win_rate": "float64",
        "range_low": "float64",  # of the hyperparameter's row, as printed
        "range_high": "float64",
    },
    "recipes": {
        "table": "string",
        "recipe": "string",
        "hyperparameter": "string",
        "value": "float64",
    },
    "training": {"table": "string", "setting": "string", "value": "float64"},
    "tie_injection": {
        "table": "string",
        "benchmark": "string",
        "method": "string",
        "tie_rate": "float64",
        "win_rate": "float64",
        "over_dpo": "float64",  # points, as printed
        "mark": "string",
    },
    "tie_pairs": {
        "table": "string",
        "score": "string",
        "injected": "float64",  # means of the score
        "clean": "float64",
        "auroc": "float64",
    },
    "multipref": {
        "table": "string",
        "group": "string",
        "n": "int64",
        "mean_q_tie": "float64",
        "change_percent": "float64",  # of the mean, against unanimous
    },
    "hard_pairs": {
        "table": "string",
        "model": "string",
        **dict.fromkeys(
            [
                "noise_rate",
                "q_clean",
                "q_flip",
                "q_tie",
                "argmax_flip",
                "marked_q_flip",
                "unmarked_q_flip",
                "marker_auroc",
            ],
            "float64",
        ),
    },
    "runtime": {
        "table": "string",
        "method": "string",
        "total_seconds": "float64",
        "total_steps": "int64",
        "step_seconds": "float64",  # median over the windows
        "step_low": "float64",  # range of the windows' medians
        "step_high": "float64",
        "windows": "int64",
        "window_steps": "int64",
        "overhead": "string",  # as printed; missing for DPO
    },
    "seeds": {
        "table": "string",
        "benchmark": "string",
        "method": "string",
        "seeds": "int64",
        "win_rate": "float64",  # mean over seeds
        "sd": "float64",
        "mark": "string",
    },
    "commercial_judge": {
        "table": "string",
        "model": "string",
        "benchmark": "string",
        "method": "string",
        "n": "int64",
        "single_score": "float64",  # mean of scores from 1 to 10
        "single_mark": "string",
        **_WIN,
    },
    "claims": {
        "place": "string",  # the label of the section
        "dataset": "string",
        "model": "string",
        "quantity": "string",
        "value": "float64",
        "low": "float64",
        "high": "float64",
    },
}
"""The columns of each file and their types. `mark` is "best", "second" or missing, as printed."""

OBJECTIVES = {
    "DPO": "dpo",
    "cDPO": "cdpo",
    "rDPO": "rdpo-length",
    "KTO-Pair": "kto-pair",
    "RSO": "rso",
    "γ-PO": "gamma-po",
    "Dr.DPO": "dr-dpo",
    "ROPO": "ropo",
    "RE-PO": "re-po",
    "PLC-DPO": "plc",
}
"""The objective of this project that a method's name in the paper means. The paper's "rDPO" is the
length-regularised one, which its paragraph "Baselines" cites (Park et al.); Chowdhury et al.'s
unbiased loss, which others call rDPO, is in no table of the paper and goes by its own name."""

NAMES = {objective: method for method, objective in OBJECTIVES.items()}
"""The paper's name of an objective of this project, one to one."""

BENCHMARK_SIZES = {
    "AlpacaEval": 805,
    "AlpacaEval 2": 805,
    "HH-RLHF": 805,
    "MT-Bench": 80,
    "UltraFeedback": 2000,
    "Vicuna": 80,
}
"""Prompts of each benchmark as section "Evaluation Protocol" gives them; not of Evol-Instruct."""


@cache
def _read(name: str) -> pd.DataFrame:
    if name not in SCHEMAS:
        raise RunError(f"The paper has no table {name!r} here; known are {', '.join(SCHEMAS)}.")
    path = resource("data") / "paper" / f"{name}.csv"
    schema = SCHEMAS[name]
    try:
        header = list(pd.read_csv(path, nrows=0).columns)
        if header != list(schema):
            raise ValueError(f"its columns are {header}, expected {list(schema)}")
        return pd.read_csv(path, dtype=schema)
    except (OSError, ValueError) as error:
        raise RunError(f"The published numbers in {path} cannot be read: {error}.") from None


def published(name: str, **where: str | float) -> pd.DataFrame:
    """The file `name` of data/paper, or its rows whose columns equal `where`.

    Raises:
        RunError: for an unknown name or column, or a file that is missing or not as described.
    """
    table = _read(name).copy()
    for column, value in where.items():
        if column not in table:
            raise RunError(f"{name} has no column {column!r}; it has {', '.join(table.columns)}.")
        table = table[(table[column] == value).fillna(False)]
    return table.reset_index(drop=True)


def lines(name: str, **where: str | float) -> list[Any]:
    """The rows of `published` as named tuples."""
    return list(published(name, **where).itertuples(index=False))


def claim(quantity: str, **where: str | float) -> float:
    """One number of the paper's text by its name in claims.csv; RunError unless there is one."""
    rows = published("claims", quantity=quantity, **where)
    if len(rows) != 1:
        raise RunError(f"{len(rows)} numbers of the paper are named {quantity!r}, expected one.")
    return float(rows["value"].iloc[0])
