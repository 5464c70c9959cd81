"""Win rates beside the control that moved as far: a plain DPO at the beta whose KL matches.

A method that moves further from the reference than DPO does at the same beta wins and loses what
any policy that moves so far wins and loses. So beside every win rate stands a plain DPO run with
the same KL to the reference, and what the method wins over the same prompts beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from plc_core.analysis.statistics import MeanInterval, bootstrap_seeds
from plc_core.evaluation.comparison import DECODINGS, kl_to_reference, rewards
from plc_core.evaluation.win_rate import JoinError, join_prompts
from plc_core.files import RunError
from plc_core.runs import Run

TOLERANCE = 0.1
"""Two KLs that differ by less than this share of the target count as matched."""

_SLOPE = -0.6
"""d log KL / d log beta of plain DPO, as measured in the embedded world between 0.1 and 0.2: a
first guess, which the control's own KL then corrects."""
_STEEPEST, _FLATTEST = -2.5, -0.2  # what two runs may say of it, so that noise does not run away
_WHOLE = "all prompts"


class Control(NamedTuple):
    """The plain DPO runs, one a seed, that moved as far as a method's."""

    beta: float
    runs: list[Run]
    kl: MeanInterval  # nats a response, sampled from the policy
    target: MeanInterval  # the method's

    @property
    def matched(self) -> bool:
        """Whether the two KLs differ by at most a tenth of the target."""
        return abs(self.kl.mean - self.target.mean) <= TOLERANCE * self.target.mean

    def __str__(self) -> str:
        verdict = "" if self.matched else ", which is not matched"
        return (
            f"KL control: plain DPO at β={self.beta:g} moved {self.kl.mean:.2f} "
            f"[{self.kl.low:.2f}, {self.kl.high:.2f}] nats a response where the method moved "
            f"{self.target.mean:.2f} [{self.target.low:.2f}, {self.target.high:.2f}]{verdict}."
        )


def mean_kl(runs: Sequence[Run]) -> MeanInterval:
    """KL to the reference, nats a response: the mean over seeds and sampled responses."""
    return bootstrap_seeds([kl_to_reference(run) for run in runs], seed=0)


def matched_beta(target: float, known: Mapping[float, float]) -> float:
    """The beta at which plain DPO would have a KL of `target`, to two significant digits.

    By a straight line in log beta and log KL through the two known points about the target, or the
    nearest two; through one point with the slope that the embedded world has.

    Args:
        target: nats a response, above 0.
        known: KL of plain DPO by its beta, one at least.

    Raises:
        RunError: where a KL is not above 0, as of a policy that has not moved.
    """
    if not known or not all(kl > 0 for kl in [target, *known.values()]):
        raise RunError(
            f"A control for a KL of {target:.3g} nats cannot be found from "
            f"{dict(known)}: KLs must be above 0. Has the policy moved at all?"
        )
    points = sorted(known.items(), key=lambda p: abs(math.log(p[1] / target)))
    beta, kl = points[0]
    slope = _SLOPE
    others = [p for p in points[1:] if (p[1] > target) != (kl > target)] or points[1:]
    if others and others[0][0] != beta:
        other_beta, other_kl = others[0]
        slope = math.log(other_kl / kl) / math.log(other_beta / beta)
        slope = min(max(slope, _STEEPEST), _FLATTEST)
    found = math.exp(math.log(beta) + math.log(target / kl) / slope)
    return float(f"{found:.2g}")


def find_control(
    method: Sequence[Run],
    dpo: Sequence[Sequence[Run]],
    train: Callable[[float], Sequence[Run]],
    rounds: int = 2,
) -> Control:
    """The plain DPO runs that moved as far as `method`.

    Args:
        method: its runs, one a seed.
        dpo: plain DPO on the same data at one beta or more, each with one run a seed.
        train: gives plain DPO runs on that data at another beta, made where they are missing.
        rounds: betas to try at most; one is enough where the first is within a tenth.

    Returns:
        The nearest of all, `dpo` itself included; `matched` says whether it is near.

    Raises:
        RunError: from `train`, where runs are missing and not to be made.
    """
    target = mean_kl(method)
    tried = {_beta(own): Control(_beta(own), list(own), mean_kl(own), target) for own in dpo}
    for _ in range(rounds):
        if any(control.matched for control in tried.values()):
            break
        beta = matched_beta(target.mean, {b: c.kl.mean for b, c in tried.items()})
        if beta in tried:
            break
        runs = list(train(beta))
        tried[beta] = Control(beta, runs, mean_kl(runs), target)
    return min(tried.values(), key=lambda c: abs(math.log(c.kl.mean / target.mean)))


