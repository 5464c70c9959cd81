"""Whether a part of a page is in view: what costs much to draw can wait until it is.

Streamlit makes a chart of Plotly's anew whenever what it shows changes, which takes a browser
longer than the rest of the page of pairs.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

_component = st.components.v2.component(
    "plc_in_view",
    html="<i></i>",
    js=(Path(__file__).parent / "in_view.js").read_text(encoding="utf-8"),
    isolate_styles=False,
)


def in_view(key: str) -> bool:
    """Whether the container that this is called in is in view; so until it is known.

    The fragment around it runs again where that changes.
    """
    seen = bool((st.session_state.get(key) or {}).get("seen", True))
    _component(key=key, data={"seen": seen}, on_seen_change=_heard)
    return seen


def _heard() -> None:
    """What the browser said is kept under the component's key."""
