"""Win rates beside the control that moved as far: a plain DPO at the beta whose KL matches.

A method that moves further from the reference than DPO does at the same beta wins and loses what
any policy that moves so far wins and loses. So beside every win rate stands a plain DPO run with
the same KL to the reference, and what the method wins over the same prompts beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from plc_core.analysis.statistics import MeanInterval, bootstrap_seeds
from plc_core.evaluation.comparison import DECODINGS
from plc_core.evaluation.kl_matching import (
    TOLERANCE,
    WORLD,
    Control,
    Judged,
    find_controls,
    matched_beta,
    mean_kl,
)
from plc_core.evaluation.kl_words import is_matched
from plc_core.evaluation.win_rate import JoinError, join_prompts
from plc_core.files import RunError
from plc_core.runs import Run

__all__ = [
    "TOLERANCE",
    "WORLD",
    "Control",
    "Judged",
    "find_controls",
    "matched_beta",
    "mean_kl",
    "win_rates",
    "win_rates_shown",
]

_WHOLE = "all prompts"


def win_rates(
    methods: Mapping[str, Sequence[Run]],
    baseline: Sequence[Run],
    control: Sequence[Run] | None = None,
    benchmarks: Mapping[str, str] | None = None,
    decodings: Sequence[str] = DECODINGS,
    judged: Judged = WORLD,
) -> pd.DataFrame:
    """Win rates of methods against a baseline, seed by seed over the same prompts.

    Args:
        methods: by name, one run a training seed.
        baseline: one run a seed, or one for all seeds; a method that has a baseline's runs is
            compared with itself and left out.
        control: the KL-matched plain DPO, one run a seed; its own row is among `methods`.
        benchmarks: what to call each prompt's benchmark, by prompt id; None takes all as one.
        decodings: greedy and sampled.
        judged: where rewards and log-ratios are read.

    Returns:
        One row a method, decoding and benchmark: seeds, n (prompts of a seed), win_rate, low, high
        (percent; ties half; bootstrap over seeds and prompts), ties (percent), by_seed (text),
        over_control, over_low, over_high (points won more than the control does, over the same
        prompts; NaN without one), control_kl, reward, kl, kl_low, kl_high (nats a response).

    Raises:
        RunError: where runs do not start from one model, or a seed has no baseline.
        JoinError: where two runs answered different prompts; with the counts.
    """
    _same_model([*(run for runs in methods.values() for run in runs), *baseline, *(control or ())])
    rows = []
    control_kl = mean_kl(control, judged).mean if control else math.nan
    for method, runs in methods.items():
        if {run.path for run in runs} == {run.path for run in baseline}:
            continue
        kl = mean_kl(runs, judged)
        others = [_of_seed(run, baseline, "baseline") for run in runs]
        matched = [_of_seed(run, control, "control") for run in runs] if control else None
        itself = control is not None and {r.path for r in runs} == {r.path for r in control}
        for decoding in decodings:
            wins = [_wins(a, b, decoding, judged) for a, b in zip(runs, others, strict=True)]
            held = (
                [_wins(a, b, decoding, judged) for a, b in zip(matched, others, strict=True)]
                if matched and not itself
                else None
            )
            for name, places in _places(wins[0].index, benchmarks).items():
                own = [w.loc[places] for w in wins]
                share = bootstrap_seeds(own, seed=0)
                over = MeanInterval(math.nan, math.nan, math.nan, 0)
                if held:
                    pairs = zip(own, held, strict=True)
                    over = bootstrap_seeds([a - b.loc[a.index] for a, b in pairs], seed=0)
                reward = [judged.rewards(run, decoding).loc[places].mean() for run in runs]
                rows.append(
                    {
                        "method": method,
                        "decoding": decoding,
                        "benchmark": name,
                        "seeds": len(runs),
                        "n": len(places),
                        "win_rate": 100 * share.mean,
                        "low": 100 * share.low,
                        "high": 100 * share.high,
                        "ties": 100 * float(np.mean([(w == 0.5).mean() for w in own])),
                        "by_seed": ", ".join(f"{100 * w.mean():.1f}" for w in own),
                        "over_control": 100 * over.mean,
                        "over_low": 100 * over.low,
                        "over_high": 100 * over.high,
                        "control_kl": math.nan if itself else control_kl,
                        "reward": float(np.mean(reward)),
                        "kl": kl.mean,
                        "kl_low": kl.low,
                        "kl_high": kl.high,
                    }
                )
    return pd.DataFrame(rows)


def win_rates_shown(table: pd.DataFrame, keys: Sequence[str] = ("method",)) -> pd.DataFrame:
    """The table as text: one row a method (and other `keys`), both decodings side by side."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    several = len(set(table["benchmark"])) > 1
    for line in table.to_dict("records"):
        key = tuple(str(line[k]) for k in keys)
        row = rows.setdefault(key, {})
        name = f"{line['decoding']}, {line['benchmark']}" if several else str(line["decoding"])
        text = f"{line['win_rate']:.1f} [{line['low']:.1f}, {line['high']:.1f}]"
        text += " all ties" if line["ties"] == 100 else ""
        row[f"win %, {name}"] = text + (f" ({line['by_seed']})" if line["seeds"] > 1 else "")
        over = "–"
        if not math.isnan(line["over_control"]):
            bounds = f"[{line['over_low']:+.1f}, {line['over_high']:+.1f}]"
            far = "" if is_matched(line) else ", not matched"
            over = f"{line['over_control']:+.1f} {bounds}{far}"
        row[f"over KL control, {name}"] = over
        row["KL, nats"] = f"{line['kl']:.2f} [{line['kl_low']:.2f}, {line['kl_high']:.2f}]"
        row["seeds × prompts"] = f"{line['seeds']} × {line['n']}"
    index = pd.MultiIndex.from_tuples(list(rows), names=list(keys))
    shown = pd.DataFrame(list(rows.values()), index=index if len(keys) > 1 else None)
    if len(keys) == 1:
        shown.index = pd.Index([key[0] for key in rows], name=keys[0])
    last = ["KL, nats", "seeds × prompts"]
    return shown[[c for c in shown if c not in last] + last].fillna("–")