def win_rates(
    methods: Mapping[str, Sequence[Run]],
    baseline: Sequence[Run],
    control: Sequence[Run] | None = None,
    benchmarks: Mapping[str, str] | None = None,
    decodings: Sequence[str] = DECODINGS,
) -> pd.DataFrame:
    """Win rates of methods against a baseline, seed by seed over the same prompts.

    Args:
        methods: by name, one run a training seed.
        baseline: one run a seed, or one for all seeds; a method that has a baseline's runs is
            compared with itself and left out.
        control: the KL-matched plain DPO, one run a seed; its own row is among `methods`.
        benchmarks: what to call each prompt's benchmark, by prompt id; None takes all as one.
        decodings: greedy and sampled.

    Returns:
        One row a method, decoding and benchmark: seeds, n (prompts of a seed), win_rate, low, high
        (percent; ties half; bootstrap over seeds and prompts), by_seed (text), over_control,
        over_low, over_high (points won more than the control does, over the same prompts; NaN
        without one), reward, kl, kl_low, kl_high (nats a response).

    Raises:
        RunError: where runs do not start from one model, or a seed has no baseline.
        JoinError: where two runs answered different prompts; with the counts.
    """
    _same_model([*(run for runs in methods.values() for run in runs), *baseline, *(control or ())])
    rows = []
    for method, runs in methods.items():
        if {run.path for run in runs} == {run.path for run in baseline}:
            continue
        kl = mean_kl(runs)
        others = [_of_seed(run, baseline, "baseline") for run in runs]
        matched = [_of_seed(run, control, "control") for run in runs] if control else None
        itself = control is not None and {r.path for r in runs} == {r.path for r in control}
        for decoding in decodings:
            wins = [_wins(a, b, decoding) for a, b in zip(runs, others, strict=True)]
            held = (
                [_wins(a, b, decoding) for a, b in zip(matched, others, strict=True)]
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
                reward = [rewards(run, "trained", decoding).loc[places].mean() for run in runs]
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
                        "by_seed": ", ".join(f"{100 * w.mean():.1f}" for w in own),
                        "over_control": 100 * over.mean,
                        "over_low": 100 * over.low,
                        "over_high": 100 * over.high,
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
        row[f"win %, {name}"] = text + (f" ({line['by_seed']})" if line["seeds"] > 1 else "")
        over = "–"
        if not math.isnan(line["over_control"]):
            bounds = f"[{line['over_low']:+.1f}, {line['over_high']:+.1f}]"
            over = f"{line['over_control']:+.1f} {bounds}"
        row[f"over KL control, {name}"] = over
        row["KL, nats"] = f"{line['kl']:.2f} [{line['kl_low']:.2f}, {line['kl_high']:.2f}]"
        row["seeds × prompts"] = f"{line['seeds']} × {line['n']}"
    index = pd.MultiIndex.from_tuples(list(rows), names=list(keys))
    shown = pd.DataFrame(list(rows.values()), index=index if len(keys) > 1 else None)
    if len(keys) == 1:
        shown.index = pd.Index([key[0] for key in rows], name=keys[0])
    last = ["KL, nats", "seeds × prompts"]
    return shown[[c for c in shown if c not in last] + last].fillna("–")


def beyond_control(line: Mapping[Any, Any]) -> str:
    """What a row of `win_rates` leaves of its win rate at like KL, in words."""
    if math.isnan(line["over_control"]):
        return "there is no control to say what a like KL does"
    bounds = f"[{line['over_low']:+.1f}, {line['over_high']:+.1f}]"
    text = f"{line['over_control']:+.1f} points {bounds} beyond the control of like KL"
    if line["over_low"] > 0:
        return f"{text}, more than it"
    return f"{text}, less than it" if line["over_high"] < 0 else f"{text}, no difference shown"


def _beta(runs: Sequence[Run]) -> float:
    betas = {float(run.info["config"]["beta"]) for run in runs}
    if len(betas) != 1:
        raise RunError(f"Runs of one control have one beta; these have {sorted(betas)}.")
    return betas.pop()


def _of_seed(run: Run, others: Sequence[Run], what: str) -> Run:
    if len(others) == 1:
        return others[0]
    seed = run.info["config"]["seed"]
    found = [other for other in others if other.info["config"]["seed"] == seed]
    if len(found) != 1:
        raise RunError(f"The run {run.name!r} has seed {seed}, and {len(found)} {what} runs do.")
    return found[0]


def _wins(run: Run, other: Run, decoding: str) -> pd.Series:
    """1, 0.5 or 0 by prompt id."""
    own = rewards(run, "trained", decoding)
    try:
        left, right, _ = join_prompts(own, rewards(other, "trained", decoding))
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
