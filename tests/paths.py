"""Where things lie, and what to skip where the reference material is not there."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def shared_file(relative: str) -> Path:
    """A file of the reference material beside the checkout; skips the test where it is missing."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"the reference material is not beside this checkout: no shared/{relative}")
    return path
