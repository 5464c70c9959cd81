"""The paper against itself: its aggregates computed again from its own cells.

A difference that the rounding of the printed numbers can explain counts as agreement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from notebooks.studies.paper_plausibility import Rows, marks, seeds, sizes
from plc_core.analysis.paper import claim, lines, published

THREE = ["AlpacaEval 2", "UltraFeedback", "Vicuna"]
_ROUNDING = 0.05 + 0.05  # of the printed mean, and of the printed cells behind it


def checks() -> pd.DataFrame:
    """Every recomputation: columns table, quantity, published, recomputed, agrees.

    `published` and `recomputed` are numbers where one number is compared, else text.
    """
    parts: list[Callable[[], Rows]] = [
        _aggregates,
        _main_against_cells,
        _three_benchmark_means,
        _default_recipe,
        _ablation_averages,
        _sweeps,
        _ties,
        _multipref,
        _hard_pairs,
        _texts,
        seeds,
        sizes,
        marks,
    ]
    return pd.DataFrame([row for part in parts for row in part()])


def contradictions() -> pd.DataFrame:
    """The rows of `checks` where the paper disagrees with itself beyond rounding."""
    table = checks()
    return table[~table["agrees"].astype(bool)].drop(columns="agrees").reset_index(drop=True)


def _row(
    table: str, quantity: str, printed: float, computed: float, tolerance: float
) -> dict[str, Any]:
    return {
        "table": table,
        "quantity": quantity,
        "published": printed,
        "recomputed": round(computed, 4),
        "agrees": abs(printed - computed) <= tolerance + 1e-9,
    }


def _aggregates() -> Rows:
    cells = published("cells")
    rows = []
    for line in lines("aggregates"):
        chosen = cells[cells["method"] == line.method]
        if line.dataset != "all":
            chosen = chosen[chosen["dataset"] == line.dataset]
        if line.model != "all":
            chosen = chosen[chosen["model"] == line.model]
        if chosen.empty:  # the paper prints no cells of HH-RLHF
            continue
        worst = line.statistic == "worst"
        computed = chosen["win_rate"].min() if worst else chosen["win_rate"].mean()
        quantity = f"{line.statistic} of {line.method} on {line.dataset}, {line.model}"
        quantity += f" ({len(chosen)} cells)"
        tolerance = 0.0 if worst else _ROUNDING
        rows.append(_row(line.table, quantity, line.win_rate, computed, tolerance))
    return rows


def _main_against_cells() -> Rows:
    keys = ["dataset", "model", "benchmark", "method"]
    both: list[Any] = list(
        published("main_results")
        .merge(published("cells"), on=keys, suffixes=("", "_cell"))
        .itertuples()
    )
    return [
        _row(
            line.table_cell,
            f"{line.method}, {line.model}, {line.benchmark} as in tab:main-results",
            line.win_rate_cell,
            line.win_rate,
            0.05,
        )
        for line in both
    ]


def _three_benchmark_means() -> Rows:
    """Clean columns of the cross-dataset noise table are means of three of the cells."""
    noise = lines("noise", table="tab:cross-dataset-noise", noise_rate=0.0)
    return [
        _row(
            line.table,
            f"mean of {line.method} on clean {line.dataset} over {', '.join(THREE)}",
            line.win_rate,
            _three(line.dataset, "Qwen2.5-7B", line.method),
            _ROUNDING,
        )
        for line in noise
    ]


def _three(dataset: str, model: str, method: str) -> float:
    cells = published("cells", dataset=dataset, model=model, method=method)
    return float(cells[cells["benchmark"].isin(THREE)]["win_rate"].mean())


def _default_recipe() -> Rows:
    """The default recipe on clean UltraFeedback is in the cells, the sweeps' text and the ties."""
    computed = _three("UltraFeedback", "Qwen2.5-7B", "PLC-DPO")
    (tie,) = lines("tie_injection", method="PLC-DPO", tie_rate=0.0)
    place = "three-benchmark mean of PLC-DPO, Qwen2.5-7B, clean UltraFeedback"
    default = claim("win rate of the default recipe")
    return [
        _row("app:full-hyperparameter-sweep", place, default, computed, _ROUNDING),
        # The table of ties names no model; 58.3 is the sweeps' number, which is of this one.
        _row(
            "tab:tie-injection-performance",
            f"{place} (model assumed)",
            tie.win_rate,
            computed,
            _ROUNDING,
        ),
    ]


