"""The table of win rates: a row of the baseline, marks where an interval clears 50, KL controls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st
from inspection.judged_answers import kl_by_run, kl_control, nearest_dpo

from plc_core.analysis.statistics import MeanInterval, format_p
from plc_core.evaluation.sides import win_rate_cells
from plc_core.runs import Run

EVEN = 50.0
LEGEND = "▲ ▼: the 95 % interval clears 50 %."


def with_baseline(cells: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """The win rates with a row of the baseline against itself for each decoding: 50 by definition.

    `cells` are those of `win_rate_cells`.
    """
    n = cells.groupby("decoding", sort=False)["n"].max()
    even = {"win_rate": EVEN, "low": EVEN, "high": EVEN}
    own = [{"method": baseline, "decoding": d, "n": int(count)} | even for d, count in n.items()]
    return pd.concat([pd.DataFrame(own), cells], ignore_index=True)


def in_words(cells: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """A row a method and a column a decoding: the win rate with its interval, and its mark."""
    rows: dict[str, dict[str, str]] = {}
    for cell in with_baseline(cells, baseline).to_dict("records"):
        method, decoding = str(cell["method"]), str(cell["decoding"])
        is_baseline = method == baseline
        said = f"{EVEN:.0f}, the baseline" if is_baseline else win_words(cell)
        rows.setdefault(method, {"method": method})[decoding] = said
    return pd.DataFrame(list(rows.values()))


def win_words(cell: Mapping[Any, Any]) -> str:
    """A win rate in percent with its interval, marked where that lies wholly beside 50."""
    if math.isnan(cell["win_rate"]):
        return "–"
    mark = " ▲" if cell["low"] > EVEN else " ▼" if cell["high"] < EVEN else ""
    return f"{cell['win_rate']:.1f} [{cell['low']:.1f}, {cell['high']:.1f}]{mark}"


def counts(cells: pd.DataFrame) -> None:
    """Wins, ties, losses and both tests of every method and decoding."""
    # As text: a column of numbers writes 0.0000016.
    p_values = {
        name: cells[name].map(lambda p: format_p(p).removeprefix("p = "))
        for name in ("p_sign", "p_wilcoxon")
    }
    number, text = st.column_config.NumberColumn, st.column_config.TextColumn
    st.dataframe(
        cells.drop(columns=["benchmark", "note"]).assign(**p_values),
        key="win_cells",
        hide_index=True,
        height="content",
        column_config={
            **{
                name: number(label, format="%.1f")
                for name, label in (("win_rate", "win %"), ("low", "low"), ("high", "high"))
            },
            "p_sign": text("p, sign"),
            "p_wilcoxon": text("p, rank"),
        },
    )


def kl_control_table(
    opened: Mapping[str, Run], objectives: Mapping[str, str], table: pd.DataFrame, name: str
) -> pd.DataFrame:
    """Each PLC-DPO run against the plain DPO run that moved about as far from the start.

    One row a PLC-DPO run: its KL, the DPO run among `opened` of the nearest KL, which counts as
    the control where the two differ by at most a tenth, and the win rate against it by decoding.
    Empty where no run corrects.

    Args:
        opened: runs by name.
        objectives: of each run.
        table: their judged answers, as `judged` gives them.
        name: of the judgements.
    """
    kls = kl_by_run(opened, name)
    rows = []
    for run_name in (one for one in opened if objectives[one] == "plc"):
        own = kls[run_name].mean
        row = {"method": run_name}
        moved = {"KL, nats": _kl(kls[run_name])}
        near = nearest_dpo(kls, objectives, run_name)
        if near is None:
            missing = "its KL is not kept" if math.isnan(own) else "no DPO run with a KL is chosen"
            rows.append(row | {"KL control": f"not known: {missing}"} | moved)
            continue
        if kl_control(kls, objectives, run_name) is None:
            said = f"none of these moved as far; {near}, the nearest: {_kl(kls[near])}"
            rows.append(row | {"KL control": said} | moved)
            continue
        both = table[table["method"].isin([run_name, near])]
        cells = win_rate_cells(both, near, ("benchmark", "decoding"), incomplete="common")
        against = {str(cell["decoding"]): win_words(cell) for cell in cells.to_dict("records")}
        rows.append(row | against | {"KL control": f"{near}, {_kl(kls[near])}"} | moved)
    table_of_all = pd.DataFrame(rows)
    last = [name for name in ("KL control", "KL, nats") if name in table_of_all]
    return table_of_all[[name for name in table_of_all if name not in last] + last]


def _kl(found: MeanInterval) -> str:
    return f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]" if found.n else "–"