def _of_seed(run: Run, others: Sequence[Run], what: str) -> Run:
    if len(others) == 1:
        return others[0]
    seed = run.info["config"]["seed"]
    found = [other for other in others if other.info["config"]["seed"] == seed]
    if len(found) != 1:
        raise RunError(f"The run {run.name!r} has seed {seed}, and {len(found)} {what} runs do.")
    return found[0]


def _wins(run: Run, other: Run, decoding: str, judged: Judged) -> pd.Series:
    """1, 0.5 or 0 by prompt id."""
    own = judged.rewards(run, decoding)
    try:
        left, right, _ = join_prompts(own, judged.rewards(other, decoding))
    except JoinError as error:
        raise JoinError(f"{run.name} against {other.name}, {decoding}: {error}") from None
    return pd.Series((np.sign(left - right) + 1) / 2, index=own.index)


def _places(prompts: pd.Index, benchmarks: Mapping[str, str] | None) -> dict[str, pd.Index]:
    if benchmarks is None:
        return {_WHOLE: prompts}
    names = [benchmarks.get(prompt) for prompt in prompts]
    if None in names:
        raise JoinError(f"{names.count(None)} of {len(prompts)} prompts are in no benchmark.")
    return {str(n): prompts[[m == n for m in names]] for n in dict.fromkeys(names)}


def _same_model(runs: Sequence[Run]) -> None:
    seen = {run.name: run.info["reference"]["model"] for run in runs}
    if len(set(seen.values())) > 1:
        raise RunError(f"These runs do not start from the same model: {seen}.")
