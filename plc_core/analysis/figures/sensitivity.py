"""One-dimensional sweeps of the recipe, and whole recipes over the evaluation sets."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.figures.style import INK, RUN_COLOURS, empty, finish
from plc_core.analysis.figures.methods import DECODING_COLOURS

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


def recipe_radar(table: pd.DataFrame) -> go.Figure:
    """Win rates of whole recipes over the evaluation sets: one radar a decoding.

    `table`: benchmark, decoding, method, win_rate. Every axis has the same scale, and the dashed
    ring is 50 %, where a method does as well as DPO.
    """
    if table.empty:
        return empty("There is no recipe to show.", 300)
    axes = list(dict.fromkeys(table["benchmark"]))
    decodings = list(dict.fromkeys(table["decoding"]))
    figure = make_subplots(
        rows=1, cols=len(decodings), specs=[[{"type": "polar"}] * len(decodings)],
        subplot_titles=decodings,
    )  # fmt: skip
    low = min(45.0, float(table["win_rate"].min()) - 3)
    high = max(55.0, float(table["win_rate"].max()) + 2)
    methods = list(dict.fromkeys(table["method"]))
    for column, decoding in enumerate(decodings, start=1):
        ring = [*axes, axes[0]]
        figure.add_scatterpolar(
            r=[50] * len(ring), theta=ring, mode="lines", name="DPO (50 %)",
            line={"color": INK, "dash": "dash"}, legendgroup="DPO", showlegend=column == 1,
            row=1, col=column,
        )  # fmt: skip
        for number, method in enumerate(methods):
            own = table[(table["method"] == method) & (table["decoding"] == decoding)]
            values = own.set_index("benchmark")["win_rate"].reindex(ring)
            figure.add_scatterpolar(
                r=values, theta=ring, mode="lines+markers", name=method, legendgroup=method,
                showlegend=column == 1, line={"color": RUN_COLOURS[number % len(RUN_COLOURS)]},
                hovertemplate=f"{method}, %{{theta}}: %{{r:.1f}} %<extra></extra>",
                row=1, col=column,
            )  # fmt: skip
    polar = {
        "bgcolor": "rgba(0,0,0,0)",
        "radialaxis": {"range": [low, high], "gridcolor": "rgba(128,128,128,0.25)", "angle": 45},
        "angularaxis": {"gridcolor": "rgba(128,128,128,0.25)"},
    }
    for column in range(len(decodings)):
        figure.update_layout({f"polar{column + 1 if column else ''}": polar})
    return finish(figure, 470, margin={"l": 40, "r": 40, "t": 110, "b": 30}, legend_y=1.14)
