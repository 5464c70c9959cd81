"""The paper's main table and its 57 cells: every cell, means and worst cells, and the sentence."""

from __future__ import annotations

import pandas as pd

from notebooks.studies.main_results import MainConfig
from notebooks.studies.win_rate_study import DPO, PLC
from plc_core.analysis.paper import published
from plc_core.evaluation.comparison import SFT
from plc_core.evaluation.results import control_text, finding, interval, mean_and_worst

CELLS = ["dataset", "model", "benchmark"]
"""What a cell of the paper's 57 is: each weighs alike in a mean."""


def first_dataset(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the dataset and the model that come first, which all methods have."""
    first = table.iloc[0]
    return table[(table["dataset"] == first["dataset"]) & (table["model"] == first["model"])]


def common_cells(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The cells of the methods that have every cell (data, model, benchmark), and who has not.

    Means and worst cells compare between the former alone.
    """
    known = cells[cells["win_rate"].notna()]
    whole = len(known[CELLS].drop_duplicates())
    counts = known.drop_duplicates([*CELLS, "method"]).groupby("method", sort=False).size()
    partial = [str(method) for method, count in counts.items() if count < whole]
    return known[~known["method"].isin(partial)], partial


def grid_table(cells: pd.DataFrame) -> pd.DataFrame:
    """The paper's aggregate of all cells: the mean of each dataset's, of all, and the worst cell.

    Every cell weighs alike. Methods that lack a cell are left out (`common_cells`). Tables
    "Mean win rates across the 57 cells" and "Aggregate over 57 cells".

    Args:
        cells: of `results_of`, a row a dataset, model, benchmark, method and decoding.
    """
    known, _ = common_cells(cells)
    paper = published("aggregates", table="tab:extended-generalization", dataset="all")
    rows: dict[tuple[str, str], dict[str, str]] = {}
    whole = mean_and_worst(known, CELLS)
    for dataset, part in known.groupby("dataset", sort=False):
        for line in mean_and_worst(part, CELLS).to_dict("records"):
            row = rows.setdefault((line["method"], line["decoding"]), {})
            row[f"{dataset} (n={line['cells']})"] = f"{line['mean']:.1f}"
    for line in whole.to_dict("records"):
        row = rows[line["method"], line["decoding"]]
        row[f"all cells (n={line['cells']})"] = f"{line['mean']:.1f}"
        row["worst"] = f"{line['worst']:.1f}"
        row["worst cell"] = line["worst_cell"]
        for statistic in ("mean", "worst"):
            own = paper[(paper["method"] == line["method"]) & (paper["statistic"] == statistic)]
            name = f"paper: {statistic} of 57"
            known_there = len(own) and line["decoding"] == "greedy"  # the paper's decoding
            row[name] = f"{own['win_rate'].iloc[0]:.1f}" if known_there else "–"
    index = pd.MultiIndex.from_tuples(list(rows), names=["method", "decoding"])
    return pd.DataFrame(list(rows.values()), index=index)


def transfer_table(table: pd.DataFrame) -> pd.DataFrame:
    """Win rates against same-data DPO and at the nearest KL, means over benchmarks: a column a
    dataset.

    Methods that only the first dataset has are left out.

    Args:
        table: of `means_of`, all data and models.
    """
    keys = ["model", "dataset"]
    sets = len(table[keys].drop_duplicates())
    known = table[table["win_rate"].notna()].drop_duplicates([*keys, "method"])
    counts = known.groupby("method", sort=False).size()
    everywhere = [str(method) for method, n in counts.items() if n == sets]
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for key, part in table[table["method"].isin(everywhere)].groupby(
        [*keys, "method", "decoding"], sort=False
    ):
        model, dataset, method, decoding = map(str, key)
        row = {"win_rate": "against DPO", "over": "at the nearest KL"}
        for value, said in row.items():
            if part[value].notna().any():
                low, high = ("low", "high") if value == "win_rate" else ("over_low", "over_high")
                line = rows.setdefault((model, method, f"{decoding}, {said}"), {})
                line[dataset] = interval(part, value, low, high)
        if part["kl"].notna().any():
            far = rows.setdefault((model, method, "KL, nats; control"), {})
            control = control_text(part) or "–"
            far[dataset] = f"{interval(part, 'kl', 'kl_low', 'kl_high', 2)}; {control}"
        of = rows.setdefault((model, method, "benchmarks; prompts"), {})
        of[dataset] = f"{part['benchmarks'].iloc[0]}; {part['n'].iloc[0]:,}"
    places = {pair: place for place, pair in enumerate(dict.fromkeys(key[:2] for key in rows))}
    last = ("KL", "benchmarks")
    order = sorted(rows, key=lambda key: (places[key[:2]], key[2].startswith(last)))
    names = ["model", "method", "win rate, %"]
    index = pd.MultiIndex.from_tuples(order, names=names)
    return pd.DataFrame([rows[key] for key in order], index=index).fillna("–")


def beside_the_paper(cells: pd.DataFrame) -> pd.DataFrame:
    """Mean and worst of the first dataset's cells here, and of the paper's main table.

    Args:
        cells: of the first dataset and model, a row a benchmark.
    """
    here = mean_and_worst(cells)
    main = published("main_results")
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
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index.name = "method"
    return frame


def paper_cells(config: MainConfig, cells: pd.DataFrame) -> pd.DataFrame:
    """Published win rates under the names here: dataset, model, benchmark, method, win_rate.

    Those of datasets and models that are called as in the paper. Where the first are not, they
    have the main table of `paper_model` beside them.
    """
    keys = ["dataset", "model", "benchmark", "method"]
    both = pd.concat([published("main_results"), published("cells")]).drop_duplicates(keys)
    first = {name: str(cells[name].iloc[0]) for name in ("dataset", "model")}
    if not ((both["dataset"] == first["dataset"]) & (both["model"] == first["model"])).any():
        own = published("main_results", model=config.paper_model).assign(**first)
        both = pd.concat([own, both])
    return both[[*keys, "win_rate"]]


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
    """What PLC-DPO, or the first method, wins here and beyond its KL; and which method is best.

    Args:
        table: of `means_of`, the first dataset and model.
        cells: of `results_of`, all of them.
    """
    method = PLC if PLC in set(table["method"]) else _methods(table)[0]
    first = first_dataset(cells)
    text = f"{finding(table, method)} Best mean on {first['dataset'].iloc[0]}: {_best(first)}."
    known, partial = common_cells(cells)
    if len(cells[CELLS].drop_duplicates()) > len(first[CELLS].drop_duplicates()):
        text += f" Best mean over all cells: {_best(known)}"
        text += f"; {', '.join(partial)} lack some cells and are left out." if partial else "."
    cells57 = {"table": "tab:extended-generalization", "dataset": "all", "statistic": "mean"}
    paper = published("aggregates", **cells57, method=method)["win_rate"]
    said = (
        f" The paper reports {paper.iloc[0]:.1f} % for {method} over 57 cells."
        if len(paper)
        else ""
    )
    return text + said


def _best(cells: pd.DataFrame) -> str:
    """The method with the best mean over cells, for each decoding, and how many cells these are."""
    means = mean_and_worst(cells, CELLS)
    means = means[~means["method"].str.startswith(DPO + " ")]
    best = []
    for decoding, part in means.groupby("decoding", sort=False):
        own = part.set_index("method")["mean"]
        trained = own.drop(SFT, errors="ignore")
        start = f" (SFT: {own[SFT]:.1f} %)" if SFT in own else ""
        best.append(f"{trained.idxmax()} {trained.max():.1f} % {decoding}{start}")
    count = int(means["cells"].iloc[0])
    return f"{' and '.join(best)}, over {count} {'cell' if count == 1 else 'cells'}"


def _methods(table: pd.DataFrame) -> list[str]:
    known = table[table["win_rate"].notna() & (table["method"] != SFT)]
    return list(dict.fromkeys(known["method"]))
