"""Does the routing only confirm what the policy believes already?

Appendix "Self-Confirmation Controls": ranking of injected flips, agreement with an independent
reward, a longer plain-DPO warm-up, and when in training the correction acts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from plc_core.analysis.paper import claim
from plc_core.analysis.routing.pooling import between, number, pooled_visits
from plc_core.analysis.statistics import (
    Auroc,
    Spearman,
    auroc,
    format_p,
    mean_interval,
    read_aloud,
    spearman,
    wilson,
)
from plc_core.runs import Run

EARLY = 0.2
"""The paper's first phase: this share of training."""

IN_TRAINING, HELD_OUT = "training, at each visit", "held out, zero-shot"
"""Which pairs a reading is of."""

_DECILES = 10


def flip_detection(
    runs: Mapping[str, Sequence[Run]], held_out: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """How injected flips are ranked: in training ("cumulative"), and of pairs never trained on.

    Args:
        runs: by method, one run a training seed on the same corrupted pairs; seeds are pooled.
        held_out: by method, the scores of held-out pairs of which some are flipped.

    Returns:
        One row a method, set of pairs (`IN_TRAINING` or `HELD_OUT`) and score (q_flip, and the
        margin alone as -z): auroc, low, high (DeLong), and for q_flip the mean on flipped and on
        other pairs; n_flipped, n_others (visits in training, else pairs). Injected ties are left
        out. Each visit is read before its own update, so in one epoch no pair was trained on yet.
    """
    rows = []
    for method, own in runs.items():
        seen = {IN_TRAINING: pooled_visits(own), HELD_OUT: held_out[method]}
        for pairs, visits in seen.items():
            visits = visits[~visits["injected_tie"].astype(bool)]
            flipped = visits["flipped"].astype(bool)
            for score, values in (("q_flip", visits["q_flip"]), ("-z", -visits["z"])):
                area = auroc(values, flipped)
                means = score == "q_flip"
                rows.append(
                    {
                        "method": method,
                        "pairs": pairs,
                        "score": score,
                        "auroc": area.value,
                        "low": area.low,
                        "high": area.high,
                        "flipped": values[flipped].mean() if means else math.nan,
                        "others": values[~flipped].mean() if means else math.nan,
                        "n_flipped": area.n_positive,
                        "n_others": area.n_negative,
                    }
                )
    return pd.DataFrame(rows)


def flip_detection_shown(table: pd.DataFrame) -> pd.DataFrame:
    """`flip_detection` as text with the paper's numbers at 20 % below."""
    rows = [
        {
            "method": row["method"],
            "pairs": row["pairs"],
            "score": row["score"],
            "flip AUROC": between(row["auroc"], row["low"], row["high"]),
            "mean on flipped": number(row["flipped"]),
            "mean on others": number(row["others"]),
            "n flipped, others": f"{row['n_flipped']:,}, {row['n_others']:,}",
        }
        for row in table.to_dict("records")
    ]
    mean = "mean q_flip of {} pairs at 20 % noise"
    paper = {
        "7 % warm-up": (
            claim("flip AUROC at 20 % noise"),
            claim("mean q_flip of injected flips at 20 % noise"),
            claim(mean.format("unmarked")),
        ),
        "30 % warm-up": (claim("flip AUROC at 20 % noise with 30 % warm-up"), math.nan, math.nan),
    }
    for setting, (area, flipped, others) in paper.items():
        rows.append(
            {
                "method": f"paper, PLC-DPO, {setting}",
                "pairs": "training, cumulative",
                "score": "q_flip",
                "flip AUROC": number(area),
                "mean on flipped": number(flipped),
                "mean on others": number(others),
                "n flipped, others": "–",
            }
        )
    return pd.DataFrame(rows).set_index(["method", "pairs", "score"])


class Disagreement:
    """How q_flip meets an independent reward that may disagree with the label.

    Attributes:
        share, low, high: of pairs where the reward prefers the rejected answer, with Wilson's
            interval; pairs to which it gives equal rewards are left out and counted as `level`.
        area: of q_flip for disagreement.
        rank: Spearman of q_flip and the strength of disagreement, reward of rejected minus chosen.
        n, missing: pairs, and those without a weight or a reward.
        curve: by tenths of q_flip: q_flip (mean), share, low, high, n.
    """

    def __init__(self, q_flip: pd.Series, reward_chosen: pd.Series, reward_rejected: pd.Series):
        """Three series over the same pairs."""
        strength = (reward_rejected - reward_chosen).astype("float64")
        known = q_flip.notna() & strength.notna()
        self.missing = int((~known).sum())
        strength, q = strength[known], q_flip[known].astype("float64")
        self.level = int((strength == 0).sum())
        decided = strength != 0
        disagrees = strength[decided] > 0
        self.n = int(decided.sum())
        count = int(disagrees.sum())
        self.share = count / self.n if self.n else math.nan
        self.low, self.high = wilson(count, self.n)
        self.area: Auroc = auroc(q[decided], disagrees)
        self.rank: Spearman = spearman(q, strength)
        self.curve = _curve(q[decided], disagrees)

    def sentence(self, policy: str, reward: str) -> str:
        """What was found, aloud."""
        if not self.n:
            return f"{policy}: no pair has both a routing weight and a {reward} that differs (n=0)."
        return (
            f"{policy}: the {reward} disagrees with the label of {100 * self.share:.1f} % "
            f"[{100 * self.low:.1f}, {100 * self.high:.1f}] of {self.n:,} pairs, and q_flip ranks "
            f"these with AUROC {between(self.area.value, self.area.low, self.area.high)}. "
            f"{read_aloud(self.rank, 'q_flip', second='the strength of disagreement')}"
        )


def _curve(q: pd.Series, disagrees: pd.Series) -> pd.DataFrame:
    rows = []
    # By rank, so that equal weights of many pairs do not make empty tenths.
    order = np.argsort(q.to_numpy(), kind="stable")
    for part in np.array_split(order, _DECILES):
        hits = int(disagrees.iloc[part].sum())
        low, high = wilson(hits, len(part))
        share = hits / len(part) if len(part) else math.nan
        mean = float(q.iloc[part].mean()) if len(part) else math.nan
        rows.append({"q_flip": mean, "share": share, "low": low, "high": high, "n": len(part)})
    return pd.DataFrame(rows)


def disagreement_shown(found: Mapping[str, Disagreement]) -> pd.DataFrame:
    """AUROC, share and Spearman of each policy, with the paper's row below."""
    rows = [
        {
            "policy": policy,
            "AUROC of q_flip": between(d.area.value, d.area.low, d.area.high),
            "reward disagrees, %": between(100 * d.share, 100 * d.low, 100 * d.high, 1),
            "Spearman": between(d.rank.rho, d.rank.low, d.rank.high),
            "p": format_p(d.rank.p, d.rank.log10_p).removeprefix("p = "),
            "n": f"{d.n:,}" + (f", {d.level:,} level" if d.level else ""),
        }
        for policy, d in found.items()
    ]
    area = "AUROC of q_flip for disagreement with a reward model"
    rows.append(
        {
            "policy": "paper, Skywork reward on UltraFeedback",
            "AUROC of q_flip": f"{claim(area):.3f} [0.766, 0.791]",
            "reward disagrees, %": number(
                100 * claim("share of pairs where the reward model disagrees"), 1
            ),
            "Spearman": number(claim("Spearman of q_flip and the strength of disagreement")),
            "p": "–",
            "n": f"{claim('held-out clean pairs'):,.0f}",
        }
    )
    return pd.DataFrame(rows).set_index("policy")


def correction_by_phase(runs: Mapping[str, Sequence[Run]], phases: int = 5) -> pd.DataFrame:
    """When in training the correction acts: its weight w by equal phases of the optimizer steps.

    Returns:
        One row a method and phase: phase (from 0), from, to (shares of training), share (of the
        whole correction weight), mean, low, high (of w, Student's), n (visits). A method without
        any weight has NaN shares.
    """
    rows = []
    for method, own in runs.items():
        visits = pooled_visits(own)
        place = (visits["step"] * phases // visits["total_steps"]).clip(upper=phases - 1)
        total = float(visits["weight"].sum())
        for phase in range(phases):
            inside = visits.loc[place == phase, "weight"]
            mean = mean_interval(inside)
            rows.append(
                {
                    "method": method,
                    "phase": phase,
                    "from": phase / phases,
                    "to": (phase + 1) / phases,
                    "share": float(inside.sum()) / total if total else math.nan,
                    "mean": mean.mean,
                    "low": mean.low,
                    "high": mean.high,
                    "n": mean.n,
                }
            )
    return pd.DataFrame(rows)


def correction_shown(table: pd.DataFrame) -> pd.DataFrame:
    """The first fifth and the whole of training, with the paper's row below."""
    rows = []
    for method, own in table.groupby("method", sort=False):
        first = own[own["to"] <= EARLY + 1e-9]
        n = own["n"].sum()
        whole = float((own["mean"].fillna(0) * own["n"]).sum() / n) if n else math.nan
        visits = first["n"].sum()
        early = float((first["mean"].fillna(0) * first["n"]).sum() / visits) if visits else math.nan
        rows.append(
            {
                "method": method,
                f"share in the first {EARLY:.0%}": number(100 * first["share"].sum(), 1) + " %",
                f"mean weight in the first {EARLY:.0%}": number(early),
                "mean weight over training": number(whole),
                "visits": f"{n:,}",
            }
        )
    share = claim("share of the correction weight in the first 20 % of training")
    rows.append(
        {
            "method": "paper, PLC-DPO",
            f"share in the first {EARLY:.0%}": f"{100 * share:.1f} %",
            f"mean weight in the first {EARLY:.0%}": number(
                claim("mean correction weight in the first 20 % of training")
            ),
            "mean weight over training": number(claim("mean correction weight over training")),
            "visits": "–",
        }
    )
    return pd.DataFrame(rows).set_index("method")


def detection_sentence(table: pd.DataFrame) -> str:
    """The flip AUROC of every method's q_flip, of both sets of pairs, beside the paper's."""
    known = table[(table["score"] == "q_flip") & (table["n_flipped"] > 0) & (table["n_others"] > 0)]
    if known.empty:
        return "No pair is marked as flipped, so no ranking of flips can be measured."
    said = []
    for pairs, own in known.groupby("pairs", sort=False):
        parts = [
            f"{row['auroc']:.3f} [{number(row['low'])}, {number(row['high'])}] under "
            f"{row['method']}"
            for row in own.to_dict("records")
        ]
        said.append(f"{', '.join(parts)} ({pairs})")
    return (
        f"q_flip ranks injected flips with AUROC {'; '.join(said)}. The paper has "
        f"{claim('flip AUROC at 20 % noise'):.3f} in training under PLC-DPO at 20 %."
    )
