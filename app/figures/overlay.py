"""Curves of many runs over each other, and win rates of many runs beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.curves import LEAST_SMOOTHED, SMOOTHED, smoothed
from plc_core.analysis.figures.style import INK, RUN_COLOURS, empty, finish, literal, whiskers
from plc_core.analysis.noise import NOISE_COLUMNS, known_rates

LOSS = "loss"

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Margin and loss": ("accuracy", "margin_mean", "margin_std", LOSS),
    "Routing": ("q_clean", "q_flip", "q_tie", "weight_mean", "gamma", "p_flip"),
    "Rewards": ("reward_chosen", "reward_rejected"),
    "Calibration": ("ema_mean", "ema_std", "floor_bound", "noise_rate"),
    "Optimiser": ("learning_rate", "grad_norm", "pairs_per_second", "seconds"),
}
"""The columns of metrics.parquet that are drawn, by what they tell."""

TITLES = {
    "margin_mean": "mean margin m",
    "margin_std": "spread of m",
    "accuracy": "accuracy (m > 0)",
    "weight_mean": "mean weight w",
    "gamma": "correction strength γ",
    "reward_chosen": "reward of chosen, β nats",
    "reward_rejected": "reward of rejected, β nats",
    "ema_mean": "EMA mean of m",
    "ema_std": "EMA deviation of m",
    "floor_bound": "σ at its floor",
    "noise_rate": "reversed labels, estimate",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "pairs_per_second": "pairs per second",
    "seconds": "seconds per step",
}
MOST_RAW = 4
"""Smoothed runs up to which their single steps show faintly too."""

_COLOURS = tuple(colour for colour in RUN_COLOURS if colour != INK)
_DASHES = ("solid", "dash", "dot", "dashdot")


def run_curves(
    metrics: Mapping[str, pd.DataFrame], names: Sequence[str], baseline: str | None = None
) -> go.Figure:
    """Any columns of the metrics of any number of runs over optimizer steps, one panel a column.

    Args:
        metrics: by run, its metrics table.
        names: the columns; one that no run logged says so in its panel's place.
        baseline: a run that is drawn thick and grey, under the others.

    Runs are told apart by colour, and beyond nine of them by dash too. What varies with the pairs
    of a step is a running mean, of few runs with the single steps behind it.
    """
    drawn = {
        name: _with_known_rates(table)
        for name, table in metrics.items()
        if "step" in table and len(table)
    }
    if not drawn:
        return empty("No optimizer step has been logged yet.", 360)
    wanted = [name for name in names if any(_has(table, name) for table in drawn.values())]
    if not wanted:
        return empty("None of these was logged under these objectives.", 360)
    across = min(2, len(wanted))
    rows = -(-len(wanted) // across)
    figure = make_subplots(
        rows=rows,
        cols=across,
        subplot_titles=[TITLES.get(name, name) for name in wanted],
        shared_xaxes="all",
        vertical_spacing=0.24 / rows,
        horizontal_spacing=0.06,
    )
    order = sorted(drawn, key=lambda name: name != baseline)
    places = {name: place for place, name in enumerate(n for n in drawn if n != baseline)}
    for run in order:
        table = drawn[run].sort_values("step")
        pinned = run == baseline
        number = places.get(run, 0)
        colour = INK if pinned else _COLOURS[number % len(_COLOURS)]
        dash = "solid" if pinned else _DASHES[number // len(_COLOURS) % len(_DASHES)]
        shown = False
        for place, column in enumerate(wanted):
            if not _has(table, column):
                continue
            y, width = table[column], 4 if pinned else 1.8
            varies = column in SMOOTHED or column.startswith(LOSS)
            smooth = varies and len(table) >= LEAST_SMOOTHED
            if smooth and len(drawn) <= MOST_RAW:
                figure.add_scattergl(
                    x=table["step"],
                    y=y,
                    legendgroup=run,
                    showlegend=False,
                    mode="lines",
                    opacity=0.25,
                    line={"color": colour, "width": 1, "dash": dash},
                    hoverinfo="skip",
                    row=place // across + 1,
                    col=place % across + 1,
                )
            figure.add_scattergl(
                x=table["step"],
                y=smoothed(y) if smooth else y,
                name=f"{run} (baseline)" if pinned else run,
                legendgroup=run,
                showlegend=not shown and len(drawn) > 1,
                mode="lines" if len(table) > 1 else "markers",
                opacity=0.75 if pinned else 1,
                line={"color": colour, "width": width, "dash": dash},
                hovertemplate="step %{x}: %{y:.4g}" + (", smoothed" if smooth else ""),
                row=place // across + 1,
                col=place % across + 1,
            )
            shown = True
    figure.update_annotations(font_size=13)
    # Below every panel that has none below it: an odd one leaves the place beside it empty.
    for place in range(max(0, len(wanted) - across), len(wanted)):
        where = {"row": place // across + 1, "col": place % across + 1}
        figure.update_xaxes(title_text="optimizer step", showticklabels=True, **where)
    if across == 2:
        figure.update_yaxes(side="right", col=2)  # on a phone they would lie on the left panel
    figure = finish(figure, 60 + 235 * rows, hovermode="closest")
    return figure.update_layout(legend_y=1.0 + 0.14 / rows, margin_t=64 if len(drawn) > 1 else 36)


def losses_apart(
    metrics: Mapping[str, pd.DataFrame], objectives: Mapping[str, str], names: Sequence[str]
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The metrics and the names of their columns with a loss an objective, where there are several.

    Losses of different objectives are different quantities: each gets a column, and so a panel, of
    its own.
    """
    if len(set(objectives.values())) < 2:
        return dict(metrics), list(names)
    apart = {run: f"{LOSS}, {objectives[run]}" for run in metrics}
    tables = {run: table.rename(columns={LOSS: apart[run]}) for run, table in metrics.items()}
    each = [[*dict.fromkeys(apart.values())] if name == LOSS else [name] for name in names]
    return tables, [name for part in each for name in part]


