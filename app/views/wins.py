"""Win rates: the tables, the published numbers beside them, and the answers behind any cell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from answers import answers_behind
from elements import Guide, chart, heading
from figures.overlay import win_rates
from inspection.judged_answers import (
    PromptSet,
    judged,
    judgement_files,
    prompt_set,
    read_judgements,
)
from listing import listed, training_runs
from marking import plain
from published_box import published_box
from reading import open_below, shown_errors
from selection import head
from spreadsheet import csv_text
from state import TEXT, TEXTS, kept, value_of
from win_runs import control_of, data_of, objective_of, runs_at_first
from win_table import LEGEND, counts, in_words, kl_control_table, win_words, with_baseline

from plc_core.analysis.paper import BENCHMARK_SIZES
from plc_core.evaluation.sides import win_rate_cells
from plc_core.evaluation.win_rate import JoinError, verdict_win_rate
from plc_core.evaluation.win_tables import win_table
from plc_core.runs import Run
from plc_core.storage.files import RunError

WIN = Guide(
    "Each run's share of prompts won against the baseline, ties one half, with 95 % bootstrap "
    "intervals over prompts; the baseline is 50 % by definition.",
    "Intervals that clear 50 % in both decodings, and against a DPO run that moved as far (KL).",
    "Why it wins: a method that moves further from the start can win by that alone.",
)


TABLE = Guide(
    "The chart's numbers, 95 % intervals over prompts.",
    LEGEND,
    "What other seeds would give: each run is one.",
)
KL_CONTROL = Guide(
    "Win rates against the chosen plain DPO run whose KL to the reference (nats per response, "
    "sampled) is within a tenth of PLC-DPO's.",
    LEGEND,
    "What other seeds would give: each run is one.",
)
VERDICTS = Guide(
    "Each run's share of prompts won by the verdicts of the judge, ties one half, with 95 % "
    "bootstrap intervals over prompts; 50 % is even.",
    WIN.healthy,
    WIN.silent,
)


def page() -> None:
    """Draw the page."""
    chosen = head(
        "Win rates", "Do the policies answer better, and what do their answers look like?"
    )
    if chosen is None:
        return
    root, of = chosen
    with shown_errors(of):
        open_below(root, of)
    found = _found(root)
    if not found:
        st.info(
            "No run has judged answers yet. `plc_core.evaluation` generates and judges them; runs "
            "in the embedded world are judged at the end of training (eval_prompts)."
        )
        return
    if of not in found:
        st.info(f"No answers of the run {plain(of)} were judged; other runs are shown.")
    files = sorted({name for kinds in found.values() for name in kinds})
    own = sorted(found.get(of, {})) or files
    left, middle, right = st.columns([0.26, 0.5, 0.24])
    name = left.selectbox("Judgements", files, key=kept("judged", own[0], TEXT, files))
    sets = _sets(root, [run for run, kinds in found.items() if name in kinds], name)
    if not sets:
        return
    if len(sets) > 1:
        keys = list(sets)
        first = next((key for key in keys if of in sets[key][1]), keys[0])
        key = left.selectbox(
            "Prompts",
            keys,
            key=kept("prompts", first, TEXT, keys),
            format_func=lambda k: (
                f"{sets[k][0].prompts:,} prompts, set {k} · {len(sets[k][1])} runs"
            ),
            help="Runs that answered other prompts are not compared: choose a set.",
        )
    else:
        key = next(iter(sets))
    prompts, having = sets[key]
    like = runs_at_first(root, of, having, name)
    with middle:
        picked = st.multiselect(
            "Runs that answered the same prompts", having, key=kept("won_by", like, TEXTS, having)
        )
    opened: dict[str, Run] = {}
    for run_name in picked:
        with shown_errors(run_name):
            opened[run_name] = open_below(root, run_name)
    if not opened:
        st.info("Choose runs.")
        return
    _said_of(prompts, key, opened, sum(len(runs) for _, runs in sets.values()) - len(having))
    kind = found[picked[0]][name]
    with shown_errors(", ".join(picked)):
        if kind == "verdicts":
            _verdicts(opened, name)
        else:
            _scores(opened, name, right, of)
    published_box({objective_of(opened, run_name) for run_name in opened})


def _sets(root: Path, runs: list[str], name: str) -> dict[str, tuple[PromptSet, list[str]]]:
    """The runs by the prompts that they were judged on, most runs first."""
    sets: dict[str, tuple[PromptSet, list[str]]] = {}
    for run in runs:
        with shown_errors(run):
            path = root / run / "judgements" / f"{name}.parquet"
            prompts = _prompt_set(str(path), path.stat().st_mtime_ns, open_below(root, run), name)
            sets.setdefault(prompts.key, (prompts, []))[1].append(run)
    return dict(sorted(sets.items(), key=lambda item: -len(item[1][1])))


@st.cache_data(max_entries=500, show_spinner=False)
def _prompt_set(path: str, changed: int, _run: Run, name: str) -> PromptSet:
    return prompt_set(_run, name)


def _said_of(prompts: PromptSet, key: str, opened: Mapping[str, Run], others: int) -> None:
    """Over which prompts the numbers are, and whether the runs were trained on one data set."""
    said = f"{prompts.prompts:,} prompts (set {key})"
    if others:
        runs = "1 run" if others == 1 else f"{others} runs"
        said += f"; {runs} answered other prompts"
    st.caption(said)
    data: dict[str, list[str]] = {}
    for name, run in opened.items():
        data.setdefault(data_of(run), []).append(name)
    if len(data) > 1:
        parts = "; ".join(f"{where}: {', '.join(names)}" for where, names in data.items())
        st.warning(
            "These runs were trained on different data, so a difference between them may come from "
            f"the data. {plain(parts)}."
        )


def _found(root: Path) -> dict[str, dict[str, str]]:
    found = {}
    for summary in training_runs(listed(root)):
        with shown_errors(summary.name):
            if not (summary.path / "judgements").is_dir():  # raises where the run may not be read
                continue
            if summary.problem is not None:
                raise RunError(summary.problem)
            if kinds := judgement_files(open_below(root, summary.name)):
                found[summary.name] = kinds
    return found


def _scores(
    opened: Mapping[str, Run], name: str, place: st.delta_generator.DeltaGenerator, of: str
) -> None:
    table = judged(opened, name)
    methods = list(dict.fromkeys(table["method"]))
    plain_dpo = [m for m in methods if objective_of(opened, m) == "dpo"]
    pinned = value_of("baseline")
    first = pinned if pinned in methods else control_of(opened, name, of)
    first = first if first in methods else (plain_dpo or methods)[-1]
    baseline = place.selectbox(
        "Baseline",
        methods,
        key=kept("against", first, TEXT, methods),
        help="At first the plain DPO run that moved as far (KL) as PLC-DPO, where there is one.",
    )
    try:
        cells = win_rate_cells(table, baseline, ("benchmark", "decoding"), incomplete="common")
    except JoinError as error:
        st.warning(plain(str(error)))
        return
    for row in cells[cells["note"].fillna("") != ""].itertuples():
        st.warning(plain(f"{row.method}, {row.decoding}: {row.note}"))
    made = win_table(cells.assign(cell=cells["decoding"]), column="cell", sizes=BENCHMARK_SIZES)
    left, right = st.columns([0.44, 0.56])
    with left:
        figure = win_rates(with_baseline(cells, baseline))
        chart(f"Against {plain(baseline)}", figure, WIN, key="win_rates")
    with right, st.container(border=True, height="stretch"):
        heading(f"Win rate against {plain(baseline)}, %", TABLE)
        shown = in_words(cells, baseline)
        st.dataframe(
            shown, key="win_table", hide_index=True, height="content", column_config=_narrow(shown)
        )
        for note in made.notes:
            st.text(note)
        _controls(opened, table, name)
    with st.expander("Counts and tests"):
        counts(cells)
        text = csv_text(made.cells)
        st.download_button("CSV", text, "win-rates.csv", key="wins_csv", on_click="ignore")
    against = [m for m in methods if m != baseline]
    against.sort(key=lambda method: method != of)
    answers_behind(opened, table, name, baseline, against)


def _controls(opened: Mapping[str, Run], table: pd.DataFrame, name: str) -> None:
    """PLC-DPO against plain DPO that moved as far: what is left of its win rate beyond moving."""
    objectives = {run: objective_of(opened, run) for run in opened}
    try:
        controls = kl_control_table(opened, objectives, table, name)
    except JoinError as error:
        st.warning(plain(str(error)))
        return
    if controls.empty:
        return
    heading("PLC-DPO against its KL control, %", KL_CONTROL)
    st.dataframe(
        controls,
        key="kl_controls",
        hide_index=True,
        height="content",
        placeholder="–",
        column_config=_narrow(controls),
    )


def _narrow(table: pd.DataFrame) -> dict[str, Any]:
    """Columns so narrow that a phone shows the method and both its intervals."""
    text = st.column_config.TextColumn
    widths = {"method": text(width=85, pinned=True), "KL control": text(width=190)}
    return {name: widths.get(name, text(width=122)) for name in map(str, table)}


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
    for row in cells[cells["note"].fillna("") != ""].itertuples():
        st.warning(plain(f"{row.method}, {row.decoding}: {row.note}"))
    chart(f"Verdicts of {plain(name)}", win_rates(cells), VERDICTS, key="win_rates")
    said = cells.assign(**{"win rate, %": [win_words(cell) for cell in cells.to_dict("records")]})
    said = said[["method", "decoding", "n", "win rate, %"]]
    st.dataframe(said, key="verdict_cells", hide_index=True, height="content")
    st.caption(LEGEND)


page()
