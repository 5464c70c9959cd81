"""PLC-DPO over its hyperparameters, one at a time, and over the paper's three recipes."""

from __future__ import annotations

from typing import Any, Literal

import pandas as pd
from pydantic import Field

from notebooks.studies.study import paper_name
from notebooks.studies.win_rate_study import PLC, ContestConfig, entries_of, results_of
from plc_core.analysis.paper import claim, published
from plc_core.evaluation.comparison import Evaluation
from plc_core.evaluation.methods import Contestant
from plc_core.evaluation.results import bounds, control_text, interval

BESIDE = ("rdpo-length", "dr-dpo")
"""The baselines that the paper's radar of recipes has beside DPO."""
RECIPES = ("conservative", "balanced", "aggressive")
Hyperparameter = Literal["tau_dir", "tau_tie", "kappa", "gamma_max", "rho_warm", "alpha"]
_OPTION = {"rho_warm": "warmup"}  # the objective's name of the paper's symbol


class SensitivityConfig(ContestConfig):
    """The parameters of `notebooks/10_sensitivity.ipynb`."""

    hyperparameters: list[Hyperparameter] = Field(default_factory=list)  # to sweep; none: all six
    points: Literal["ends", "all"] = "ends"  # of the paper's grids: both ends, or all four values

    def compared(self) -> dict[str, dict[str, Any]]:
        """The default, `BESIDE`, both other recipes and every point of the sweeps."""
        variants: dict[str, dict[str, Any]] = {PLC: {"objective": "plc"}}
        variants |= {paper_name(name): {"objective": name} for name in BESIDE}
        for recipe in RECIPES[:2]:
            variants[f"{PLC} {recipe}"] = {"objective": "plc", "recipe": recipe}
        for name, value in grid(self):
            option = {_OPTION.get(name, name): value}
            variants[label(name, value)] = {"objective": "plc", "objective_options": option}
        return variants


def grid(config: SensitivityConfig) -> list[tuple[str, float]]:
    """The paper's sweep: hyperparameter and value, the default left out as it is another run."""
    table = published("sweeps")
    pairs = []
    for name, part in table.groupby("hyperparameter", sort=False):
        if config.hyperparameters and name not in config.hyperparameters:
            continue
        values = sorted(part["value"])
        chosen = [values[0], values[-1]] if config.points == "ends" else values
        pairs += [(str(name), float(value)) for value in chosen]
    return pairs


def default(hyperparameter: str) -> float:
    """The aggressive recipe's value of a hyperparameter, which the paper's default is."""
    rows = published("recipes", recipe="aggressive", hyperparameter=hyperparameter)
    return float(rows["value"].iloc[0])


def label(hyperparameter: str, value: float) -> str:
    """The name of the run with this value in tables and figures."""
    return f"{hyperparameter} {value:g}"


def sensitivity_entries(config: SensitivityConfig) -> list[Contestant]:
    """The default, both other recipes and every point of the sweeps, on the same pairs."""
    return entries_of(config, config.compared())


def sweep_rows(table: pd.DataFrame, config: SensitivityConfig) -> pd.DataFrame:
    """Results by hyperparameter and value, the default among each hyperparameter's values.

    Args:
        table: of `means_of`.
        config: of the study.
    """
    places = [(name, value, label(name, value), False) for name, value in grid(config)]
    names = list(dict.fromkeys(name for name, _ in grid(config)))
    places += [(name, default(name), PLC, True) for name in names]
    known = pd.DataFrame(places, columns=["hyperparameter", "value", "method", "default"])
    rows = known.merge(table, on="method")
    order = {name: place for place, name in enumerate(names)}
    return rows.sort_values(
        ["hyperparameter", "value"],
        key=lambda column: column.map(order) if column.name == "hyperparameter" else column,
    )


