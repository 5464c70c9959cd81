"""The numbers of one job, from its visits and from margins on pairs it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from plc_core.analysis.audit import AGAINST_LENGTH, ALIKE_LENGTH, against_length
from plc_core.analysis.calibration import calibrate
from plc_core.analysis.noise import noise_rate
from plc_core.analysis.statistics import auroc, mann_whitney, mean_interval, wilson
from plc_core.data.slices import slices_of
from plc_core.data.votes import VOTE_GROUPS
from plc_core.label_audit.result import Audit

Measure = dict[str, Any]


def accuracy(
    margins: np.ndarray, table: pd.DataFrame, longer: np.ndarray, group: str
) -> list[Measure]:
    """Share of pairs with a positive margin, and how much of it length explains.

    Of all pairs, of the wide-gap half of each source, of each source, and of the pairs whose
    chosen answer is longer and is not; and Spearman's correlation of the margin with `longer`, the
    tokens that the chosen answer has more.
    """
    halves = slices_of(table, 0.5).table["slice"]
    parts = {"": np.ones(len(margins), bool), ", wide gap": (halves == "high").to_numpy()}
    parts |= {f", {s}": (table["source"] == s).to_numpy() for s in sorted(table["source"].unique())}
    parts |= {", chosen longer": longer > 0, ", chosen not longer": longer <= 0}
    rows = []
    for name, inside in parts.items():
        n, hits = int(inside.sum()), int((margins[inside] > 0).sum())
        share = hits / n if n else math.nan
        rows.append(_row("accuracy", group + name, share, *wilson(hits, n), n))
    correlation = float(stats.spearmanr(margins, longer).statistic)
    return [*rows, _row("length_correlation", group, correlation, n=len(margins))]


def of_audit(audited: Audit, rivals: Mapping[str, np.ndarray] | None = None) -> list[Measure]:
    """What an audit of the noisy labels knew, against which of them are reversed.

    flip_auroc and precision_100 of each evidence, of p_flip and of `rivals` ([pairs] each, larger
    for a label more likely reversed), the calibration of p_flip, and the noise rate with its
    interval.
    """
    flipped = np.array(audited.pairs.dataset["flipped"], dtype=bool)
    p_flip, noise, n = audited.probabilities, audited.noise, len(audited.pairs)
    turned, base = p_flip > 0.5, float(flipped.mean())
    rate = math.nan if noise.rate is None else noise.rate
    rows = [
        _row("turned", "flipped", float(turned[flipped].mean()) if base else math.nan),
        _row("turned", "not flipped", float(turned[~flipped].mean())),
        _row("noise_rate", "audit", rate, noise.low, noise.high, n),
        _row("brier", "audit p_flip", float(np.mean((p_flip - flipped) ** 2)), n=n),
        _row("brier", "audit base rate", base * (1 - base), n=n),
        _row("ece", "audit p_flip", calibrate(p_flip, flipped).ece, n=n),
    ]
    scores = {"audit p_flip": p_flip} | {
        f"audit {name}": -np.nan_to_num(column) for name, column in audited.evidence.columns.items()
    }
    for name, score in (scores | dict(rivals or {})).items():
        if flipped.any():
            rows.append(_auroc("flip_auroc", name, pd.Series(score), flipped))
            top = np.argsort(-np.asarray(score), kind="stable")[:100]
            rows.append(_row("precision_100", name, float(flipped[top].mean()), n=len(top)))
    return rows


def of_training(visits: pd.DataFrame, pairs: pd.DataFrame, metrics: pd.DataFrame) -> list[Measure]:
    """Routing and posterior on the training pairs: each pair's first visit, before its update.

    `pairs` has the tokens of both responses of each pair together, for the margin per token, as a
    sum over a short pair is small whatever is preferred; and those that the chosen one has more,
    `longer`, whose ranking is the control of what needs no policy at all.
    """
    first = visits.sort_values("step", kind="stable").drop_duplicates("pair_id")
    table = pairs.merge(first, on="pair_id", validate="one_to_one")
    scores = table[["score_chosen", "score_rejected"]].astype("float64")
    gap = (scores["score_chosen"] - scores["score_rejected"]).abs()
    tie = (table["injected_tie"] | (gap == 0)).to_numpy()
    flipped = table["flipped"].to_numpy(bool)
    rows: list[Measure] = []
    for name in ("q_clean", "q_flip", "q_tie", "weight", "p_flip"):
        rows.append(_mean(name, "all", table[name]))
        rows += [
            _mean(name, group, table.loc[inside, name])
            for group, inside in (
                ("flipped", flipped & ~tie),
                ("not flipped", ~flipped & ~tie),
                ("exact tie", tie),
            )
            if inside.any()
        ]
    rows.append(_row("margin_std", "all", float(table["margin"].std(ddof=0)), n=len(table)))
    rows.append(_row("argmax_flip", "all", _argmax_flip(table), n=len(table)))
    clear = table[~tie]
    for name, score in (
        ("q_flip", clear["q_flip"]),
        ("-margin", -clear["margin"]),
        ("p_flip", clear["p_flip"]),
    ):
        rows.append(_auroc("flip_auroc", name, score, flipped[~tie]))
        if flipped[~tie].any():
            top = np.argsort(-score.fillna(-np.inf).to_numpy(), kind="stable")[:100]
            share = float(flipped[~tie][top].mean())
            rows.append(_row("precision_100", name, share, n=len(top)))
        if name != "-margin":
            rows += _calibration(name, score.to_numpy(), flipped[~tie])
    per_token = table["margin"] / table["tokens"]
    rows += [
        _auroc("flip_auroc", "-margin per token", -per_token[~tie], flipped[~tie]),
        _auroc("flip_auroc", AGAINST_LENGTH, against_length(clear["longer"]), flipped[~tie]),
    ]
    for name, score in (
        ("q_tie", table["q_tie"]),
        ("-|margin|", -table["margin"].abs()),
        ("-|margin| per token", -per_token.abs()),
        (ALIKE_LENGTH, -table["longer"].abs()),
    ):
        rows.append(_auroc("tie_auroc", name, score, tie))
        # A source of long answers that has all ties is told apart by length alone.
        for source in sorted(table.loc[tie, "source"].unique()):
            inside = (table["source"] == source).to_numpy()
            rows.append(_auroc("tie_auroc", f"{name}, {source}", score[inside], tie[inside]))
    rows += _tie_selectivity("", table, table["q_tie"])
    rows += _tie_selectivity(f"{ALIKE_LENGTH}, ", table, -table["longer"].abs())
    total = float(table["weight"].sum())
    steps = table["step"].max() + 1
    early = float(table.loc[table["step"] < 0.2 * steps, "weight"].sum())
    rows.append(_row("early_share", "all", early / total if total else math.nan, n=len(table)))
    if (noise := noise_rate(metrics)) is not None:
        rows.append(_row("noise_rate", "all", noise.rate, noise.low, noise.high, len(table)))
    return rows


def _argmax_flip(table: pd.DataFrame) -> float:
    most = table[["q_clean", "q_tie"]].max(axis=1)
    return float((table["q_flip"] > most).mean())


def _calibration(name: str, forecast: np.ndarray, flipped: np.ndarray) -> list[Measure]:
    found = calibrate(forecast, flipped)
    numbers = {"ece": found.ece, "brier": found.brier, "brier_base": found.brier_base}
    return [_row(measure, name, value, n=found.n) for measure, value in numbers.items()]


def _tie_selectivity(name: str, table: pd.DataFrame, score: pd.Series) -> list[Measure]:
    """AUROC of the score for the bottom against the top fifth of the score gap, in each source."""
    known = table["score_chosen"].notna()
    usable = table[known].assign(score=score[known]).reset_index(drop=True)
    part = slices_of(usable, 0.2).table["slice"]
    rows = []
    for source in sorted(usable["source"].unique()):
        of_source = usable["source"] == source
        low, high = (usable.loc[of_source & (part == side), "score"] for side in ("low", "high"))
        if len(low) and len(high):
            inside = np.concatenate([np.ones(len(low), bool), np.zeros(len(high), bool)])
            group = f"{name}{source}"
            rows.append(_auroc("tie_selectivity", group, pd.concat([low, high]), inside))
            p = mann_whitney(low, high).p
            rows.append(_row("tie_selectivity_p", group, p, n=len(low) + len(high)))
    return rows


def of_votes(
    q_tie: np.ndarray,
    q_flip: np.ndarray,
    margin_per_token: np.ndarray,
    longer: np.ndarray,
    table: pd.DataFrame,
) -> list[Measure]:
    """Mean q_tie and q_flip by agreement, and Kendall's tau-b with the order of the groups.

    The groups in order of less agreement: unanimous, divergent, tie-majority. The trend is of
    q_tie, of the margin per token and of the answers' difference in length (`longer`), the larger
    the closer to 0; over all pairs, and within each source, whose answers differ in length. `table`
    has a group and a source a pair.
    """
    groups = table["group"]
    rows = []
    for name in VOTE_GROUPS:
        inside = (groups == name).to_numpy()
        rows += [
            _mean("votes_q_tie", name, q_tie[inside]),
            _mean("votes_q_flip", name, q_flip[inside]),
        ]
    order = groups.map({name: i for i, name in enumerate(VOTE_GROUPS)})
    known = order.notna().to_numpy()
    parts = {"": known}
    parts |= {
        f", {source}": known & (table["source"] == source).to_numpy()
        for source in sorted(table["source"].unique())
    }
    scores = {
        "": q_tie,
        ", -|margin| per token": -np.abs(margin_per_token),
        f", {ALIKE_LENGTH}": -np.abs(longer),
    }
    for score, values in scores.items():
        for part, inside in parts.items():
            rows += _trend(score + part, order[inside].to_numpy(int), values[inside])
    return rows


def _trend(name: str, order: np.ndarray, values: np.ndarray) -> list[Measure]:
    """Kendall's tau-b with the 95 % of a bootstrap over pairs, and its p without one."""
    if len(order) < 3 or len(set(order)) < 2 or len(set(values)) < 2:
        return []
    found = stats.kendalltau(order, values)
    resampled = stats.bootstrap(
        (order, values),
        lambda x, y: stats.kendalltau(x, y).statistic,
        n_resamples=200,
        paired=True,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = resampled.confidence_interval
    tau, p = float(found.statistic), float(found.pvalue)
    return [
        _row("votes_trend", f"tau{name}", tau, float(low), float(high), len(order)),
        _row("votes_trend", f"p{name}", p, n=len(order)),
    ]


def agreement(
    margins: np.ndarray, q_flip: np.ndarray, rewards: np.ndarray, longer: np.ndarray
) -> list[Measure]:
    """Policy and reward model on held-out pairs; `rewards` [N] are chosen minus rejected.

    The share that both order alike, the share that the reward model orders as labelled, and the
    AUROC for the pairs that it orders against their label (appendix "Self-Confirmation"): of
    q_flip, and of how far the label goes against the lengths, from the tokens that the chosen
    answer has more (`longer`) and the labels alone.
    """
    alike = (margins > 0) == (rewards > 0)
    n, hits = len(alike), int(alike.sum())
    right = int((rewards > 0).sum())
    return [
        _row("reward_agreement", "test", hits / n, *wilson(hits, n), n),
        _row("reward_accuracy", "test", right / n, *wilson(right, n), n),
        _auroc("reward_auroc", "q_flip", pd.Series(q_flip), rewards <= 0),
        _auroc("reward_auroc", AGAINST_LENGTH, against_length(pd.Series(longer)), rewards <= 0),
    ]


def of_responses(
    rewards: Iterable[float], kl: Iterable[float], tokens: Iterable[int]
) -> list[Measure]:
    """Mean reward, KL to the reference (nats per response) and length of sampled responses."""
    return [
        _mean("reward", "responses", rewards),
        _mean("kl", "responses", kl),
        _mean("tokens", "responses", tokens),
    ]


def _auroc(measure: str, group: str, score: pd.Series, positive: np.ndarray) -> Measure:
    area = auroc(score, positive)
    return _row(measure, group, area.value, area.low, area.high, area.n_positive + area.n_negative)


def _mean(measure: str, group: str, values: Iterable[float]) -> Measure:
    found = mean_interval(values)
    return _row(measure, group, found.mean, found.low, found.high, found.n)


def _row(
    measure: str,
    group: str,
    value: float,
    low: float = math.nan,
    high: float = math.nan,
    n: int = 0,
) -> Measure:
    return {"measure": measure, "group": group, "value": value, "low": low, "high": high, "n": n}
