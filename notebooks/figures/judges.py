"""Two judges of the same responses side by side."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.figures.style import INK, RUN_COLOURS, empty, finish, whiskers


def judges_side_by_side(table: pd.DataFrame, baseline: str = "DPO") -> go.Figure:
    """Each method's win rate against the baseline by every judge, one panel a decoding."""
    known = table[table["win_rate"].notna()]
    if known.empty:
        return empty("No method but the baseline was judged.", 300)
    methods = list(dict.fromkeys(known["method"]))[::-1]
    decodings = list(dict.fromkeys(known["decoding"]))
    judges = list(dict.fromkeys(known["judge"]))
    figure = make_subplots(
        rows=1, cols=len(decodings), shared_yaxes=True, subplot_titles=decodings,
        horizontal_spacing=0.04,
    )  # fmt: skip
    for column, decoding in enumerate(decodings, start=1):
        for number, judge in enumerate(judges):
            own = known[(known["decoding"] == decoding) & (known["judge"] == judge)]
            shift = 0.3 * ((len(judges) - 1) / 2 - number) / max(1, len(judges) - 1)
            colour = RUN_COLOURS[number]
            figure.add_scatter(
                x=own["win_rate"],
                y=[methods.index(name) + shift for name in own["method"]],
                error_x=whiskers(own["win_rate"], own["low"], own["high"], colour),
                mode="markers",
                marker={"color": colour, "size": 9, "symbol": ["circle", "diamond"][number % 2]},
                name=f"judged by {judge}",
                legendgroup=judge,
                showlegend=column == 1,
                hovertemplate=f"{judge}: %{{x:.1f}} %<extra></extra>",
                row=1,
                col=column,
            )
        figure.add_vline(x=50, line={"color": INK, "dash": "dot", "width": 1}, row=1, col=column)
    figure.update_yaxes(tickvals=list(range(len(methods))), ticktext=methods, showgrid=False)
    figure.update_xaxes(title_text=f"win rate against {baseline}, %")
    height = 150 + 40 * len(methods)
    return finish(figure, height, margin_t=92, legend_y=1 + 46 / (height - 150))
