"""Tables as CSV that a spreadsheet shows and does not compute."""

from __future__ import annotations

from typing import Any

import pandas as pd

_BEGIN_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(table: pd.DataFrame) -> str:
    """The table as CSV, without its index.

    Spreadsheets compute a text that begins with = + - @, a tab or a line's end, and can be made to
    start a program by one. Such a text, a column's name too, gets an apostrophe in front, as OWASP
    advises; numbers stay numbers.
    """
    columns = {number: table.iloc[:, number].map(_shown) for number in range(table.shape[1])}
    shown = pd.DataFrame(columns, index=table.index)
    return shown.set_axis([_shown(name) for name in table.columns], axis=1).to_csv(index=False)


def _shown(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_BEGIN_FORMULAS) else value
