"""Options that can be meant: each check gives the value back, or says what is wrong with it."""

from __future__ import annotations

import math


def number(name: str, value: object) -> float:
    """`value`; ValueError where it is no finite number (text, a truth value, NaN, infinity)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number; it is {value!r}.")
    return value


def positive(name: str, value: object) -> float:
    """`value`; ValueError where it is not a positive number."""
    if not number(name, value) > 0:
        raise ValueError(f"{name} must be positive; it is {value}.")
    return number(name, value)


def not_negative(name: str, value: object) -> float:
    """`value`; ValueError where it is not a number of at least 0."""
    if not number(name, value) >= 0:
        raise ValueError(f"{name} must be at least 0; it is {value}.")
    return number(name, value)


def share(name: str, value: object, below: float = 1.0) -> float:
    """`value`; ValueError where it is not in [0, below)."""
    if not 0 <= number(name, value) < below:
        raise ValueError(f"{name} must be in [0, {below:g}); it is {value}.")
    return number(name, value)


def truth(name: str, value: object) -> bool:
    """`value`; ValueError where it is neither True nor False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false; it is {value!r}.")
    return value
