"""Win rates: methods side by side, and each against how far its policy moved."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.figures.style import INK, RUN_COLOURS, empty, finish

_AGAINST, _NEAREST = RUN_COLOURS[0], RUN_COLOURS[1]
_SYMBOLS = ("circle", "diamond", "triangle-up")
DECODING_COLOURS = {"greedy": RUN_COLOURS[2], "sampled": RUN_COLOURS[3]}
"""The two decodings' colours, where one picture shows both."""


def win_rate_dots(table: pd.DataFrame, baseline: str = "DPO") -> go.Figure:
    """Each method's win rate against the baseline, and below it against the DPO of the nearest KL.

    `table` is of `evaluation.results.results`, one benchmark and judge; one panel a decoding.
    Whiskers are 95 % intervals over prompts; of several seeds, every seed has its own mark.
    """
    known = table[table["win_rate"].notna()]
    if known.empty:
        return empty("No method but the baseline was judged.", 300)
    methods = list(dict.fromkeys(known["method"]))[::-1]
    decodings = list(dict.fromkeys(known["decoding"]))
    figure = make_subplots(
        rows=1, cols=len(decodings), shared_yaxes=True, subplot_titles=decodings,
        horizontal_spacing=0.04,
    )  # fmt: skip
    sides = [
        (f"against {baseline} on the same data", "win_rate", "low", "high", _AGAINST, 0.14,
         "circle"),
        (f"against the {baseline} of the nearest KL", "over", "over_low", "over_high", _NEAREST,
         -0.14, "diamond"),
    ]  # fmt: skip
    for column, decoding in enumerate(decodings, start=1):
        part = known[known["decoding"] == decoding]
        for label, value, low, high, colour, shift, symbol in sides:
            own = part[part[value].notna()]
            figure.add_scatter(
                x=own[value],
                y=[methods.index(name) + shift for name in own["method"]],
                error_x=_reach(own, value, low, high, colour),
                mode="markers",
                marker={"color": colour, "size": 9, "symbol": symbol},
                name=label,
                legendgroup=label,
                showlegend=column == 1,
                customdata=own[["method", "kl", "n"]],
                hovertemplate="%{customdata[0]}: %{x:.1f} %, KL %{customdata[1]:.2f} nats "
                "(n=%{customdata[2]})<extra></extra>",
                row=1,
                col=column,
            )
        figure.add_vline(x=50, line={"color": INK, "dash": "dot", "width": 1}, row=1, col=column)
    figure.update_yaxes(tickvals=list(range(len(methods))), ticktext=methods, showgrid=False)
    figure.update_xaxes(title_text="win rate, %")
    height = 150 + 34 * len(methods)
    return finish(figure, height, margin_t=92, legend_y=1 + 46 / (height - 150))


