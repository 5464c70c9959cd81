"""One-dimensional sweeps of the recipe."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from notebooks.figures.methods import DECODING_COLOURS
from plc_core.analysis.figures.style import INK, empty, finish

_TITLES = {
    "tau_dir": "τ_dir", "tau_tie": "τ_tie", "kappa": "κ", "gamma_max": "γ_max",
    "rho_warm": "ρ_warm", "alpha": "α (EMA)",
}  # fmt: skip


def sweep_panels(table: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Win rate over each hyperparameter's values, the default marked, the paper's line beside.

    Args:
        table: hyperparameter, value, default (bool), decoding, win_rate, low, high.
        published: of `analysis.paper.published("sweeps")`.
    """
    if table.empty:
        return empty("There is no sweep to show.", 300)
    names = list(dict.fromkeys(table["hyperparameter"]))
    rows = -(-len(names) // 3)
    figure = make_subplots(
        rows=rows, cols=3, subplot_titles=[_TITLES.get(n, n) for n in names],
        vertical_spacing=0.16, horizontal_spacing=0.06, shared_yaxes=True,
    )  # fmt: skip
    for number, name in enumerate(names):
        row, column = number // 3 + 1, number % 3 + 1
        paper = published[published["hyperparameter"] == name].sort_values("value")
        figure.add_scatter(
            x=paper["value"], y=paper["win_rate"], mode="lines+markers",
            name="the paper, Qwen2.5-7B, greedy", legendgroup="paper", showlegend=number == 0,
            line={"color": INK, "dash": "dot"}, marker={"size": 6}, row=row, col=column,
        )  # fmt: skip
        for decoding, colour in DECODING_COLOURS.items():
            own = table[(table["hyperparameter"] == name) & (table["decoding"] == decoding)]
            own = own.sort_values("value")
            if own.empty:
                continue
            symbols = ["star" if default else "circle" for default in own["default"]]
            sizes = [13 if default else 8 for default in own["default"]]
            figure.add_scatter(
                x=own["value"],
                y=own["win_rate"],
                error_y={
                    "type": "data", "symmetric": False, "array": own["high"] - own["win_rate"],
                    "arrayminus": own["win_rate"] - own["low"], "thickness": 1, "width": 3,
                },
                mode="lines+markers",
                name=f"here, {decoding}",
                legendgroup=decoding,
                showlegend=number == 0,
                line={"color": colour},
                marker={"symbol": symbols, "size": sizes},
                row=row,
                col=column,
            )  # fmt: skip
        figure.add_hline(y=50, line={"color": INK, "width": 1}, row=row, col=column)
    figure.update_yaxes(title_text="win rate, %", col=1)
    return finish(figure, 270 * rows + 60, margin_t=92, legend_y=1.1)