def win_rates(cells: pd.DataFrame) -> go.Figure:
    """Win rates in percent with their intervals, a row a method, its decodings below each other.

    `cells` has method, decoding, win_rate, low, high and n, as `evaluation.win_rate_cells`.
    """
    if cells.empty:
        return empty("There is no win rate yet.", 240)
    figure = go.Figure()
    rows = {method: row for row, method in enumerate(cells["method"].unique())}
    decodings = cells["decoding"].unique()
    for number, decoding in enumerate(decodings):
        own, said = cells[cells["decoding"] == decoding], literal(decoding)
        apart = 0.3 * (number - (len(decodings) - 1) / 2)
        figure.add_scatter(
            x=own["win_rate"],
            y=own["method"].map(rows) + apart,
            name=said,
            mode="markers",
            marker={"color": INK, "size": 9, "symbol": ("circle", "diamond-open")[number % 2]},
            error_x=whiskers(own["win_rate"], own["low"], own["high"], INK),
            customdata=own[["low", "high", "n"]].assign(of=own["method"].map(literal)).to_numpy(),
            hovertemplate=f"%{{customdata[3]}}, {said}: %{{x:.1f}} % [%{{customdata[0]:.1f}}, "
            "%{customdata[1]:.1f}], n = %{customdata[2]:,}<extra></extra>",
        )
    figure.add_vline(x=50, line={"color": INK, "dash": "dot", "width": 1.2})
    figure.update_xaxes(title_text="win rate, %")
    figure.update_yaxes(
        tickvals=list(rows.values()),
        ticktext=[literal(method) for method in rows],
        range=[len(rows) - 0.5, -0.5],
        showgrid=False,
    )
    return finish(figure, 150 + 46 * len(rows), margin_t=44)


def _with_known_rates(table: pd.DataFrame) -> pd.DataFrame:
    """The metrics without noise rates that are the prior rather than an estimate."""
    if any(name not in table for name in NOISE_COLUMNS):
        return table
    return table.assign(noise_rate=table["noise_rate"].where(known_rates(table)))


def _has(table: pd.DataFrame, name: str) -> bool:
    return name in table and bool(table[name].notna().any())
