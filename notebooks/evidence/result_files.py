"""The CSV files of a study's results: which there are, and what is in them."""

from __future__ import annotations

import zlib
from pathlib import Path

import pandas as pd

from plc_core.storage.files import RunError

FILES = {"jobs": "jobs.csv", "measures": "measures.csv", "rewards": "rewards.csv.gz"}

COLUMNS = {
    "jobs": [
        "job", "slice", "method", "objective", "flip_rate", "tie_rate", "seed", "beta",
        "learning_rate", "epochs", "mixture", "changes", "state", "reason", "pairs", "steps",
        "tokens", "train_seconds", "seconds", "device", "workers", "model", "data", "calibration",
        "commit", "versions", "finished",
    ],
    "measures": ["job", "measure", "group", "value", "low", "high", "n"],
    "rewards": ["job", "prompt", "reward", "kl", "tokens"],
}  # fmt: skip

_NUMBERS = {
    "jobs": ["flip_rate", "tie_rate", "seed", "beta", "learning_rate", "train_seconds", "workers"],
    "measures": ["value", "low", "high", "n"],
    "rewards": ["reward", "kl", "tokens"],
}
_KEYS = {"jobs": ["job"], "measures": ["job", "measure", "group"], "rewards": ["job", "prompt"]}


def read_results(folder: Path, name: str) -> pd.DataFrame:
    """The table `name` of a folder of results; empty, with its columns, where there is no file.

    Raises:
        RunError: for a file that cannot be read, has other columns, text for a number, or a row
            twice.
    """
    path = folder / FILES[name]
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS[name])
    try:
        table = pd.read_csv(path)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    if list(table.columns) != COLUMNS[name]:
        raise RunError(
            f"{path} has the columns {', '.join(table.columns)}; expected "
            f"{', '.join(COLUMNS[name])}. It is of another version: move it away."
        )
    for column in _NUMBERS[name]:
        wrong = table[column].notna() & pd.to_numeric(table[column], errors="coerce").isna()
        if wrong.any():
            row = table[wrong].iloc[0]
            raise RunError(
                f"{path}, job {row['job']}: {column} is {row[column]!r}, and should be a number."
            )
    twice = table.duplicated(_KEYS[name])
    if twice.any():
        row = table.loc[twice, _KEYS[name]].iloc[0]
        raise RunError(f"{path} has a row twice: {', '.join(map(str, row))}. Remove one.")
    return table
