"""The judged answers behind a number: a list from the clearest loss on, and one pair of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st
from inspection.judged_answers import (
    benchmark_of,
    outcomes,
    prompt_of,
    prompts_of,
    read_answer,
)
from inspection.pair import beginning
from marking import STYLE, block, literal, plain, prompt_turns
from selection import select_rows, selected_rows
from state import TEXT, kept

from plc_core.runs import Run

REFERENCE = "reference"
PROMPT_WIDTH = 300


def answers_behind(
    opened: Mapping[str, Run],
    table: pd.DataFrame,
    name: str,
    baseline: str,
    methods: list[str],
) -> None:
    """The answers behind one cell of the table, from its clearest loss to its clearest win."""
    st.subheader("The answers behind a cell", anchor=False)
    left, middle, right = st.columns(3)
    method = left.selectbox("Method", methods, key=kept("method", methods[0], TEXT, methods))
    decodings = list(dict.fromkeys(table["decoding"]))
    decoding = middle.selectbox(
        "Decoding", decodings, key=kept("decoding", decodings[0], TEXT, decodings)
    )
    kinds = ["all", "win", "tie", "loss"]
    outcome = right.selectbox("Outcome", kinds, key=kept("outcome", "all", TEXT, kinds))
    rows = outcomes(table, method, baseline, decoding)
    counts = rows["outcome"].value_counts()
    if outcome != "all":
        rows = rows[rows["outcome"] == outcome].reset_index(drop=True)
    st.caption(
        f"{counts.get('win', 0):,} won, {counts.get('tie', 0):,} level, "
        f"{counts.get('loss', 0):,} lost. Select a row to read both answers."
    )
    if rows.empty:
        return
    ids = rows["prompt_id"].tolist()
    key = "answers_table"
    kept("prompt", "", TEXT)
    current = st.session_state["kept_prompt"]

    def selected() -> None:
        for row in selected_rows(key):
            st.session_state["kept_prompt"] = ids[row]

    shown = current if current in ids else ids[0]
    select_rows(key, [ids.index(shown)])
    number = st.column_config.NumberColumn(format="%.3f", width=85)
    asked = _prompts(opened.get(method, next(iter(opened.values()))), name, decoding)
    # An id names a prompt whose text is not kept.
    rows.insert(0, "prompt", [beginning(asked.get(i, "")) or i for i in ids])
    st.dataframe(
        rows.drop(columns="prompt_id"),
        key=key,
        hide_index=True,
        height=212,
        on_select=selected,
        selection_mode="single-row",
        column_config={
            **dict.fromkeys(("reward", "baseline", "difference"), number),
            "prompt": st.column_config.TextColumn(width=PROMPT_WIDTH),
            "outcome": st.column_config.TextColumn(width=75),
        },
    )
    _side_by_side(opened, name, shown, decoding, (method, baseline), rows)


def _prompts(run: Run, name: str, decoding: str) -> dict[str, str]:
    benchmark = benchmark_of(run, name)
    path = run.path / "generations" / f"{benchmark}.parquet"
    if benchmark is None or not path.is_file():
        return {}
    return _prompts_of(str(path), path.stat().st_mtime_ns, benchmark, decoding, run)


@st.cache_data(max_entries=16, show_spinner=False)
def _prompts_of(
    path: str, changed: int, benchmark: str, decoding: str, _run: Run
) -> dict[str, str]:
    return prompts_of(_run, benchmark, decoding)


def _side_by_side(
    opened: Mapping[str, Run],
    name: str,
    prompt_id: str,
    decoding: str,
    sides: tuple[str, str],
    rows: pd.DataFrame,
) -> None:
    st.html(STYLE)
    row = rows[rows["prompt_id"] == prompt_id].iloc[0]
    any_run = next(iter(opened.values()))
    answers: list[dict[str, Any] | None] = []
    for side in sides:
        run = opened.get(side, any_run)
        benchmark = benchmark_of(run, name)
        policies = [REFERENCE] if side == REFERENCE else ["trained"]
        answers.append(
            read_answer(run, benchmark, prompt_id, decoding, policies) if benchmark else None
        )
    known = next((answer for answer in answers if answer), None)
    if known is None:
        st.info("The answers themselves are not kept in these runs.")
        return
    shown = prompt_turns(prompt_of(known)) or "Its prompt is not kept."
    st.html(f'<div class="plc-prompt">{shown}</div>')
    rewards = (row["reward"], row["baseline"])
    for column, side, answer, reward in zip(st.columns(2), sides, answers, rewards, strict=True):
        column.markdown(f"**{plain(side)}** · reward {reward:.3f}")
        said = str(answer["response"]) if answer else "This answer is not kept."
        column.html(block(literal(said)))
