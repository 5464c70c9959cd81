"""The claims, what the paper says, and what the study finds: one row a claim.

The verdict follows a rule that was written before any outcome was seen: a claim is *reproduced*
where the 95 % interval over seeds lies wholly on its side of its threshold, *not reproduced* where
it lies wholly on the other side, and *undecided* otherwise, always so with fewer than three seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd

from plc_core.evidence.estimates import (
    BASELINE,
    FEWEST,
    METHOD,
    Estimate,
    Study,
    above_frontier,
    at,
    best_other,
    difference,
    over_seeds,
    win_rates,
)

Numbers: TypeAlias = Callable[[Study, str], pd.DataFrame]
"""Of a study under a method, PLC-DPO or another: rows with a seed and a value; none if not run."""

_NOISY = (0.2, 0.3, 0.4)


@dataclass(frozen=True)
class Claim:
    """One claim.

    `paper` is the number that it prints, with the place; "–" where it has none. `above` says on
    which side of `threshold` the claim lies. Claims about the routing can be asked of plain DPO
    too, whose margin is routed without touching the loss: `shadow`. `by_construction` is what
    follows from a setting, whatever the data; `exploratory` what was asked after an outcome.
    """

    text: str
    paper: str
    values: Numbers
    threshold: float = 0.0
    above: bool = True
    digits: int = 3
    scale: float = 1.0
    shadow: bool = False
    by_construction: bool = False
    exploratory: bool = False


def verdict(claim: Claim, found: Estimate | None) -> str:
    """reproduced, not reproduced or undecided, by the rule above; "not run" without results.

    "of these pairs" is added where the interval over pairs, put to that over seeds, would leave it
    undecided: other data may well say otherwise.
    """
    if found is None:
        return "not run"
    if claim.by_construction:
        return "by construction"
    if found.n < FEWEST or math.isnan(found.low) or math.isnan(found.high):
        return "undecided"
    above, below = found.low > claim.threshold, found.high < claim.threshold
    if not (above or below):
        return "undecided"
    word = "reproduced" if above == claim.above else "not reproduced"
    # False where the measure has no interval over pairs.
    within = abs(found.value - claim.threshold) <= math.hypot(
        (found.high - found.low) / 2, found.over_pairs
    )
    return f"{word}, of these pairs" if within else word


def claims_table(model: Study, world: Study) -> pd.DataFrame:
    """Columns: claim, paper, world, model, shadow, over, verdict; 95 % intervals, as text.

    The verdict is on the real model; `shadow` is the same number of plain DPO's routing there, and
    `over` by how much PLC-DPO's is above it in the same data and seeds.
    """
    rows = []
    for claim in CLAIMS:
        values = claim.values(model, METHOD)
        row = {
            "claim": f"{claim.text} (looked at later)" if claim.exploratory else claim.text,
            "paper": claim.paper,
            "world": _shown(claim, claim.values(world, METHOD)),
            "model": _shown(claim, values),
            "shadow": "–",
            "over": "–",
            "verdict": verdict(claim, over_seeds(values)),
        }
        if values.empty and "why" in values.attrs:
            row["verdict"] = "undecided"
        if claim.shadow:
            shadow = claim.values(model, BASELINE)
            row["shadow"] = _shown(claim, shadow)
            over = over_seeds(_by_seed(values).sub(_by_seed(shadow)).dropna().reset_index())
            if over is not None:
                row["over"] = shown(over, claim.digits, claim.scale, signed=True)
        rows.append(row)
    return pd.DataFrame(rows)


def _by_seed(values: pd.DataFrame) -> pd.DataFrame:
    return values.groupby("seed")[["value"]].mean()


def _shown(claim: Claim, values: pd.DataFrame) -> str:
    found = over_seeds(values)
    if found is None:
        return str(values.attrs.get("why", "not run"))
    return shown(found, claim.digits, claim.scale, signed=claim.threshold == 0)


def shown(found: Estimate, digits: int, scale: float = 1.0, signed: bool = False) -> str:
    """An estimate times `scale` as text: value [low, high] (n=seeds)."""
    sign = "+" if signed else ""
    value, low, high = (
        f"{x * scale:{sign}.{digits}f}" for x in (found.value, found.low, found.high)
    )
    interval = "" if math.isnan(found.low) else f" [{low}, {high}]"
    return f"{value}{interval} (n={found.n})"


def _one(measure: str, group: str, rates: tuple[float, ...]) -> Numbers:
    return lambda study, method: at(study.values(measure, group, method), rates)


def _gap(
    one: tuple[str, str], other: tuple[str, str], rates: tuple[float, ...], of: str | None = None
) -> Numbers:
    """`one` minus `other`; the latter under the same method, or under `of`."""

    def values(study: Study, method: str) -> pd.DataFrame:
        sides = study.values(*one, method), study.values(*other, of or method)
        return difference(*(at(side, rates) for side in sides))

    return values


def _accuracy_over_dpo(rates: tuple[float, ...]) -> Numbers:
    return _gap(("accuracy", "test"), ("accuracy", "test"), rates, BASELINE)


def _over_best_other(study: Study, method: str) -> pd.DataFrame:
    other = best_other(study, "accuracy", "test", _NOISY)
    sides = [at(study.values("accuracy", "test", m), _NOISY) for m in (method, other or "")]
    return difference(*sides)


def _win_rate(rates: tuple[float, ...], part: str = "main", ties: float = 0.0) -> Numbers:
    def values(study: Study, method: str) -> pd.DataFrame:
        table = at(win_rates(study, method, part), rates)
        return table[(table["tie_rate"] - ties).abs() < 1e-9]

    return values


def _at_like_kl(measure: str, group: str, rates: tuple[float, ...], along: str) -> Numbers:
    def values(study: Study, method: str) -> pd.DataFrame:
        found = at(above_frontier(study, measure, group, along, method), rates)
        own = at(study.values("kl", "responses", method), rates)
        others = study.values("kl", "responses", BASELINE, "frontier")
        if not np.isin(others[along], own[along]).all():
            found.attrs["why"] = "no DPO run has its KL (n=0)"
        return found

    return values


def _dose(study: Study, method: str) -> pd.DataFrame:
    values = study.values("q_flip", "all", method)
    high, low = (at(values, (rate,)).assign(flip_rate=0.0) for rate in (0.3, 0.0))
    return difference(high, low)


def _within_sources(measure: str, before: str = "") -> Numbers:
    """On clean data, the mean over the sources, as their scales cannot be compared.

    A source's group is its name behind `before`; a seed counts that has all of them.
    """

    def values(study: Study, method: str) -> pd.DataFrame:
        rows = study.measures
        groups: list[str] = []
        if study.is_run:
            names = rows.loc[rows["measure"] == measure, "group"].unique()
            groups = sorted(group for group in names if group.startswith(before))
        tables = [at(study.values(measure, group, method), (0.0,)) for group in groups]
        if not tables:
            return study.values(measure, "", method)
        table = pd.concat(tables)
        return table[table.groupby("seed")["value"].transform("count") == len(groups)]

    return values


def _noise_error(study: Study, _: str) -> pd.DataFrame:
    values = study.values("noise_rate", "all", BASELINE)
    return values.assign(value=(values["value"] - values["flip_rate"]).abs(), half=math.nan)


_VOTES = "tab:multipref-routing"

CLAIMS: tuple[Claim, ...] = (
    Claim("PLC-DPO wins against same-data DPO on clean data, win rate in %",
          "58.3 (tab:tie-injection-performance, 0 % ties)", _win_rate((0.0,)), 50.0, digits=1),
    Claim("PLC-DPO wins against same-data DPO at 20 % reversed labels, win rate in %",
          "71.0 (app:self-confirmation)", _win_rate((0.2,)), 50.0, digits=1),
    Claim("PLC-DPO wins against same-data DPO at 30 % exact ties, win rate in %",
          "68.5 (tab:tie-injection-performance)", _win_rate((0.0,), "ties", 0.3), 50.0, digits=1),
    Claim("Held-out accuracy over DPO, clean data, in points", "–",
          _accuracy_over_dpo((0.0,)), scale=100, digits=1),
    Claim("Held-out accuracy over DPO, 20 to 40 % reversed labels, in points", "–",
          _accuracy_over_dpo(_NOISY), scale=100, digits=1),
    Claim("… and over the best other objective, which these pairs chose, in points", "–",
          _over_best_other, scale=100, digits=1),
    Claim("… and over DPO of another β at the same KL, in points", "not measured",
          _at_like_kl("accuracy", "test", _NOISY, "beta"), scale=100, digits=1),
    Claim("… and over DPO of another learning rate at the same KL, in points", "not measured",
          _at_like_kl("accuracy", "test", _NOISY, "learning_rate"), scale=100, digits=1,
          exploratory=True),
    Claim("Reward of answers over DPO of another β at the same KL, 20 to 40 % reversed labels",
          "not measured", _at_like_kl("reward", "responses", _NOISY, "beta")),
    Claim("… and over DPO of another learning rate at the same KL", "not measured",
          _at_like_kl("reward", "responses", _NOISY, "learning_rate"), exploratory=True),
    Claim("q_flip ranks reversed labels at 20 %, AUROC", "0.731 (app:self-confirmation)",
          _one("flip_auroc", "q_flip", (0.2,)), 0.5, shadow=True),
    Claim("… more than the margin of plain DPO does, AUROC difference", "not measured",
          _gap(("flip_auroc", "q_flip"), ("flip_auroc", "-margin"), (0.2,), BASELINE)),
    Claim("Mean q_flip of reversed above that of other labels, at 20 %",
          "+0.276 (app:self-confirmation)",
          _gap(("q_flip", "flipped"), ("q_flip", "not flipped"), (0.2,)), shadow=True),
    Claim("Mean q_flip rises with the noise, from clean data to 30 %",
          "+0.205 from 5 to 30 % of hard pairs (tab:posterior-hard-pair)", _dose, shadow=True),
    Claim("q_tie is larger for the smallest score gaps, AUROC, mean of the sources",
          "significant, no size (fig:tie-selectivity)", _within_sources("tie_selectivity"), 0.5,
          shadow=True),
    Claim("q_tie ranks exact ties, AUROC", "0.619 (tab:tie-per-pair)",
          _one("tie_auroc", "q_tie", (0.0,)), 0.5, shadow=True),
    Claim("… within the sources that have ties, AUROC", "not measured",
          _within_sources("tie_auroc", "q_tie, "), 0.5, shadow=True, exploratory=True),
    Claim("The margin per token ranks exact ties within the sources that have some, AUROC",
          "not measured", _within_sources("tie_auroc", "-|margin| per token, "), 0.5, shadow=True,
          exploratory=True),
    Claim("q_tie of tie-majority above that of unanimous human votes", f"+0.0186 ({_VOTES})",
          _gap(("votes_q_tie", "tie-majority"), ("votes_q_tie", "unanimous"), (0.0,)), digits=4,
          shadow=True),
    Claim("… of divergent above that of unanimous votes", f"ordered ({_VOTES})",
          _gap(("votes_q_tie", "divergent"), ("votes_q_tie", "unanimous"), (0.0,)), digits=4,
          shadow=True),
    Claim("… of tie-majority above that of divergent votes", f"ordered ({_VOTES})",
          _gap(("votes_q_tie", "tie-majority"), ("votes_q_tie", "divergent"), (0.0,)), digits=4,
          shadow=True),
    Claim("q_flip finds disagreement with a reward model at 20 %, AUROC",
          "0.779 (app:self-confirmation)", _one("reward_auroc", "q_flip", (0.2,)), 0.5,
          shadow=True),
    Claim("Little correction early: share of the weight in the first 20 % of training, below 5 %",
          "0.019 (app:self-confirmation)", _one("early_share", "all", (0.2,)), 0.05, above=False,
          by_construction=True),
    Claim("Beside the paper: p_flip is better calibrated than q_flip at 20 %, ECE difference", "–",
          _gap(("ece", "q_flip"), ("ece", "p_flip"), (0.2,)), shadow=True),
    Claim("Beside the paper: p_flip forecasts better than the base rate at 20 %, Brier difference",
          "–", _gap(("brier_base", "p_flip"), ("brier", "p_flip"), (0.2,)), shadow=True,
          exploratory=True),
    Claim("Beside the paper: error of the estimated noise rate under DPO, below 0.1", "–",
          _noise_error, 0.1, above=False),
)  # fmt: skip
"""Every claim of the table, in its order."""
