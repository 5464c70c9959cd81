"""Win rates: the tables, the published numbers beside them, and the answers behind any cell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from elements import Guide, chart, page_title
from listing import listed, training_runs
from marking import STYLE, block, literal, plain
from reading import config_of, open_below, runs_root, shown_errors
from selection import chosen_runs, select_rows, selected_rows
from state import TEXT, TEXTS, kept, value_of

from plc_core.analysis.figures.overlay import win_rates
from plc_core.analysis.inspection.answers import (
    benchmark_of,
    judged,
    judgement_files,
    outcomes,
    read_answer,
    read_judgements,
)
from plc_core.analysis.paper import BENCHMARK_SIZES, NAMES, published
from plc_core.evaluation.cells import win_rate_cells
from plc_core.evaluation.tables import win_table
from plc_core.evaluation.win_rate import JoinError, verdict_win_rate
from plc_core.runs import Run

REFERENCE = "reference"
WIN = Guide(
    "Each run's share of prompts won against the baseline, ties one half, with 95 % bootstrap "
    "intervals over prompts; 50 % is even.",
    "Intervals that clear 50 % in both decodings, and against a DPO run that moved as far (KL).",
    "Why it wins: a method that moves further from the start wins for that alone.",
)


def page() -> None:
    """Draw the page."""
    page_title("Win rates", "Do the policies answer better, and what do their answers look like?")
    root = runs_root()
    found = _found(root)
    if not found:
        st.info(
            "No run has judged answers yet. `plc_core.evaluation` generates and judges them; runs "
            "in the embedded world are judged at the end of training (eval_prompts)."
        )
        return
    files = sorted({name for kinds in found.values() for name in kinds})
    left, middle, right = st.columns([0.26, 0.5, 0.24])
    name = left.selectbox("Judgements", files, key=kept("judged", files[0], TEXT, files))
    having = [run for run, kinds in found.items() if name in kinds]
    like = [run for run in having if run in chosen_runs(root)] or having[:6]
    if len(like) < 2:
        like = having[:6]
    picked = middle.multiselect("Runs", having, key=kept("won_by", like, TEXTS, having))
    opened: dict[str, Run] = {}
    for run_name in picked:
        with shown_errors(run_name):
            opened[run_name] = open_below(root, run_name)
    if not opened:
        st.info("Choose runs.")
        return
    kind = found[picked[0]][name]
    with shown_errors(", ".join(picked)):
        if kind == "verdicts":
            _verdicts(opened, name)
        else:
            _scores(opened, name, right)
    _published(opened)


def _found(root: Path) -> dict[str, dict[str, str]]:
    found = {}
    for summary in training_runs(listed(root)):
        if summary.problem is None and (summary.path / "judgements").is_dir():
            with shown_errors(summary.name):
                if kinds := judgement_files(open_below(root, summary.name)):
                    found[summary.name] = kinds
    return found


def _scores(opened: Mapping[str, Run], name: str, place: st.delta_generator.DeltaGenerator) -> None:
    table = judged(opened, name)
    methods = list(dict.fromkeys(table["method"]))
    plain_dpo = [m for m in methods if _objective(opened, m) == "dpo"]
    pinned = value_of("baseline")
    first = pinned if pinned in methods else (plain_dpo or methods)[-1]
    baseline = place.selectbox("Baseline", methods, key=kept("against", first, TEXT, methods))
    try:
        cells = win_rate_cells(table, baseline, ("benchmark", "decoding"), incomplete="common")
    except JoinError as error:
        st.warning(plain(str(error)))
        return
    shown = cells.assign(cell=cells["decoding"])
    made = win_table(shown, column="cell", sizes=BENCHMARK_SIZES)
    left, right = st.columns([0.5, 0.5])
    with left:
        chart(f"Against {plain(baseline)}", win_rates(cells), WIN, key="win_rates")
    with right, st.container(border=True, height="stretch"):
        st.markdown("**Win rate, %** (best in a column marked * and second †)")
        st.dataframe(made.frame().reset_index(), key="win_table", hide_index=True, height="content")
        for note in made.notes:
            st.text(note)
        st.dataframe(
            cells.drop(columns=["benchmark", "note"]),
            key="win_cells",
            hide_index=True,
            height="content",
            column_config={
                **dict.fromkeys(
                    ("win_rate", "low", "high"), st.column_config.NumberColumn(format="%.1f")
                ),
                **dict.fromkeys(
                    ("p_sign", "p_wilcoxon"), st.column_config.NumberColumn(format="%.2g")
                ),
            },
        )
        st.download_button("CSV", made.csv(), "win-rates.csv", key="wins_csv", on_click="ignore")
    _answers(opened, table, name, baseline, [m for m in methods if m != baseline])


def _verdicts(opened: Mapping[str, Run], name: str) -> None:
    rows = []
    for run_name, run in opened.items():
        table = read_judgements(run, name)
        for decoding, own in table.groupby("decoding"):
            result = verdict_win_rate(own.set_index("prompt_id")["win"], incomplete="common")
            share = result.share
            rows.append(
                {
                    "method": run_name,
                    "decoding": decoding,
                    "n": share.n,
                    "win_rate": 100 * share.mean,
                    "low": 100 * share.low,
                    "high": 100 * share.high,
                    "note": result.note,
                }
            )
    cells = pd.DataFrame(rows)
    chart(f"Verdicts of {plain(name)}", win_rates(cells), WIN, key="win_rates")
    st.dataframe(cells, key="verdict_cells", hide_index=True, height="content")


def _answers(
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
        f"{len(rows):,} prompts; in all {counts.get('win', 0):,} won, {counts.get('tie', 0):,} "
        f"level, {counts.get('loss', 0):,} lost. Select one to read both answers."
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
    number = st.column_config.NumberColumn(format="%.3f")
    st.dataframe(
        rows,
        key=key,
        hide_index=True,
        height=212,
        on_select=selected,
        selection_mode="single-row",
        column_config=dict.fromkeys(("reward", "baseline", "difference"), number),
    )
    _side_by_side(opened, name, shown, decoding, (method, baseline), rows)


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
    prompt = known.get("conversation") or known.get("prompt")
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False, indent=1)
    st.html(f'<div class="plc-role">prompt</div>{block(literal(text))}')
    rewards = (row["reward"], row["baseline"])
    for column, side, answer, reward in zip(st.columns(2), sides, answers, rewards, strict=True):
        column.markdown(f"**{plain(side)}** · reward {reward:.3f}")
        said = str(answer["response"]) if answer else "This answer is not kept."
        column.html(block(literal(said)))


def _published(opened: Mapping[str, Run]) -> None:
    """The paper's win rates of the methods that these runs trained, on a model and dataset."""
    st.subheader("Published numbers", anchor=False)
    cells = published("cells")
    left, right = st.columns(2)
    models = sorted(cells["model"].unique())
    model = left.selectbox("Model", models, key=kept("model", models[0], TEXT, models))
    datasets = sorted(cells.loc[cells["model"] == model, "dataset"].unique())
    dataset = right.selectbox("Dataset", datasets, key=kept("data", datasets[0], TEXT, datasets))
    of = cells[(cells["model"] == model) & (cells["dataset"] == dataset)]
    wide = of.pivot_table(index="method", columns="benchmark", values="win_rate", sort=False)
    own = {NAMES.get(_objective(opened, name), "") for name in opened}
    wide.insert(0, "trained here", [method in own for method in wide.index])
    st.dataframe(
        wide.reset_index(),
        key="published",
        hide_index=True,
        height="content",
        column_config={
            column: st.column_config.NumberColumn(format="%.1f")
            for column in wide.columns
            if column != "trained here"
        },
    )
    st.caption(
        "Win rate in percent against DPO, as the paper prints it. Its models, judge and prompts "
        "are others than those of the runs above unless you made them so; the numbers stand beside "
        "for comparison, not as a target."
    )


def _objective(opened: Mapping[str, Run], name: str) -> str:
    return str(config_of(opened[name]).get("objective")) if name in opened else ""


page()
