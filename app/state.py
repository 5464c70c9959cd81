"""What a person set on a page: kept while other pages are shown, and in the URL of its own page."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

_KEPT, _WRITTEN = "kept_", "written_to_the_url"


@dataclass(frozen=True)
class Codec:
    """How a value of a widget is written in a URL and read from one; ValueError for nonsense."""

    encode: Callable[[Any], list[str]]
    decode: Callable[[list[str]], Any]


def _one(texts: list[str]) -> str:
    return texts[-1]


def _number(texts: list[str]) -> int:
    value = int(_one(texts))
    if not 0 <= value < 2**31:
        raise ValueError(value)
    return value


def _flag(texts: list[str]) -> bool:
    if _one(texts) not in ("0", "1"):
        raise ValueError(texts)
    return _one(texts) == "1"


def _bound(text: str) -> float:
    value = float(text)
    if math.isnan(value):
        raise ValueError(text)
    return value


def _pair(texts: list[str]) -> tuple[float, float]:
    low, high = (_bound(part) for part in _one(texts).split("~"))
    return low, high


def _real(texts: list[str]) -> float:
    value = float(_one(texts))
    if not math.isfinite(value):
        raise ValueError(value)
    return value


TEXT = Codec(lambda value: [value] if value else [], _one)
TEXTS = Codec(lambda value: [str(v) for v in value or []], lambda texts: list(texts))
NUMBER = Codec(lambda value: [str(value)], _number)
REAL = Codec(lambda value: [f"{value:g}"], _real)
FLAG = Codec(lambda value: [str(int(value))], _flag)
RANGE = Codec(lambda value: [f"{value[0]!r}~{value[1]!r}"], _pair)


def kept(name: str, default: Any, codec: Codec, options: Collection[Any] | None = None) -> str:
    """The key of a widget whose value outlives its page and stands in the URL as `name`.

    What the URL says wins where it was changed from outside, as by a link; else the widget. A value
    that is none of the `options`, or that cannot be read, becomes the default. Call it just before
    the widget, and give the widget no value of its own.
    """
    key = _KEPT + name
    written: dict[str, list[str]] = st.session_state.setdefault(_WRITTEN, {})
    given = st.query_params.get_all(name)
    if given and given != written.get(name):
        try:
            st.session_state[key] = codec.decode(given)
        except ValueError:
            st.session_state[key] = default
    value = st.session_state.get(key, default)
    if options is not None:
        if isinstance(default, (list, tuple)):
            value = [one for one in value or [] if one in options]
        elif value not in options:
            value = default
    st.session_state[key] = value
    _write(name, [] if value == default else codec.encode(value))
    return key


def value_of(name: str) -> Any:
    """What `kept` keeps under a name; None before."""
    return st.session_state.get(_KEPT + name)


def set_kept(name: str, value: Any) -> None:
    """Change what `kept` keeps, from a callback; the URL follows when the page is drawn."""
    st.session_state[_KEPT + name] = value


def keep_alive() -> None:
    """Name every kept value again: Streamlit forgets those whose widgets are not drawn."""
    for name in list(st.session_state):
        if str(name).startswith(_KEPT):
            st.session_state[name] = st.session_state[name]


def _write(name: str, texts: Sequence[str]) -> None:
    written = st.session_state[_WRITTEN]
    if texts:
        if st.query_params.get_all(name) != list(texts):
            st.query_params[name] = list(texts)
        written[name] = list(texts)
    else:
        written.pop(name, None)
        if name in st.query_params:
            del st.query_params[name]
