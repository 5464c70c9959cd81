"""Methods over benchmarks, data and models: the paper's main table and its 57 cells."""

from __future__ import annotations

from typing import Any

import pandas as pd
from pydantic import Field, model_validator

from plc_core.analysis.paper import published
from plc_core.engine.config import Objective
from plc_core.evaluation.contestants import Contestant
from plc_core.evaluation.judged import SFT
from plc_core.evaluation.results import control_text, finding, interval, mean_and_worst
from plc_core.experiments.contest import DPO, PLC, ContestConfig, entries_of, with_controls
from plc_core.experiments.study import paper_name, started_from

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
    methods: list[Objective] = Field(default_factory=list)  # objectives beside dpo; none: `METHODS`
    paper_model: str = "Qwen2.5-7B"  # whose published table stands beside
    transfer: list[Objective] = Field(["ropo", "plc"])  # beside dpo, on the other datasets

    def parts(self) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
        """What is trained of each model and dataset but plain DPO: parameters by method.

        All methods on the first dataset and those of `transfer` on the others.
        """
        return {
            (model, dataset): {
                paper_name(name): {"objective": name}
                for name in (self.transfer if place else self.methods or METHODS)
            }
            for model in self.models
            for place, dataset in enumerate(self.datasets)
        }

    def shared(self, model: str, dataset: str) -> dict[str, Any]:
        """Parameters of 01_train of all methods with this model and dataset."""
        return {"model": model, **self.datasets[dataset]}

    def variants(self) -> dict[str, dict[str, Any]]:
        """The runs of all models and datasets."""
        return {
            f"{method}, {dataset}, {model}": own
            for (model, dataset), methods in self.parts().items()
            for method, own in with_controls(self, methods, self.shared(model, dataset)).items()
        }

    def start_models(self) -> list[str]:
        """What the runs start from."""
        return self.models

    @model_validator(mode="after")
    def _possible(self) -> MainConfig:
        if (said := started_from(self.recipe, self.common)) not in self.models:
            raise ValueError(f"The recipe starts from {said!r}, which models has not: set models")
        if odd := [name for name in self.transfer if name not in (self.methods or METHODS)]:
            raise ValueError(f"transfer has {', '.join(odd)}, which methods has not")
        known = dict.fromkeys(published("main_results")["model"])
        if self.paper_model not in known:
            raise ValueError(
                f"paper_model is {self.paper_model!r}; the paper's main table has "
                f"{', '.join(known)}"
            )
        return self


def main_entries(config: MainConfig) -> list[Contestant]:
    """Every method on the first dataset and those of `transfer` on the others, for every model."""
    entries = []
    for (model, dataset), variants in config.parts().items():
        entries += entries_of(config, variants, dataset, config.shared(model, dataset))
    return entries


def first_dataset(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the dataset and the model that come first, which all methods have."""
    first = table.iloc[0]
    return table[(table["dataset"] == first["dataset"]) & (table["model"] == first["model"])]


def transfer_table(table: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Win rates against same-data DPO and at the nearest KL: a column a dataset, mean and worst.

    Methods that only the first dataset has are left out, as their mean would not compare.

    Args:
        table: of `results_of`, all data and models.
        cells: the same by family of prompts; mean and worst are over all of them.
    """
    keys = ["model", "dataset"]
    sets = len(table[keys].drop_duplicates())
    known = table[table["win_rate"].notna()].drop_duplicates([*keys, "method"])
    counts = known.groupby("method", sort=False).size()
    everywhere = [str(method) for method, n in counts.items() if n == sets]
    own = cells[cells["method"].isin(everywhere)]
    over = {
        (line["decoding"], line["method"]): line
        for line in mean_and_worst(own, ["model", "dataset", "benchmark"]).to_dict("records")
    }
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for key, part in table[table["method"].isin(everywhere)].groupby(
        [*keys, "method", "decoding"], sort=False
    ):
        model, dataset, method, decoding = map(str, key)
        head = f"{dataset} (n={part['n'].iloc[0]:,})"
        against = rows.setdefault((model, method, f"{decoding}, against DPO"), {})
        against[head] = interval(part, "win_rate", "low", "high")
        line = over[(decoding, method)]
        against[f"mean of {line['cells']} cells"] = f"{line['mean']:.1f}"
        against["worst cell"] = f"{line['worst']:.1f}"
        if part["over"].notna().any():
            like = rows.setdefault((model, method, f"{decoding}, at the nearest KL"), {})
            like[head] = interval(part, "over", "over_low", "over_high")
        if part["kl"].notna().any():
            far = rows.setdefault((model, method, "KL, nats; control"), {})
            control = control_text(part) or "–"
            far[head] = f"{interval(part, 'kl', 'kl_low', 'kl_high', 2)}; {control}"
    places = {pair: place for place, pair in enumerate(dict.fromkeys(key[:2] for key in rows))}
    order = sorted(rows, key=lambda key: (places[key[:2]], key[2].startswith("KL")))
    frame = pd.DataFrame([rows[key] for key in order])
    names = ["model", "method", "win rate, %"]
    frame = frame.set_axis(pd.MultiIndex.from_tuples(order, names=names))
    last = [name for name in frame if "cell" in str(name)]
    return frame[[name for name in frame if name not in last] + last].fillna("–")


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


def paper_main(config: MainConfig) -> pd.DataFrame:
    """The published main table of `paper_model`: method, benchmark, win_rate."""
    return published("main_results", model=config.paper_model)[["method", "benchmark", "win_rate"]]


def paper_main_shown(config: MainConfig) -> pd.DataFrame:
    """The same as the paper prints it, a column a benchmark."""
    wide = paper_main(config).pivot_table("win_rate", "method", "benchmark", sort=False)
    return wide.map("{:.1f}".format).rename_axis(columns=f"the paper, {config.paper_model}")


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
    means = means[~means["method"].str.startswith(DPO + " ")]
    best = []
    for decoding, part in means.groupby("decoding", sort=False):
        own = part.set_index("method")["mean"]
        trained = own.drop(SFT, errors="ignore")
        start = f", SFT {own[SFT]:.1f} %" if SFT in own else ""
        best.append(f"{trained.idxmax()} ({trained.max():.1f} %{start}) in {decoding}")
    cells57 = {"table": "tab:extended-generalization", "dataset": "all", "statistic": "mean"}
    paper = published("aggregates", **cells57, method=method)["win_rate"]
    said = f" The paper has {paper.iloc[0]:.1f} % for {method} over 57 cells." if len(paper) else ""
    means_said = f"Of the methods the best mean over cells has {' and '.join(best)}."
    return f"{finding(table, method)} {means_said}{said}"


def _methods(table: pd.DataFrame) -> list[str]:
    known = table[table["win_rate"].notna() & (table["method"] != SFT)]
    return list(dict.fromkeys(known["method"]))
