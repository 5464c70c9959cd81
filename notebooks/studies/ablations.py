"""PLC-DPO without one of its parts: the paper's component ablations."""

from __future__ import annotations

from typing import Any

import pandas as pd

from notebooks.studies.win_rate_study import ContestConfig, entries_of
from plc_core.analysis.paper import published
from plc_core.evaluation.methods import Contestant
from plc_core.evaluation.results import bounds, control_text, interval

FULL = "PLC-DPO full"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "DPO-LN only": ("margin rescaling only", {"objective": "dpo-ln"}),
    "Confidence reweight only": (
        "downweighting without correction",
        {"objective": "plc", "objective_options": {"correct": False}},
    ),
    "Remove flip state": (
        "no reverse action",
        {"objective": "plc", "objective_options": {"states": ["clean", "tie"]}},
    ),
    "Remove tie state": (
        "no neutralizing action",
        {"objective": "plc", "objective_options": {"states": ["clean", "flip"]}},
    ),
    "Remove EMA calibration": (
        "uncalibrated routing scale",
        {"objective": "plc", "objective_options": {"calibrate": False}},
    ),
    "Remove warm-up/gate": (
        "no correction deferral",
        {
            "objective": "plc",
            "schedule": "constant",
            "objective_options": {"gate": False, "warmup": 0.0},
        },
    ),
    FULL: ("all correction actions", {"objective": "plc"}),
}
"""The rows of the paper's table: what each tests, and the parameters of 01_train."""


class AblationConfig(ContestConfig):
    """The parameters of `notebooks/09_ablations.ipynb`."""

    def compared(self) -> dict[str, dict[str, Any]]:
        """The full method and every ablation of it."""
        return {name: own for name, (_, own) in VARIANTS.items()}


def ablation_entries(config: AblationConfig) -> list[Contestant]:
    """The full method and every ablation of it, on the same pairs."""
    return entries_of(config, config.compared())


def ablation_table(table: pd.DataFrame, against_full: pd.DataFrame) -> pd.DataFrame:
    """One row a variant: what it tests, win rates here and at the nearest KL, and the paper's.

    Args:
        table: of `means_of`.
        against_full: win rates against the full method, of `Evaluation.means`.
    """
    paper = published("ablations", benchmark="mean of 4").set_index("variant")["win_rate"]
    rows = {}
    for name, (tested, _) in VARIANTS.items():
        own = table[table["method"] == name]
        row = {"mechanism tested": tested}
        for decoding, part in own.groupby("decoding", sort=False):
            row[f"{decoding}, against DPO"] = interval(part, "win_rate", "low", "high")
            row[f"{decoding}, at the nearest KL"] = interval(part, "over", "over_low", "over_high")
            full = against_full[
                (against_full["method"] == name) & (against_full["decoding"] == decoding)
            ]
            row[f"{decoding}, against full"] = interval(full, "win_rate", "low", "high")
        one = own.drop_duplicates("seed")
        row["KL, nats"] = interval(one, "kl", "kl_low", "kl_high", 2)
        row["control (KL)"] = control_text(own) or "–"
        row["n"] = f"{own['n'].iloc[0]:,}"
        row["paper, mean of 4"] = f"{paper[name]:.1f}"
        rows[name] = row
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index.name = "variant"
    return frame


def paper_ablations(cells: pd.DataFrame) -> pd.DataFrame:
    """The published table under the names here: dataset, model, benchmark, method, win_rate."""
    first = {name: cells[name].iloc[0] for name in ("dataset", "model")}
    return (
        published("ablations")
        .rename(columns={"variant": "method"})
        .assign(**first)[["dataset", "model", "benchmark", "method", "win_rate"]]
    )


def ablation_sentence(against_full: pd.DataFrame) -> str:
    """Which parts matter here beyond noise, and which mattered most in the paper."""
    paper = published("ablations", benchmark="mean of 4").set_index("variant")["win_rate"]
    parts = []
    rows = against_full[against_full["method"].isin(VARIANTS)]
    for decoding, part in rows.groupby("decoding", sort=False):
        own = {str(name): bounds(rows) for name, rows in part.groupby("method", sort=False)}
        said = {name: f"{name} ({found.mean:.1f} %)" for name, found in own.items()}
        worse = [said[name] for name, found in own.items() if found.high < 50]
        better = [said[name] for name, found in own.items() if found.low > 50]
        parts.append(
            f"in {decoding} decoding {', '.join(worse) or 'none'} "
            f"{'lose' if len(worse) > 1 else 'loses'} to it and {', '.join(better) or 'none'} "
            f"{'win' if len(better) > 1 else 'wins'}"
        )
    worst = str(paper.drop(FULL).idxmin())
    return (
        f"Of the six variants, each compared with the full method, {'; '.join(parts)}: these 95 % "
        f"intervals exclude 50 %. They are not corrected for {len(VARIANTS) - 1} comparisons in "
        f"each decoding. In the paper the full method wins {paper[FULL]:.1f} % against DPO, and "
        f"{worst} loses most ({paper[worst]:.1f} %)."
    )