def _ablation_averages() -> Rows:
    rows = []
    for variant, group in published("ablations").groupby("variant", sort=False):
        mean = group["benchmark"] == "mean of 4"
        printed, computed = group[mean]["win_rate"].item(), group[~mean]["win_rate"].mean()
        rows.append(
            _row("tab:ablation-results", f"average of {variant}", printed, computed, 0.005 + 0.005)
        )
    return rows


def _sweeps() -> Rows:
    sweeps = published("sweeps")
    rows = []
    for name, group in sweeps.groupby("hyperparameter", sort=False):
        for side, computed in (("low", group["win_rate"].min()), ("high", group["win_rate"].max())):
            printed = group[f"range_{side}"].iloc[0]
            rows.append(_row(group["table"].iloc[0], f"{side} end of {name}", printed, computed, 0))
    printed = claim("mean win rate of the sweeps")
    rows.append(
        _row(
            "app:full-hyperparameter-sweep",
            f"mean of {len(sweeps)} configurations",
            printed,
            sweeps["win_rate"].mean(),
            _ROUNDING,
        )
    )
    return rows


def _ties() -> Rows:
    table = "tab:tie-injection-performance"
    ties = published("tie_injection", method="PLC-DPO").sort_values("tie_rate")
    rows = [
        _row(table, f"points over DPO at {t:.0%}", over, win - 50, 0)
        for t, over, win in ties[["tie_rate", "over_dpo", "win_rate"]].to_numpy().tolist()
    ]
    over = ties["over_dpo"]
    rows.append(
        {
            "table": "app:tie-validation",
            "quantity": "points over DPO as the tie rate rises",
            "published": "increase consistently",
            "recomputed": " ".join(f"{x:+.1f}" for x in over),
            "agrees": bool(over.is_monotonic_increasing),
        }
    )
    parts = claim("injected ties of the 30 % tie set") + claim(
        "unmodified pairs of the 30 % tie set"
    )
    whole = claim("pairs of the 30 % tie set")
    return [*rows, _row("app:data-construction-details", "pairs of the tie set", whole, parts, 0)]


def _multipref() -> Rows:
    groups: Any = published("multipref").set_index("group")
    base = groups.loc["unanimous", "mean_q_tie"]
    rows = [
        _row("tab:multipref-routing", "pairs of all groups", claim("pairs"), groups["n"].sum(), 0)
    ]
    for name in ("divergent", "tie-majority"):
        change = 100 * (groups.loc[name, "mean_q_tie"] / base - 1)
        # Means are printed to 0.0001, so their ratio is known to 0.15 points and a bit.
        reach = 0.05 + 100 * 0.00005 / base * (2 + change / 100)
        printed = groups.loc[name, "change_percent"]
        rows.append(_row("tab:multipref-routing", f"change of {name}, %", printed, change, reach))
    return rows


def _hard_pairs() -> Rows:
    rows = []
    for line in lines("hard_pairs"):
        eta = line.noise_rate
        mix = eta * line.marked_q_flip + (1 - eta) * line.unmarked_q_flip
        table, at = line.table, f"at noise {eta:g}"
        rows.append(_row(table, f"q_flip of both groups {at}", line.q_flip, mix, 0.001))
        total = line.q_clean + line.q_flip + line.q_tie
        rows.append(_row(table, f"sum of the mean weights {at}", 1.0, total, 0.0015))
    return rows


def _texts() -> Rows:
    cells = published("cells")
    means: Any = cells.groupby(["dataset", "model", "method"])["win_rate"].mean()
    place = "app:dataset-transfer"
    above = "mean win rate of PLC-DPO above 50"
    rows = [
        _row(
            place,
            f"{above}, HH-Golden, {model}",
            claim(above, model=model),
            means["HH-Golden", model, "PLC-DPO"] - 50,
            _ROUNDING,
        )
        for model in ("Qwen2.5-7B", "Llama-3-8B", "Mistral-7B")
    ]
    share = 0.2 * claim("mean correction weight in the first 20 % of training")
    share /= claim("mean correction weight over training")
    printed = claim("share of the correction weight in the first 20 % of training")
    rows.append(_row("app:self-confirmation", "early share of the weight", printed, share, 0.001))
    return rows
