"""Method by method and change by change: what each does to the numbers of what it varies."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from notebooks.evidence.claims import shown
from notebooks.evidence.estimates import (
    BASELINE,
    FRESH,
    METHOD,
    Study,
    above_frontier,
    at,
    difference,
    over_seeds,
)
from plc_core.analysis.figures.style import INK, empty, finish, titled, whiskers
from plc_core.typography import percent

_MEASURES = {
    # column: measure, group, scale, digits
    "accuracy, points": ("accuracy", "test", 100, 1),
    "reward": ("reward", "responses", 1, 3),
    "KL, nats": ("kl", "responses", 1, 2),
    "flip AUROC": ("flip_auroc", "q_flip", 1, 3),
    "tie AUROC": ("tie_auroc", "q_tie", 1, 3),
    "τ with votes": ("votes_trend", "tau", 1, 3),
}

_AT_KL = "accuracy over DPO's at the same KL, points"


def variant_effects(study: Study) -> pd.DataFrame:
    """What each variant does: one row a variant and share of reversed labels, minus its base.

    The base is the run of the slice main with the same seed: of PLC-DPO's aggressive recipe for
    its variants, of DPO for others; where the mixture is the change, it saw other pairs. On fresh
    pairs the base is PLC-DPO's run there, and of that DPO's, which has none. Last, accuracy over
    that of plain DPO on the same pairs with another learning rate, at which it has the variant's
    KL: of the seeds where there is one. Columns: variant, reversed (a share), against, and the
    differences as `Estimate`, in the units of the variants table; None where there is no number.
    """
    rows = []
    jobs = study.jobs[study.jobs["slice"] == "variants"] if study.is_run else pd.DataFrame()
    for (name, given), members in jobs.groupby(["method", "flip_rate"]) if len(jobs) else ():
        variant, rate = str(name), float(str(given))
        base = METHOD if (members["objective"] == "plc").all() else BASELINE
        part = "main"
        if base == METHOD and (members["mixture"] == FRESH).all():
            base, part = FRESH if variant != FRESH else f"{BASELINE}-{FRESH}", "variants"
        if variant == f"{BASELINE}-{FRESH}":
            continue
        row: dict[str, object] = {"variant": variant, "reversed": rate, "against": base}
        for column, (measure, group, _, _) in _MEASURES.items():
            sides = (
                at(study.values(measure, group, variant, "variants"), (rate,)),
                at(study.values(measure, group, base, part), (rate,)),
            )
            row[column] = over_seeds(difference(*sides))
        above = above_frontier(study, "accuracy", "test", "learning_rate", variant, "variants")
        same_pairs = (members["mixture"] == "all").all()
        row[_AT_KL] = over_seeds(at(above, (rate,))) if same_pairs else None
        rows.append(row)
    names = ["variant", "reversed", "against", *_MEASURES, _AT_KL]
    return pd.DataFrame(rows, columns=names, dtype="object")


def variants_table(effects: pd.DataFrame) -> pd.DataFrame:
    """`variant_effects` as text, each number with its 95 % interval over seeds."""
    table = effects.assign(reversed=[percent(rate) for rate in effects["reversed"]])
    forms = {name: form[2:] for name, form in _MEASURES.items()} | {_AT_KL: (100, 1)}
    for column, (scale, digits) in forms.items():
        table[column] = [
            "–" if found is None else shown(found, digits, scale, signed=True)
            for found in effects[column]
        ]
    return table


_BESIDE = {
    # column: its name in the legend, symbol, place within the row
    "accuracy, points": ("over the run without the change", "circle", -0.16),
    _AT_KL: ("over plain DPO at the same KL", "diamond-open", 0.16),
}


def variant_dots(effects: pd.DataFrame) -> go.Figure:
    """Held-out accuracy that each change adds, a row a variant and a panel a share reversed.

    `effects` is the table of `variant_effects`. Dotted: no change.
    """
    if effects.empty:
        return empty("No variant has been run yet.", 200)
    rates = sorted(effects["reversed"].unique())
    names = sorted(effects["variant"].unique(), key=lambda name: _accuracy(effects, name))
    figure = make_subplots(
        rows=1,
        cols=len(rates),
        shared_yaxes=True,
        horizontal_spacing=0.04,
        subplot_titles=[f"{percent(rate)} of the labels reversed" for rate in rates],
    )
    for col, rate in enumerate(rates, start=1):
        own = effects[effects["reversed"] == rate]
        for column, (said, symbol, beside) in _BESIDE.items():
            known = own[[found is not None for found in own[column]]]
            values = pd.DataFrame(
                [(100 * e.value, 100 * e.low, 100 * e.high, e.n) for e in known[column]],
                columns=["value", "low", "high", "n"],
                index=known.index,
            )
            figure.add_scatter(
                x=values["value"],
                y=[names.index(name) + beside for name in known["variant"]],
                name=said,
                legendgroup=said,
                showlegend=col == 1,
                mode="markers",
                marker={"color": INK, "size": 8, "symbol": symbol},
                error_x=whiskers(values["value"], values["low"], values["high"], INK)
                | {"thickness": 1.4, "width": 3},
                customdata=[
                    (name, *row)
                    for name, row in zip(
                        known["variant"], values[["low", "high", "n"]].to_numpy(), strict=True
                    )
                ],
                hovertemplate=f"%{{customdata[0]}}, {said}: %{{x:+.1f}} [%{{customdata[1]:+.1f}}, "
                "%{customdata[2]:+.1f}] points, n = %{customdata[3]:.0f} seeds<extra></extra>",
                row=1,
                col=col,
            )
        figure.add_vline(x=0, line={"color": INK, "dash": "dot"}, row=1, col=col)
    figure.update_xaxes(title_text="points of held-out accuracy")
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, range=[-0.6, len(names) - 0.4]
    )
    figure.update_annotations(font_size=13)
    finish(figure, 130 + 30 * len(names), margin_t=76, legend_y=1.05)
    return titled(figure, "Held-out accuracy that each change adds, points with 95 % intervals")


def _accuracy(effects: pd.DataFrame, variant: str) -> float:
    """The mean change of a variant's accuracy over the shares reversed."""
    found = effects.loc[effects["variant"] == variant, "accuracy, points"]
    return sum(e.value for e in found if e is not None) / max(1, len(found))


def methods_table(study: Study, measure: str = "accuracy", group: str = "test") -> pd.DataFrame:
    """One row a method: its number minus DPO's in the same data and seed, by share reversed.

    In points with 95 % intervals over seeds, as text; DPO's own row has its mean in percent.
    """
    table = {}
    jobs = study.jobs[study.jobs["slice"] == "main"] if study.is_run else pd.DataFrame()
    names = sorted(jobs["method"].unique(), key=lambda m: (m != BASELINE, m)) if len(jobs) else []
    for method in names:
        cells = {}
        for rate in sorted(jobs["flip_rate"].unique()):
            values = at(study.values(measure, group, method), (rate,))
            if method != BASELINE:
                values = difference(values, at(study.values(measure, group, BASELINE), (rate,)))
            found = over_seeds(values)
            signed = method != BASELINE
            cells[f"{percent(rate)} reversed"] = (
                "–" if found is None else shown(found, 1, 100, signed)
            )
        table["DPO" if method == BASELINE else f"{method} over DPO"] = cells
    return pd.DataFrame.from_dict(table, orient="index")
