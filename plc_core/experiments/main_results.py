"""Methods over benchmarks, data and models: the paper's main table and its 57 cells."""

from __future__ import annotations

from typing import Any

import pandas as pd
from pydantic import Field

from plc_core.analysis.paper import published
from plc_core.evaluation.contestants import Contestant
from plc_core.evaluation.judged import SFT
from plc_core.evaluation.results import finding, interval, mean_and_worst
from plc_core.experiments.contest import DPO, PLC, ContestConfig, entries_of
from plc_core.experiments.study import paper_name
from plc_core.files import RunError

DATASETS: dict[str, dict[str, Any]] = {
    "flipped": {"flip_rate": 0.2},
    "clean": {},
    "annotator": {"annotator": True},
}
"""World pairs with random flips, without, and with one annotator's labels."""
METHODS = ["cdpo", "rdpo-robust", "kto-pair", "rso", "gamma-po", "dr-dpo", "ropo", "re-po", "plc"]
"""The rows of the paper's main table, of whose rDPO the robust one is taken."""


class MainConfig(ContestConfig):
    """The parameters of `notebooks/02_main_results.ipynb`."""

    common: dict[str, Any] = Field(default_factory=dict)
    datasets: dict[str, dict[str, Any]] = Field(
        default_factory=lambda: dict(DATASETS), min_length=1
    )  # names and parameters of 01_train; the first has all methods
    models: list[str] = Field(["world"], min_length=1)  # to start from
    methods: list[str] = Field(default_factory=list)  # objectives beside dpo; none: `METHODS`
    transfer: list[str] = Field(["ropo", "plc"])  # objectives beside dpo, on the other datasets


def main_entries(config: MainConfig) -> list[Contestant]:
    """Every method on the first dataset and those of `transfer` on the others, for every model."""
    methods = config.methods or METHODS
    if odd := [name for name in config.transfer if name not in methods]:
        raise RunError(f"transfer has {', '.join(odd)}, which methods has not.")
    entries = []
    for model in config.models:
        for place, (dataset, shared) in enumerate(config.datasets.items()):
            objectives = config.transfer if place else methods
            variants = {paper_name(name): {"objective": name} for name in objectives}
            entries += entries_of(config, variants, dataset, {"model": model, **shared})
    return entries


def first_dataset(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the dataset and the model that come first, which all methods have."""
    first = table.iloc[0]
    return table[(table["dataset"] == first["dataset"]) & (table["model"] == first["model"])]


def transfer_table(table: pd.DataFrame) -> pd.DataFrame:
    """Win rates against same-data DPO and against the DPO of like KL: a column a dataset.

    Methods that only the first dataset has are left out, as their mean would not compare.
    """
    keys = ["model", "dataset"]
    sets = len(table[keys].drop_duplicates())
    counts = table[table["win_rate"].notna()].groupby("method", sort=False)["dataset"].nunique()
    everywhere = [m for m, n in counts.items() if n * table["model"].nunique() == sets]
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for key, part in table[table["method"].isin(everywhere)].groupby(
        [*keys, "method", "decoding"], sort=False
    ):
        model, dataset, method, decoding = map(str, key)
        head = f"{dataset} (n={part['n'].iloc[0]:,})"
        for what, names in (
            ("against DPO", ("win_rate", "low", "high")),
            ("at like KL", ("over", "over_low", "over_high")),
        ):
            rows.setdefault((model, method, f"{decoding}, {what}"), {})[head] = interval(
                part, *names
            )
    frame = pd.DataFrame(list(rows.values()), index=list(rows))
    frame.index = pd.MultiIndex.from_tuples(list(rows), names=["model", "method", "win rate, %"])
    return frame.fillna("–")


def beside_the_paper(cells: pd.DataFrame) -> pd.DataFrame:
    """Mean and worst of the cells here, and the paper's of 57 cells and of its main table.

    Args:
        cells: of the first dataset, a row a family of prompts or a benchmark.
    """
    here = mean_and_worst(cells)
    main = published("main_results")
    aggregates = published("aggregates", table="tab:extended-generalization", dataset="all")
    rows: dict[str, dict[str, str]] = {}
    for method in map(str, here["method"].unique()):
        if method.startswith(f"{DPO} "):
            continue
        row = rows.setdefault(method, {})
        for line in here[here["method"] == method].to_dict("records"):
            row[f"mean of {line['cells']}, {line['decoding']}"] = f"{line['mean']:.1f}"
            row[f"worst, {line['decoding']}"] = f"{line['worst']:.1f}"
        own = main[main["method"] == method]["win_rate"]
        row["paper: mean of 21"] = f"{own.mean():.1f}" if len(own) else "–"
        row["paper: worst of 21"] = f"{own.min():.1f}" if len(own) else "–"
        for statistic in ("mean", "worst"):
            known = aggregates[
                (aggregates["method"] == method) & (aggregates["statistic"] == statistic)
            ]["win_rate"]
            row[f"paper: {statistic} of 57"] = f"{known.iloc[0]:.1f}" if len(known) else "–"
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index.name = "method"
    return frame


def paper_transfer() -> pd.DataFrame:
    """The paper's dataset transfer with Qwen2.5-7B, and its models on clean UltraFeedback."""
    sets = published("aggregates", table="tab:dataset-transfer-qwen")
    models = published("aggregates", table="tab:extended-generalization", statistic="mean")
    models = models[models["model"] != "all"]
    both = pd.concat([models, sets])
    both["data"] = both["dataset"] + ", " + both["model"]
    wide = both.pivot_table("win_rate", "method", "data", sort=False)
    return wide.map("{:.1f}".format).replace("nan", "–")


def main_sentence(table: pd.DataFrame, cells: pd.DataFrame) -> str:
    """What PLC-DPO, or the first method, wins here and beyond its KL; and which method is best."""
    method = PLC if PLC in set(table["method"]) else _methods(table)[0]
    means = mean_and_worst(cells)
    means = means[~means["method"].str.startswith(DPO + " ") & (means["method"] != SFT)]
    best = [
        f"{part.sort_values('mean')['method'].iloc[-1]} ({part['mean'].max():.1f} %) in {decoding}"
        for decoding, part in means.groupby("decoding", sort=False)
    ]
    cells57 = {"table": "tab:extended-generalization", "dataset": "all", "statistic": "mean"}
    paper = published("aggregates", **cells57, method=method)["win_rate"]
    said = f" The paper has {paper.iloc[0]:.1f} % for {method} over 57 cells." if len(paper) else ""
    return f"{finding(table, method)} The best mean over cells is {' and '.join(best)}.{said}"


def _methods(table: pd.DataFrame) -> list[str]:
    known = table[table["win_rate"].notna() & (table["method"] != SFT)]
    return list(dict.fromkeys(known["method"]))
