"""What runs earned, against how far they moved from the reference."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plc_core.analysis.figures.style import RUN_COLOURS, empty, finish


def reward_against_kl(table: pd.DataFrame) -> go.Figure:
    """Gold reward against the KL to the reference, one panel a decoding, with 95 % intervals.

    `table` is that of `evaluation.summary.compare_rewards`; the reference stands at KL 0.
    """
    if table.empty:
        return empty("No run has been judged yet.", 360)
    decodings = list(dict.fromkeys(table["decoding"]))
    figure = make_subplots(rows=1, cols=len(decodings), subplot_titles=decodings)
    names = list(dict.fromkeys(table["label"]))
    for row in table.to_dict("records"):
        reward, kl = row["reward"], row["kl"]
        figure.add_scatter(
            x=[kl.mean if kl is not None else 0.0],
            y=[reward.mean],
            error_y={
                "array": [reward.high - reward.mean],
                "arrayminus": [reward.mean - reward.low],
            },
            error_x={"array": [kl.high - kl.mean], "arrayminus": [kl.mean - kl.low]}
            if kl
            else None,
            name=row["label"],
            legendgroup=row["label"],
            showlegend=row["decoding"] == decodings[0],
            mode="markers",
            marker={"size": 11, "color": RUN_COLOURS[names.index(row["label"]) % len(RUN_COLOURS)]},
            hovertemplate=f"{row['label']}<br>KL %{{x:.2f}}, reward %{{y:.2f}}<extra></extra>",
            row=1,
            col=decodings.index(row["decoding"]) + 1,
        )
    figure.update_xaxes(title_text="KL to the reference, nats per response")
    figure.update_yaxes(title_text="mean gold reward", col=1)
    return finish(figure, 400).update_layout(legend_y=1.12, margin_t=84)
