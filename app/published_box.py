"""The paper's win rates, to stand beside those of the runs."""

from __future__ import annotations

from collections.abc import Collection

import streamlit as st
from state import TEXT, kept

from plc_core.analysis.paper import NAMES, published

OWN = "among your runs"
"""The column that says which objectives a run here has; the numbers are the paper's."""
SAID = (
    "Win rate in percent against DPO, as the paper prints it. Its models, judge and prompts are "
    "others than those of the runs above unless you made them so: for comparison, not as a target."
)


def published_box(objectives: Collection[str]) -> None:
    """The paper's win rates on a model and dataset; methods of `objectives` are marked."""
    st.subheader("Win rates that the paper published, %", anchor=False, help=SAID)
    cells = published("cells")
    left, right = st.columns(2)
    models = sorted(cells["model"].unique())
    model = left.selectbox("Model", models, key=kept("model", models[0], TEXT, models))
    datasets = sorted(cells.loc[cells["model"] == model, "dataset"].unique())
    dataset = right.selectbox("Dataset", datasets, key=kept("data", datasets[0], TEXT, datasets))
    of = cells[(cells["model"] == model) & (cells["dataset"] == dataset)]
    wide = of.pivot_table(index="method", columns="benchmark", values="win_rate", sort=False)
    own = {NAMES.get(objective, "") for objective in objectives}
    wide.insert(0, OWN, ["yes" if method in own else "" for method in wide.index])
    st.dataframe(
        wide.reset_index(),
        key="published",
        hide_index=True,
        height="content",
        column_config={
            column: st.column_config.NumberColumn(format="%.1f")
            for column in wide.columns
            if column != OWN
        },
    )
