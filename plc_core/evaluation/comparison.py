"""One comparison: judged answers of several policies, and every win rate that follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from plc_core.evaluation.sides import (
    LENGTHS,
    Side,
    Where,
    averaged,
    naming,
    sides_against,
    sides_beside,
    table_of,
    wins_of,
)
from plc_core.evaluation.win_rate import Incomplete, join_prompts

_VERDICTS = ("verdicts", "prompts")  # what is joined, as errors call it

SFT = "SFT"
"""The method that training starts from: the reference's own answers."""
GROUP = ("dataset", "model", "seed")
"""What methods must share to be compared: their pairs, their start and their seed."""
CELL = ("dataset", "model", "benchmark", "judge", "decoding")
"""What makes a cell of win rates, beside method and seed."""
MEAN = tuple(key for key in CELL if key != "benchmark")
"""What makes a mean over the cells of several benchmarks."""


@dataclass(frozen=True)
class Evaluation:
    """Judged answers of several policies.

    Attributes:
        judged: one row an answer, or a prompt's turns averaged: `CELL`, method, seed, run,
            prompt_id, category, turns, characters (of the answers to all turns), reward (NaN where
            the judge gave none).
        log_ratios: log(pi/pi_ref) of sampled answers, a row a prompt: dataset, model, seed,
            benchmark, method, prompt_id, log_ratio. No rows for servers.
        versus: verdicts of pairwise judges beside the baseline's answers, a row a prompt and turn,
            with the characters and baseline_characters of both; empty where no such judge was
            asked.
        baseline: the method that win rates are against unless told otherwise.
        sizes: prompts of each benchmark.
        incomplete: as in `win_rate`.
    """

    judged: pd.DataFrame
    log_ratios: pd.DataFrame
    versus: pd.DataFrame
    baseline: str
    sizes: Mapping[str, int]
    incomplete: Incomplete = "error"

    @property
    def methods(self) -> list[str]:
        """Those that were judged, in their order."""
        return list(dict.fromkeys(self.judged["method"]))

    def sides(self, baseline: str | None = None, baseline_seed: int | None = None) -> list[Side]:
        """Every method beside the baseline; see `sides_against`."""
        against = baseline or self.baseline
        return sides_against(self.judged, against, CELL, self.incomplete, baseline_seed)

    def verdict_sides(self) -> list[Side]:
        """Every method beside the baseline by the pairwise judges, each turn by itself."""
        found = []
        names = [*CELL, "method", "seed"]
        for key, own in self.versus.groupby(names, sort=False) if len(self.versus) else ():
            where = dict(zip(names, key, strict=True))
            turns = own.set_index(own["prompt_id"] + "/" + own["turn"].astype(str))
            with naming(where):
                won, _, join = join_prompts(
                    turns["win"], pd.Series(0.0, turns.index), self.incomplete, _VERDICTS
                )
            columns = [name for name in LENGTHS if name in turns]
            found.append(Side(where, turns.loc[won.index, ["win", *columns]], join))
        return found

    def cells(self, baseline: str | None = None, baseline_seed: int | None = None) -> pd.DataFrame:
        """Win rates of every method, one row a cell, method and seed; see `win_rate_cells`.

        Raises:
            JoinError: where two sides do not answer the same prompts.
        """
        cells = table_of(self.sides(baseline, baseline_seed), baseline or self.baseline)
        missing = [
            f"over {n} of {self.sizes[name]} prompts" if n != self.sizes[name] else ""
            for n, name in zip(cells["n"], cells["benchmark"], strict=True)
        ]
        notes = ["; ".join(filter(None, both)) for both in zip(cells["note"], missing, strict=True)]
        return cells.assign(note=notes)

    def verdict_cells(self) -> pd.DataFrame:
        """Win rates by the pairwise judges: as `cells`, without tests that need sizes; empty where
        no such judge was asked.
        """
        found = self.verdict_sides()
        table = table_of(found, self.baseline) if found else pd.DataFrame(columns=["p_wilcoxon"])
        return table.drop(columns="p_wilcoxon")

    def means(self, baseline: str | None = None, baseline_seed: int | None = None) -> pd.DataFrame:
        """Means over benchmarks, each weighing alike: `MEAN`, method, seed, benchmarks (how many),
        n (prompts of all), win_rate, low, high (percent; 95 % bootstrap within benchmarks).
        """
        wins = wins_of(self.sides(baseline, baseline_seed))
        return averaged(wins, [*MEAN, "method", "seed"], "win_rate", 100)

    def rewards(self, keys: Sequence[str] = CELL) -> pd.DataFrame:
        """Mean rewards, 95 % intervals over prompts: `keys`, method, seed, reward, low, high, n.

        With the keys `MEAN` they are means over benchmarks, each weighing alike.
        """
        side = [*keys, "method", "seed"]
        table = averaged(
            _by_prompt(self.judged, [*CELL, "method", "seed"], "reward"), side, "reward"
        )
        return table[[*side, "reward", "low", "high", "n"]]

    def kl(self, keys: Sequence[str] = ("dataset", "model")) -> pd.DataFrame:
        """KL to the start, nats per response: `keys`, method, seed, kl, kl_low, kl_high, n.

        The mean over the policy's benchmarks, each weighing alike, or with the key benchmark one
        each; 95 % bootstrap intervals over prompts.
        """
        side = [*keys, "method", "seed"]
        names = ["dataset", "model", "method", "seed", "benchmark"]
        table = averaged(_by_prompt(self.log_ratios, names, "log_ratio"), side, "kl")
        table = table.rename(columns={"low": "kl_low", "high": "kl_high"})
        return table[[*side, "kl", "kl_low", "kl_high", "n"]]

    def by_category(self) -> Evaluation:
        """The same answers with every category of a benchmark as a benchmark of its own, named
        "benchmark: category": the same category of two benchmarks stays two.

        The KL stays that of all prompts. A benchmark without categories stays whole.
        """
        whole, category = self.judged["benchmark"], self.judged["category"]
        judged = self.judged.assign(benchmark=whole.where(category == "", whole + ": " + category))
        counts = judged.groupby("benchmark")["prompt_id"].nunique()
        sizes = {str(name): int(count) for name, count in counts.items()}
        return replace(self, judged=judged, versus=pd.DataFrame(), sizes=sizes)

    def results(self, controls: Sequence[str] = (), keys: Sequence[str] = CELL) -> pd.DataFrame:
        """One row a cell, method and seed, the baseline and SFT among them; percent and nats.

        Args:
            controls: methods that are the baseline at other β: beside every method stands the one
                of them, or the baseline, whose KL is nearest to its own.
            keys: `CELL`; or `MEAN`, for means over benchmarks, each weighing alike.

        Returns:
            `keys`, method, seed, n; win_rate, low, high against the baseline; sft, sft_low,
            sft_high against SFT; reward, reward_low, reward_high; kl, kl_low, kl_high; control (its
            method), control_kl, and over, over_low, over_high: the win rate against the control.
            NaN where a comparison would be with itself, or there is nothing to compare. Of cells
            also p_sign, wins, ties, losses and note; of means also benchmarks (how many).

        Raises:
            JoinError: where two sides do not answer the same prompts.
        """
        side = [*keys, "method", "seed"]
        cells = "benchmark" in keys
        rates = self.cells if cells else self.means
        bounds = ["win_rate", "low", "high"]
        more = ["p_sign", "wins", "ties", "losses", "note"] if cells else []
        table = self.rewards(keys).rename(columns={"low": "reward_low", "high": "reward_high"})
        table = table.merge(rates()[[*side, *bounds, *more]], on=side, how="left")
        if cells:
            table["note"] = table["note"].fillna("")
        else:
            several = self.judged.groupby(side, sort=False)["benchmark"].nunique()
            table = table.merge(several.rename("benchmarks").reset_index(), on=side)
        if SFT in self.methods:
            named = dict(zip(bounds, ["sft", "sft_low", "sft_high"], strict=True))
            table = table.merge(rates(SFT)[[*side, *bounds]].rename(columns=named), "left", side)
        kl = self.kl().drop(columns="n")
        table = table.merge(kl, on=["dataset", "model", "method", "seed"], how="left")
        chosen = nearest_controls(kl, [self.baseline, *controls])
        table = table.merge(chosen, on=[*GROUP, "method"], how="left")
        rivals = chosen.set_index([*GROUP, "method"])["control"].to_dict()

        def control(where: Where) -> Where | None:
            rival = rivals.get(tuple(where[key] for key in (*GROUP, "method")))
            return None if rival is None else where | {"method": rival}

        beside = sides_beside(self.judged, control, CELL, self.incomplete)
        over = averaged(wins_of(beside), side, "over", 100)
        over = over.rename(columns={"low": "over_low", "high": "over_high"})
        return table.merge(over.drop(columns=["benchmarks", "n"]), on=side, how="left")


def nearest_controls(kl: pd.DataFrame, controls: Sequence[str]) -> pd.DataFrame:
    """For each method the control whose KL is nearest by ratio: `GROUP`, method, control,
    control_kl. The controls themselves have none.
    """
    rows = []
    for group, part in kl.groupby([*GROUP], sort=False):
        known = part[part["method"].isin(controls) & (part["kl"] > 0)]
        for line in part[~part["method"].isin(controls)].to_dict("records"):
            if line["kl"] <= 0 or known.empty:
                continue
            far = (known["kl"] / line["kl"]).map(lambda ratio: abs(math.log(ratio)))
            nearest = known.loc[far.idxmin()]
            rows.append([*group, line["method"], nearest["method"], nearest["kl"]])
    return pd.DataFrame(rows, columns=[*GROUP, "method", "control", "control_kl"])


def _by_prompt(
    rows: pd.DataFrame, names: Sequence[str], value: str
) -> list[tuple[Where, pd.Series]]:
    return [
        (dict(zip(names, key, strict=True)), own.set_index("prompt_id")[value])
        for key, own in rows.groupby([*names], sort=False)
    ]
