"""What policies earn while they train: the paper's checkpoints on HH-RLHF."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field

from notebooks.studies.checkpoint_measures import evaluate_checkpoints
from notebooks.studies.study import paper_name, trained
from notebooks.studies.win_rate_study import DPO, PLC, ContestConfig
from plc_core.analysis.paper import claim, lines, published
from plc_core.engine.config import ObjectiveName
from plc_core.evaluation.results import bracketed
from plc_core.runs import Run

_WIN, _REWARD = ["win_rate", "low", "high"], ["reward", "reward_low", "reward_high"]
PAPER_SHARE = 0.45
"""The paper compares checkpoints at roughly this share of training."""


class DynamicsConfig(ContestConfig):
    """The parameters of `notebooks/13_training_dynamics.ipynb`."""

    seeds: list[int] = Field([0], min_length=1, max_length=1)
    methods: list[ObjectiveName] = Field(["dpo", "ropo", "plc"], min_length=1)  # objectives
    save_steps: int = Field(12, ge=1)  # optimizer steps between checkpoints
    eval_prompts: int = Field(300, ge=1)

    def variants(self) -> dict[str, dict[str, Any]]:
        """The objectives by their names in the paper, with checkpoints on the way."""
        return {
            paper_name(name): {"objective": name, "save_steps": self.save_steps}
            for name in self.methods
        }


def dynamics_runs(config: DynamicsConfig) -> dict[str, Run]:
    """Runs with checkpoints on the way, by method."""
    return {name: runs[0] for name, runs in trained(config, config.variants()).items()}


def dynamics_table(runs: dict[str, Run], config: DynamicsConfig) -> pd.DataFrame:
    """See `evaluate_checkpoints`."""
    return evaluate_checkpoints(runs, config)


def over_benchmarks(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the mean over benchmarks, or of the only benchmark."""
    return table[table["benchmark"] == table["benchmark"].iloc[0]]


def at_share(table: pd.DataFrame, share: float = PAPER_SHARE) -> pd.DataFrame:
    """Each method at the checkpoint nearest to a share of training, at its best, and at its end; a
    row a benchmark, method and decoding.
    """
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for (benchmark, method, decoding), own in table.groupby(
        ["benchmark", "method", "decoding"], sort=False
    ):
        later = own[own["step"] > 0]
        near = later.iloc[int((later["share"] - share).abs().argmin())]
        best = later.iloc[int(later["reward"].argmax())]
        last = later.iloc[int(later["step"].argmax())]
        start = own[own["step"] == 0].iloc[0]
        rows[(str(benchmark), str(method), str(decoding))] = {
            f"win % against SFT near {share:.0%}": bracketed(near[_WIN]),
            "at the end": bracketed(last[_WIN]),
            "reward of SFT": bracketed(start[_REWARD], 2),
            f"reward near {share:.0%}": bracketed(near[_REWARD], 2),
            "best reward": f"{bracketed(best[_REWARD], 2)} at {best['share']:.0%}",
            f"KL near {share:.0%}, nats": "–" if pd.isna(near["kl"]) else f"{near['kl']:.2f}",
            "n": f"{near['n']:,}",
        }
    frame = pd.DataFrame(list(rows.values()))
    names = ["benchmark", "method", "decoding"]
    return frame.set_axis(pd.MultiIndex.from_tuples(list(rows), names=names))


def at_like_kl(table: pd.DataFrame) -> pd.DataFrame:
    """Each checkpoint's win rate beside what DPO's own path has at the same KL, read off between
    its checkpoints: method, decoding, share, kl, win_rate, dpo (NaN beyond DPO's reach). Of
    checkpoints whose KL is not known there are no rows.

    Args:
        table: of `over_benchmarks`.
    """
    rows = []
    for decoding, part in table[table["kl"].notna()].groupby("decoding", sort=False):
        path = part[part["method"] == DPO].sort_values("kl")
        for line in part[(part["method"] != DPO) & (part["step"] > 0)].to_dict("records"):
            value = math.nan
            if len(path):
                value = np.interp(line["kl"], path["kl"], path["win_rate"], right=math.nan)
            rows.append(
                {"method": line["method"], "decoding": decoding, "share": line["share"]}
                | {"kl": line["kl"], "win_rate": line["win_rate"], "dpo": float(value)}
            )
    return pd.DataFrame(rows, columns=["method", "decoding", "share", "kl", "win_rate", "dpo"])


def like_kl_shown(like: pd.DataFrame) -> pd.DataFrame:
    """`at_like_kl` as text: a row a method and decoding, a column a checkpoint."""
    texts = [
        f"{own:.1f} : {'–' if math.isnan(dpo) else f'{dpo:.1f}'} at {kl:.2f}"
        for own, dpo, kl in zip(like["win_rate"], like["dpo"], like["kl"], strict=True)
    ]
    # As many digits as tell the checkpoints apart.
    known = set(like["share"])
    digits = next(d for d in range(9) if len({f"{s:.{d}%}" for s in known}) == len(known))
    rows = like.assign(text=texts, share=like["share"].map(f"{{:.{digits}%}}".format))
    return rows.pivot_table(
        "text", ["method", "decoding"], "share", aggfunc="first", sort=False
    ).fillna("–")


def published_dynamics() -> pd.DataFrame:
    """What the paper says of its checkpoints on HH-RLHF; it prints no curve's numbers."""
    claims = published("claims", dataset="HH-RLHF")
    numbers = claims.set_index("quantity")[["value", "low", "high"]]
    numbers = numbers.set_axis(["value", "from", "to"], axis=1)  # a range of methods, no interval
    return numbers.map(lambda value: "–" if pd.isna(value) else f"{value:g}")


def dynamics_sentence(table: pd.DataFrame) -> str:
    """Who is ahead near the paper's share of training, and whether anybody falls below SFT."""
    parts = []
    for decoding, part in table.groupby("decoding", sort=False):
        later = part[part["step"] > 0]
        far = (later["share"] - PAPER_SHARE).abs()
        near = later[far == far.min()].sort_values("win_rate", ascending=False)
        said = ", ".join(
            f"{name} {rate:.1f} %"
            for name, rate in zip(near["method"], near["win_rate"], strict=True)
        )
        ends = later.loc[later.groupby("method")["step"].idxmax()]
        below = list(ends[ends["high"] < 50]["method"].map(str))
        end = "end" if len(below) > 1 else "ends"
        falls = f"{', '.join(below) or 'no method'} {end} below SFT"
        share = f"{near['share'].iloc[0]:.0%} of training"
        parts.append(
            f"in {decoding} decoding, win rates against SFT at {share} are {said}, and {falls}"
        )
    own = claim("in-domain win rate of PLC-DPO at that checkpoint")
    others = lines("claims", quantity="in-domain win rate of the baselines at that checkpoint")[0]
    text = "; ".join(parts)
    return (
        f"{text[0].upper()}{text[1:]}. On HH-RLHF, at that share, the paper reports {own:.1f} % "
        f"for {PLC} and {others.low:.1f} to {others.high:.1f} % for the baselines."
    )