def win_rate_against_kl(
    table: pd.DataFrame, controls: Sequence[str], value: str = "sft", against: str = "SFT"
) -> go.Figure:
    """Each method's win rate against SFT, over the KL to SFT; plain DPO over β is the grey line.

    What lies on the line is what plain DPO gets by moving as far. One panel a decoding.
    """
    known = table[table[value].notna() & table["kl"].notna()]
    if known.empty:
        return empty("There is no KL to show: no policy was sampled.", 300)
    decodings = list(dict.fromkeys(known["decoding"]))
    methods = [m for m in dict.fromkeys(known["method"]) if m not in controls]
    figure = make_subplots(
        rows=1, cols=len(decodings), subplot_titles=decodings, horizontal_spacing=0.08
    )
    for column, decoding in enumerate(decodings, start=1):
        part = known[known["decoding"] == decoding]
        line = part[part["method"].isin(controls)].sort_values("kl")
        figure.add_scatter(
            x=line["kl"], y=line[value], mode="lines+markers", name="DPO over β",
            line={"color": INK, "width": 2}, marker={"size": 7, "symbol": "square"},
            text=line["method"], hovertemplate="%{text}: KL %{x:.2f}, %{y:.1f} %<extra></extra>",
            legendgroup="DPO over β", showlegend=column == 1, row=1, col=column,
        )  # fmt: skip
        for number, method in enumerate(methods):
            own = part[part["method"] == method]
            # Where colours repeat the mark is another, so that no two methods look alike.
            colour = RUN_COLOURS[number % len(RUN_COLOURS)]
            symbol = _SYMBOLS[number // len(RUN_COLOURS) % len(_SYMBOLS)]
            figure.add_scatter(
                x=own["kl"],
                y=own[value],
                error_y=_reach(own, value, f"{value}_low", f"{value}_high", colour, thickness=1),
                mode="markers",
                marker={"color": colour, "size": 10, "symbol": symbol},
                name=method,
                legendgroup=method,
                showlegend=column == 1,
                hovertemplate=f"{method}: KL %{{x:.2f}}, %{{y:.1f}} %<extra></extra>",
                row=1,
                col=column,
            )
    figure.update_xaxes(title_text="KL to SFT, nats per response")
    figure.update_yaxes(title_text=f"win rate against {against}, %", col=1)
    return finish(figure, 430, margin_t=110, legend_y=1.14)


def seed_dots(table: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Every seed's win rate, its mean, and the paper's mean ± deviation a benchmark below.

    Args:
        table: decoding, method, seed, win_rate.
        published: of `analysis.paper.published("seeds")`.
    """
    decodings = list(dict.fromkeys(table["decoding"]))
    methods = list(dict.fromkeys(table["method"]))[::-1]
    titles = [*decodings, "the paper's, by benchmark"]
    figure = make_subplots(
        rows=1, cols=len(titles), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.04
    )
    for column, decoding in enumerate(decodings, start=1):
        part = table[table["decoding"] == decoding]
        for place, method in enumerate(methods):
            own = part[part["method"] == method].dropna(subset=["win_rate"])
            colour = RUN_COLOURS[(len(methods) - 1 - place) % len(RUN_COLOURS)]
            figure.add_scatter(
                x=own["win_rate"], y=[place] * len(own), mode="markers", showlegend=False,
                marker={"color": colour, "size": 9, "opacity": 0.6}, customdata=own["seed"],
                hovertemplate=f"{method}, seed %{{customdata}}: %{{x:.1f}} %<extra></extra>",
                row=1, col=column,
            )  # fmt: skip
            figure.add_scatter(
                x=[own["win_rate"].mean()], y=[place], mode="markers", showlegend=False,
                marker={"color": colour, "size": 22, "symbol": "line-ns", "line_width": 3,
                        "line_color": colour},
                hovertemplate=f"{method}, mean: %{{x:.1f}} %<extra></extra>", row=1, col=column,
            )  # fmt: skip
        figure.add_vline(x=50, line={"color": INK, "dash": "dot", "width": 1}, row=1, col=column)
    last = len(titles)
    for number, (benchmark, part) in enumerate(published.groupby("benchmark", sort=False)):
        own = part[part["method"].isin(methods)]
        figure.add_scatter(
            x=own["win_rate"],
            y=[methods.index(m) + 0.16 * (1 - number) for m in own["method"]],
            error_x={"array": own["sd"], "thickness": 1.5, "color": INK},
            mode="markers",
            marker={"color": INK, "size": 8, "symbol": ["circle", "square", "diamond"][number % 3]},
            name=str(benchmark),
            row=1,
            col=last,
        )
    figure.add_vline(x=50, line={"color": INK, "dash": "dot", "width": 1}, row=1, col=last)
    figure.update_yaxes(tickvals=list(range(len(methods))), ticktext=methods, showgrid=False)
    figure.update_xaxes(title_text="win rate, %")
    return finish(figure, 170 + 44 * len(methods), margin_t=92, legend_y=1.2)


def _reach(
    own: pd.DataFrame, value: str, low: str, high: str, colour: str, thickness: float = 2
) -> dict[str, object]:
    return {
        "type": "data",
        "symmetric": False,
        "array": own[high] - own[value],
        "arrayminus": own[value] - own[low],
        "color": colour,
        "thickness": thickness,
        "width": 4,
    }
