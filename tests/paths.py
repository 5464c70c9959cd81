"""Where things lie, and what to skip where the reference material is not there."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
DATA = ROOT / "tests" / "data"
LARGEST_REPORT = 2_000_000
"""Bytes."""


def shared_file(relative: str) -> Path:
    """A file of the reference material beside the checkout; skips the test where it is missing."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"the reference material is not beside this checkout: no shared/{relative}")
    return path


def reference_vectors() -> dict[str, Any]:
    """Losses and gradients that every implementation must give, float64, ten digits."""
    return json.loads((DATA / "vectors.json").read_text())
