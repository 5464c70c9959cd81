"""Minus signs and per cent in texts."""

import pytest

from plc_core.typography import minus, percent


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-1.3 [-3.1, +0.6]", "−1.3 [−3.1, +0.6]"),
        ("z -.57", "z −.57"),
        ("2e-05 on 2026-11-30", "2e-05 on 2026-11-30"),
        ("own-data, 20-40, q-3", "own-data, 20-40, q-3"),
    ],
)
def test_only_negative_numbers_get_a_minus_sign(text: str, shown: str) -> None:
    assert minus(text) == shown


def test_a_share_is_per_cent_with_a_space() -> None:
    assert percent(0.2) == "20 %"
    assert percent(-0.013, 1) == "−1.3 %"
