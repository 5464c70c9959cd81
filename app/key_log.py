"""What was pressed in a component of the browser, which sends it until it is acknowledged.

A log is {client, entries}, each entry with a number `seq` that counts up: so each is taken once and
in order, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import streamlit as st

from plc_core.storage.files import RunError

Entry = Mapping[str, Any]


class Taken(NamedTuple):
    """How many entries were new; of one that could not be taken what is wrong, and the entry."""

    entries: int
    problem: str | None = None
    refused: Entry | None = None


def acknowledged(key: str) -> dict[str, Any]:
    """Up to which entry the component `key` was heard, for its data."""
    return dict(st.session_state.get(_name(key), {"client": "", "seq": 0}))


def take_new(key: str, take: Callable[[Entry], None]) -> Taken:
    """Take each new entry of the component `key`; after one that is refused, none."""
    log = (st.session_state.get(key) or {}).get("log") or {}
    client, heard = str(log.get("client")), acknowledged(key)
    done = heard["seq"] if heard["client"] == client else 0
    entries = [entry for entry in log.get("entries", []) if entry["seq"] > done]
    if not entries:
        return Taken(0)
    st.session_state[_name(key)] = {"client": client, "seq": entries[-1]["seq"]}
    for number, entry in enumerate(entries):
        try:
            take(entry)
        except (RunError, OSError) as error:
            later = len(entries) - number - 1
            more = f" Nor were the {later} keys after it." if later else ""
            return Taken(len(entries), f"{error}{more}", entry)
    return Taken(len(entries))


def _name(key: str) -> str:
    return f"{key}_acknowledged"
