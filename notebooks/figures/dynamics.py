"""What policies earn over training, and over the distance from their start."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.figures.style import INK, RUN_COLOURS, empty, finish, whiskers


def training_dynamics(table: pd.DataFrame, share: float) -> go.Figure:
    """Win rate against SFT and reward of every checkpoint, one column a decoding.

    `table` is of `evaluation.dynamics.evaluate_checkpoints`; the vertical line stands at `share`
    of training, where the paper compares.
    """
    if table.empty:
        return empty("No checkpoint was judged.", 300)
    decodings = list(dict.fromkeys(table["decoding"]))
    figure = make_subplots(
        rows=2, cols=len(decodings), shared_xaxes=True, subplot_titles=decodings,
        vertical_spacing=0.06, horizontal_spacing=0.08,
    )  # fmt: skip
    measures = [("win_rate", "low", "high"), ("reward", "reward_low", "reward_high")]
    for column, decoding in enumerate(decodings, start=1):
        part = table[table["decoding"] == decoding]
        for number, method in enumerate(dict.fromkeys(part["method"])):
            own = part[part["method"] == method].sort_values("step")
            colour = RUN_COLOURS[number % len(RUN_COLOURS)]
            for row, (value, low, high) in enumerate(measures, start=1):
                figure.add_scatter(
                    x=own["share"], y=own[value], name=method, legendgroup=method,
                    showlegend=column == row == 1, mode="lines+markers",
                    line={"color": colour, "width": 2}, marker={"size": 7},
                    error_y=whiskers(own[value], own[low], own[high], colour)
                    | {"thickness": 1, "width": 3},
                    customdata=own[["step", "kl"]],
                    hovertemplate=f"{method}, step %{{customdata[0]}}: %{{y:.2f}}, KL "
                    "%{customdata[1]:.2f} nats<extra></extra>",
                    row=row, col=column,
                )  # fmt: skip
        figure.add_hline(y=50, line={"color": INK, "dash": "dot", "width": 1}, row=1, col=column)
        start = part[part["step"] == 0]["reward"].iloc[0]
        figure.add_hline(y=start, line={"color": INK, "dash": "dot", "width": 1}, row=2, col=column)
    figure.add_vline(x=share, line={"color": INK, "dash": "dash", "width": 1})
    figure.update_xaxes(title_text="share of training", tickformat=".0%", row=2)
    figure.update_yaxes(title_text="win rate against SFT, %", row=1, col=1)
    figure.update_yaxes(title_text="mean reward", row=2, col=1)
    return finish(figure, 620, margin_t=96, legend_y=1.07)


def dynamics_over_kl(table: pd.DataFrame) -> go.Figure:
    """The same checkpoints' win rates against SFT over their KL to it: like KLs compare."""
    if table.empty or table["kl"].isna().all():
        return empty("There is no KL to show: no checkpoint was sampled.", 300)
    decodings = list(dict.fromkeys(table["decoding"]))
    figure = make_subplots(rows=1, cols=len(decodings), subplot_titles=decodings)
    for column, decoding in enumerate(decodings, start=1):
        part = table[table["decoding"] == decoding]
        for number, method in enumerate(dict.fromkeys(part["method"])):
            own = part[part["method"] == method].sort_values("step")
            figure.add_scatter(
                x=own["kl"], y=own["win_rate"], name=method, legendgroup=method,
                showlegend=column == 1, mode="lines+markers", customdata=own[["share"]],
                line={"color": RUN_COLOURS[number % len(RUN_COLOURS)]}, marker={"size": 7},
                hovertemplate=f"{method}, %{{customdata[0]:.0%}} of training: KL %{{x:.2f}}, "
                "%{y:.1f} %<extra></extra>",
                row=1, col=column,
            )  # fmt: skip
    figure.update_xaxes(title_text="KL to SFT, nats per response")
    figure.update_yaxes(title_text="win rate against SFT, %", col=1)
    return finish(figure, 400, margin_t=92, legend_y=1.12)
