"""Numbers as texts and tables print them: a true minus sign, and per cent as in 20 %."""

from __future__ import annotations

import re

# Not in names (own-data), exponents (2e-05), dates and ranges.
_HYPHEN = re.compile(r"(?<![\w.)\]-])-(?=\.?\d)")


def minus(text: str) -> str:
    """`text` with a minus sign, not a hyphen, before each negative number."""
    return _HYPHEN.sub("−", text)


def percent(share: float, digits: int = 0) -> str:
    """A share as text, as in 20 %."""
    return minus(f"{100 * share:.{digits}f} %")