def sweep_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a point: win rates against DPO and at the nearest KL, the KL, the paper's number."""
    known = published("sweeps")
    paper = {
        (name, value): rate
        for name, value, rate in zip(
            known["hyperparameter"], known["value"], known["win_rate"], strict=True
        )
    }
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for (name, value, is_default), own in rows.groupby(
        ["hyperparameter", "value", "default"], sort=False
    ):
        line = lines.setdefault((str(name), f"{value:g}{' (default)' if is_default else ''}"), {})
        for decoding, part in own.groupby("decoding", sort=False):
            line[f"{decoding}, against DPO"] = interval(part, "win_rate", "low", "high")
            line[f"{decoding}, at the nearest KL"] = interval(part, "over", "over_low", "over_high")
        one = own.drop_duplicates("seed")
        line["KL, nats"] = interval(one, "kl", "kl_low", "kl_high", 2)
        line["control (KL)"] = control_text(own) or "–"
        line["n"] = f"{own['n'].iloc[0]:,}"
        rate = paper.get((str(name), float(str(value))))
        line["paper, mean of 3"] = "–" if rate is None else f"{rate:.1f}"
    frame = pd.DataFrame(list(lines.values()))
    return frame.set_axis(pd.MultiIndex.from_tuples(list(lines), names=["hyperparameter", "value"]))


def recipe_rows(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of the three recipes and of `BESIDE`, of any table of results."""
    names = {f"{PLC} {recipe}": recipe for recipe in RECIPES[:2]} | {PLC: RECIPES[2]}
    names |= {paper_name(name): paper_name(name) for name in BESIDE}
    rows = cells[cells["method"].isin(names)]
    return rows.assign(method=rows["method"].map(names), panel="")


def recipe_axes(evaluation: Evaluation, config: SensitivityConfig) -> pd.DataFrame:
    """`recipe_rows` for the radar: a row a benchmark, or a category where fewer than three
    benchmarks make no radar.
    """
    few = len(config.benchmarks) < 3
    return recipe_rows(results_of(evaluation.by_category() if few else evaluation, config))


def ranges(rows: pd.DataFrame) -> pd.DataFrame:
    """How far win rates spread over each hyperparameter, here and in the paper."""
    paper = published("sweeps").drop_duplicates("hyperparameter").set_index("hyperparameter")
    lines: dict[str, dict[str, str]] = {}
    for (name, decoding), part in rows.groupby(["hyperparameter", "decoding"], sort=False):
        means = part.groupby("value")["win_rate"].mean()
        line = lines.setdefault(str(name), {})
        line[str(decoding)] = f"{means.min():.1f} to {means.max():.1f} ({len(means)} values)"
    for name, line in lines.items():
        low, high = paper.loc[name, ["range_low", "range_high"]]
        line["paper, greedy"] = f"{low:.1f} to {high:.1f} (4 values)"
    frame = pd.DataFrame.from_dict(lines, orient="index")
    frame.index.name = "hyperparameter"
    return frame


def sensitivity_sentence(rows: pd.DataFrame) -> str:
    """Which hyperparameter moves the win rate most, and how many points win at all."""
    parts = []
    for decoding, part in rows.groupby("decoding", sort=False):
        means = part.groupby(["hyperparameter", "value"], sort=False)["win_rate"].mean()
        spread = means.groupby(level=0, sort=False).agg(lambda rates: rates.max() - rates.min())
        points = part[~part["default"]].groupby(["hyperparameter", "value"], sort=False)
        above = sum(bounds(own).low > 50 for _, own in points)
        count = points.ngroups
        parts.append(
            f"in {decoding} decoding {spread.idxmax()} moves the win rate most (by "
            f"{spread.max():.1f} points) and {above} of {count} settings clearly beat DPO (their "
            "interval lies above 50 %)"
        )
    mean = claim("mean win rate of the sweeps")
    low, high = published("sweeps")["win_rate"].agg(["min", "max"])
    text = "; ".join(parts)
    return (
        f"{text[0].upper()}{text[1:]}. In the paper all 24 settings beat DPO, with {low:.1f} to "
        f"{high:.1f} % and a mean of {mean:.1f} %."
    )
