"""What an evaluation found: every win rate beside the KL and beside the DPO that moved as far.

`results` gives one long table of numbers; the other functions shape it for a reader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from plc_core.analysis.statistics import MeanInterval, mean_interval
from plc_core.evaluation.cells import mean_over_benchmarks, over_cells, over_seeds
from plc_core.evaluation.judged import CELL, SFT, Evaluation
from plc_core.evaluation.kl_matching import TOLERANCE
from plc_core.evaluation.win_rate import JoinError, verdicts

_GROUP = ["dataset", "model", "seed"]
_BOUNDS = ("win_rate", "low", "high")


def results(
    evaluation: Evaluation, controls: Sequence[str] = (), keys: Sequence[str] = CELL
) -> pd.DataFrame:
    """One row a cell, method and seed, the baseline and SFT among them; percent and nats.

    Args:
        evaluation: judged answers.
        controls: methods that are the baseline at other β: beside every method stands the one of
            them, or the baseline, whose KL is nearest to its own.
        keys: `CELL`; or `MEAN`, for means over benchmarks, each weighing alike.

    Returns:
        `keys`, method, seed, n; win_rate, low, high against the baseline; sft, sft_low, sft_high
        against SFT; reward, reward_low, reward_high; kl, kl_low, kl_high; control (its method),
        control_kl, and over, over_low, over_high: the win rate against the control. NaN where a
        comparison would be with itself, or there is nothing to compare. Of cells also p_sign,
        wins, ties, losses and note; of means also benchmarks (how many).

    Raises:
        JoinError: where two sides do not answer the same prompts.
    """
    side = [*keys, "method", "seed"]
    cells = "benchmark" in keys
    rates = evaluation.cells if cells else evaluation.means
    more = ["p_sign", "wins", "ties", "losses", "note"] if cells else []
    table = evaluation.rewards(keys).rename(columns={"low": "reward_low", "high": "reward_high"})
    table = table.merge(rates()[[*side, *_BOUNDS, *more]], on=side, how="left")
    if cells:
        table["note"] = table["note"].fillna("")
    else:
        several = evaluation.judged.groupby(side, sort=False)["benchmark"].nunique()
        table = table.merge(several.rename("benchmarks").reset_index(), on=side)
    if SFT in evaluation.methods:
        table = table.merge(_renamed(rates(SFT)[[*side, *_BOUNDS]], "sft"), on=side, how="left")
    kl = evaluation.kl().drop(columns="n")
    table = table.merge(kl, on=["dataset", "model", "method", "seed"], how="left")
    chosen = nearest_controls(kl, [evaluation.baseline, *controls])
    table = table.merge(chosen, on=[*_GROUP, "method"], how="left")
    return table.merge(_against_controls(evaluation, chosen, side), on=side, how="left")


def nearest_controls(kl: pd.DataFrame, controls: Sequence[str]) -> pd.DataFrame:
    """For each method the control whose KL is nearest by ratio: `_GROUP`, method, control,
    control_kl. The controls themselves have none.
    """
    rows = []
    for group, part in kl.groupby(_GROUP, sort=False):
        known = part[part["method"].isin(controls) & (part["kl"] > 0)]
        for line in part[~part["method"].isin(controls)].to_dict("records"):
            if line["kl"] <= 0 or known.empty:
                continue
            far = (known["kl"] / line["kl"]).map(lambda ratio: abs(math.log(ratio)))
            nearest = known.loc[far.idxmin()]
            rows.append(
                dict(zip(_GROUP, group, strict=True))
                | {"method": line["method"], "control": nearest["method"]}
                | {"control_kl": nearest["kl"]}
            )
    return pd.DataFrame(rows, columns=[*_GROUP, "method", "control", "control_kl"])


def _against_controls(
    evaluation: Evaluation, chosen: pd.DataFrame, side: Sequence[str]
) -> pd.DataFrame:
    names = [*CELL, "method", "seed"]
    rewards: dict[tuple[Any, ...], pd.Series] = {
        key: part.set_index("prompt_id")["reward"]
        for key, part in evaluation.judged.groupby(names, sort=False)
    }
    control = {
        (line["dataset"], line["model"], line["seed"], line["method"]): line["control"]
        for line in chosen.to_dict("records")
    }
    wins: dict[tuple[Any, ...], dict[str, pd.Series]] = {}
    for key, own in rewards.items():
        line = dict(zip(names, key, strict=True))
        other = control.get((line["dataset"], line["model"], line["seed"], line["method"]))
        if other is None:
            continue
        against = rewards[tuple((line | {"method": other}).values())]
        of = wins.setdefault(tuple(line[name] for name in side), {})
        of[line["benchmark"]] = verdicts(own, against, evaluation.incomplete)
    rows = []
    for row, of in wins.items():
        share = mean_over_benchmarks(of)
        numbers = {"over": share.mean, "over_low": share.low, "over_high": share.high}
        rows.append(dict(zip(side, row, strict=True)) | {k: 100 * v for k, v in numbers.items()})
    return pd.DataFrame(rows, columns=[*side, "over", "over_low", "over_high"])


def _renamed(table: pd.DataFrame, name: str) -> pd.DataFrame:
    return table.rename(columns={"win_rate": name, "low": f"{name}_low", "high": f"{name}_high"})


# ---- for a reader --------------------------------------------------------------------------------


def shown(table: pd.DataFrame, baseline: str = "DPO") -> pd.DataFrame:
    """Results as text: a row a method (and whatever else differs), both decodings side by side.

    Intervals are 95 %, over prompts; over several seeds, mean ± standard deviation. Means over
    benchmarks say over how many.
    """
    parts = [k for k in ("dataset", "model", "benchmark", "judge") if k in table]
    keys = [k for k in parts if len(set(table[k])) > 1]
    keys.append("method")
    rows: dict[tuple[Any, ...], dict[str, str]] = {}
    for key, own in table.groupby(keys, sort=False):
        row = rows.setdefault(key if isinstance(key, tuple) else (key,), {})
        for decoding, part in own.groupby("decoding", sort=False):
            row[f"win % against {baseline}, {decoding}"] = interval(part, "win_rate", "low", "high")
            if "sft" in part:
                text = interval(part, "sft", "sft_low", "sft_high")
                row[f"win % against SFT, {decoding}"] = text
            text = interval(part, "over", "over_low", "over_high")
            row[f"win % at the nearest KL, {decoding}"] = text
        one = own.drop_duplicates("seed")
        row["KL, nats"] = interval(one, "kl", "kl_low", "kl_high", digits=2)
        row["its control (KL)"] = control_text(own)
        counts = sorted(set(own["n"]))
        row["prompts"] = ", ".join(map(str, counts))
        if "benchmarks" in own and (table["benchmarks"] > 1).any():
            row["mean of benchmarks"] = ", ".join(map(str, sorted(set(own["benchmarks"]))))
        if (seeds := len(set(own["seed"]))) > 1:
            row["seeds"] = str(seeds)
    index = pd.MultiIndex.from_tuples(list(rows), names=keys)
    frame = pd.DataFrame(list(rows.values()), index=index)
    order = [name for start in ("win % against " + baseline, "win % at", "win % against SFT")
             for name in map(str, frame) if name.startswith(start)]  # fmt: skip
    frame = frame[[*order, *(name for name in frame if name not in order)]].replace("", "–")
    return frame if len(keys) > 1 else frame.set_axis(frame.index.get_level_values(0))


def control_text(own: pd.DataFrame) -> str:
    """The controls of a method's seeds with their KL, and whether it is far from the method's."""
    lines = own[own["control"].notna()].drop_duplicates("seed")
    texts = []
    for name, part in lines.groupby("control", sort=False):
        far = (part["control_kl"] - part["kl"]).abs() > TOLERANCE * part["kl"]
        kls = ", ".join(f"{kl:.2f}" for kl in part["control_kl"])
        texts.append(f"{name} ({kls}{', not matched' if far.any() else ''})")
    return "; ".join(texts)


def interval(part: pd.DataFrame, value: str, low: str, high: str, digits: int = 1) -> str:
    """The number of one row with its interval; the mean of several benchmarks, which has none; of
    several seeds their mean and standard deviation.
    """
    known = part[part[value].notna()]
    if known.empty:
        return "–"
    if len(known) == 1:
        line = known.iloc[0]
        return f"{line[value]:.{digits}f} [{line[low]:.{digits}f}, {line[high]:.{digits}f}]"
    seeds = known.groupby("seed", sort=False)[value].mean()
    if len(seeds) == 1:
        return f"{seeds.iloc[0]:.{digits}f} (mean of {len(known)})"
    return f"{seeds.mean():.{digits}f} ± {seeds.std(ddof=1):.{digits}f}"


def mean_and_worst(
    table: pd.DataFrame, keys: Sequence[str] = ("dataset", "benchmark")
) -> pd.DataFrame:
    """Mean and worst of each method's cells: decoding, method, cells, mean, worst, worst_cell.

    A cell of several seeds is their mean.

    Raises:
        JoinError: where methods do not have the same cells.
    """
    known = table[table["win_rate"].notna()]
    if known.empty:
        raise JoinError("There are no win rates to average.")
    if len(set(known["seed"])) > 1:
        known = over_seeds(known, [*keys, "decoding"])
    return over_cells(known, keys, by=["decoding"])


def finding(table: pd.DataFrame, method: str, baseline: str = "DPO") -> str:
    """One sentence on what a method wins, what the KL explains of it, and what is left."""
    own = table[table["method"] == method]
    parts, left = [], []
    for decoding, part in own.groupby("decoding", sort=False):
        parts.append(f"{interval(part, 'win_rate', 'low', 'high')} % {decoding}")
        if part["over"].notna().any():
            text = f"{interval(part, 'over', 'over_low', 'over_high')} % {decoding}"
            left.append(f"{text} ({difference(part)})")
    one = own.drop_duplicates("seed")
    others = table[table["method"] == baseline].drop_duplicates("seed")
    text = f"{method} wins {' and '.join(parts)} against {baseline} on the same data"
    if one["kl"].isna().all():
        return f"{text}; how far it moved is not known, as it was not sampled."
    text += (
        f", having moved {one['kl'].mean():.2f} nats a response where {baseline} moved "
        f"{others['kl'].mean():.2f}"
    )
    if not left:
        return f"{text}; no control of like KL was asked for."
    names = " and ".join(dict.fromkeys(one["control"].dropna()))
    return (
        f"{text}; against the nearest control ({names}, {one['control_kl'].mean():.2f} nats"
        f"{', not matched' if 'not matched' in control_text(one) else ''}) it wins "
        f"{' and '.join(left)}."
    )


def difference(part: pd.DataFrame) -> str:
    """What an interval of `over`, or the spread of several seeds', says of 50 %."""
    found = bounds(part, "over", "over_low", "over_high")
    if found.low > 50:
        return "it wins more"
    return "it wins less" if found.high < 50 else "no difference shown"


def bounds(
    part: pd.DataFrame, value: str = "win_rate", low: str = "low", high: str = "high"
) -> MeanInterval:
    """One row's number with its interval over prompts; of several seeds, a row each, their mean
    with Student's interval over seeds.
    """
    if len(part) == 1:
        line = part.iloc[0]
        return MeanInterval(line[value], line[low], line[high], 1)
    if part["seed"].duplicated().any():
        raise JoinError(f"A seed has several rows; average its benchmarks first: {len(part)} rows.")
    return mean_interval(part[value])


def best_of(table: pd.DataFrame, value: str = "win_rate") -> Mapping[str, str]:
    """The method with the largest mean of `value` for each decoding."""
    known = table[table[value].notna()]
    means = known.pivot_table(value, "method", "decoding", sort=False)
    return {str(decoding): str(means[decoding].idxmax()) for decoding in means}
