"""Tables of studies computed anew from the files of run folders, with pandas and scipy alone."""

import functools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

BENCHMARKS = ("alpaca-eval", "alpaca-eval-2", "mt-bench", "vicuna")
Q = ("q_clean", "q_flip", "q_tie")


# ---- win rates ----------------------------------------------------------------------------------


@functools.cache
def rewards(run: Path, benchmark: str, decoding: str) -> pd.Series:
    """Of the trained policy by prompt, a prompt's turns averaged."""
    (path,) = (run / "judgements").glob(f"*-{benchmark}.parquet")
    table = pd.read_parquet(path)
    table = table[(table["policy"] == "trained") & table["decoding"].str.startswith(decoding)]
    return table.groupby("prompt_id")["reward"].mean()


@functools.cache
def kl(run: Path) -> pd.Series:
    """log(pi/pi_ref) of the sampled answers, a prompt's turns averaged."""
    parts = []
    for benchmark in BENCHMARKS:
        table = pd.read_parquet(run / "generations" / f"{benchmark}-log-probs.parquet")
        table = table[(table["policy"] == "trained")]
        ratio = table["policy_logp"] - table["reference_logp"]
        parts.append(ratio.groupby(table["prompt_id"]).mean())
    return pd.concat(parts, ignore_index=True)


def resampled(groups) -> tuple[float, float]:
    """The 95 % interval of the mean over seeds of the mean over parts, drawn by other means."""
    rng = np.random.default_rng(99)
    of_seed = [
        np.mean([rng.choice(p, (20_000, len(p))).mean(1) for p in map(np.asarray, parts)], axis=0)
        for parts in groups
    ]
    drawn = rng.integers(0, len(groups), (20_000, len(groups)))
    # Each draw of a seed is a draw of its own: those of one seed are shuffled between places.
    means = [
        np.choose(drawn[:, place], [rng.permutation(values) for values in of_seed])
        for place in range(len(groups))
    ]
    low, high = np.quantile(np.mean(means, axis=0), [0.025, 0.975])
    return float(low), float(high)


def same(found, expected, slack=0.0) -> None:
    """Equal but for rounding, or within `slack`; both unknown where one is."""
    assert found == pytest.approx(expected, rel=1e-6, abs=max(slack, 1e-9), nan_ok=True)


def check_wins(table: pd.DataFrame, sides, deep=lambda line: True) -> None:
    """Every row of a table of win rates, with `MEAN` and "pooled" over the benchmarks.

    Args:
        sides: gives for a row its runs, the baseline's and the control's (None without one).
        deep: for which rows the intervals are drawn; not for one benchmark's few prompts, where
            the ends jump from one possible mean to the next.
    """
    for line in table.to_dict("records"):
        runs, others, control = sides(line)
        names = [line["benchmark"]] if line["benchmark"] in BENCHMARKS else list(BENCHMARKS)

        def parts(values, names=names, pooled=line["benchmark"] == "pooled"):
            """A run's values, in parts that weigh alike."""
            found = [values(name) for name in names]
            return [np.concatenate(found)] if pooled else found

        def won(side, others=others, decoding=line["decoding"], parts=parts):
            pairs = zip(side, others, strict=True)
            return [parts(lambda n, p=pair: wins(*p, n, decoding)) for pair in pairs]

        def mean(groups):
            return np.mean([np.mean([part.mean() for part in seed]) for seed in groups])

        own = won(runs)
        same(line["win_rate"], 100 * mean(own))
        by_seed = ", ".join(f"{100 * mean([seed]):.1f}" for seed in own)
        assert str(line["by_seed"]) == by_seed
        assert (line["seeds"], line["n"]) == (len(runs), sum(map(len, own[0])))
        same(line["ties"], 100 * mean([[part == 0.5 for part in seed] for seed in own]))
        scored = [
            parts(lambda n, r=run, line=line: rewards(r, n, line["decoding"])) for run in runs
        ]
        same(line["reward"], mean(scored))
        bounds = [(own, 100, "low", "high")]
        if control is not None:
            itself = control == runs
            same(line["kl"], np.mean([kl(run).mean() for run in runs]))
            held = math.nan if itself else np.mean([kl(run).mean() for run in control])
            same(line["control_kl"], held)
            bounds.append(([[kl(run).to_numpy()] for run in runs], 1, "kl_low", "kl_high"))
            pairs = zip(own, won(control), strict=True)
            more = [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]
            same(line["over_control"], math.nan if itself else 100 * mean(more))
            if itself:
                same((line["over_low"], line["over_high"]), (math.nan, math.nan))
            else:
                bounds.append((more, 100, "over_low", "over_high"))
        if deep(line) and len(names) > 1:
            for values, scale, *ends in bounds:
                low, high = resampled(values)
                expected = (scale * low, scale * high)
                same(tuple(line[end] for end in ends), expected, scale * 0.12 * (high - low))


@functools.cache
def wins(run: Path, other: Path, benchmark: str, decoding: str) -> np.ndarray:
    """1, a half or 0 by prompt."""
    a, b = (rewards(side, benchmark, decoding) for side in (run, other))
    assert set(a.index) == set(b.index)
    b = b.reindex(a.index)
    return ((a > b) + (a == b) / 2).to_numpy(float)


# ---- routing ------------------------------------------------------------------------------------


def visits(runs: list[Path]) -> pd.DataFrame:
    """All visits of some runs beside their pairs."""
    frames = []
    for run in runs:
        seen = pd.concat([pd.read_parquet(path) for path in sorted((run / "visits").glob("*"))])
        pairs = pd.read_parquet(run / "pairs.parquet")[["pair_id", "flipped", "injected_tie"]]
        frames.append(seen.merge(pairs, on="pair_id"))
        assert len(frames[-1]) == len(seen)
    whole = pd.concat(frames, ignore_index=True)
    numbers = [*Q, "z", "margin", "weight"]
    return whole.astype(dict.fromkeys(numbers, "float64"))


def probed(runs: list[Path], probe: str, calibration: str = "checkpoint") -> pd.DataFrame:
    """A probe's scores, a pair's mean over the seeds that were shown it."""
    frames = [pd.read_parquet(run / "scores" / f"{probe}.parquet") for run in runs]
    whole = pd.concat(frames)
    whole = whole[whole["calibration"] == calibration].astype(
        dict.fromkeys(["margin", "z", *Q], "float64")
    )
    markers = ["flipped", "group", "source", "score_chosen", "score_rejected",
               "chosen_tokens", "rejected_tokens"]  # fmt: skip
    by_pair = whole.groupby("pair_id", sort=False)
    assert (by_pair["flipped"].min() == by_pair["flipped"].max()).all()
    return by_pair[["margin", "z", *Q]].mean().join(by_pair[markers].first()).reset_index()


def auroc(above, below) -> tuple[float, float, float]:
    """Pair by pair, with DeLong's interval on the logit scale."""
    a, b = np.asarray(above, float)[:, None], np.asarray(below, float)[None]
    wins = (a > b) + (a == b) / 2
    area = wins.mean() if wins.size else math.nan
    if min(wins.shape) < 2 or not 0 < area < 1:
        return area, math.nan, math.nan
    error = math.sqrt(
        wins.mean(1).var(ddof=1) / wins.shape[0] + wins.mean(0).var(ddof=1) / wins.shape[1]
    )
    reach = stats.norm.ppf(0.975) * error / (area * (1 - area))
    centre = math.log(area / (1 - area))
    return area, *(1 / (1 + math.exp(-(centre + side * reach))) for side in (-1, 1))


def check_mean(line, values, names) -> None:
    """A mean with Student's interval and its n."""
    mean, low, high, n = (line[name] for name in names)
    assert n == len(values)
    same(mean, values.mean() if len(values) else math.nan)
    ends = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values)) if n > 1 else None
    if ends is None or not values.std():
        ends = (mean, mean) if n > 1 else (math.nan, math.nan)
    same((low, high), ends)


def check_holm(table: pd.DataFrame, family: list[str]) -> None:
    for _, own in table[table["p"].notna()].groupby(family):
        ordered = own.sort_values("p")
        steps = ordered["p"] * np.arange(len(ordered), 0, -1)
        same(ordered["p_holm"].to_numpy(), steps.cummax().clip(upper=1).to_numpy())
        same(own["log10_p"].to_numpy(), np.log10(own["p"]).to_numpy())


def check_mann_whitney(line, a, b) -> None:
    test = stats.mannwhitneyu(a, b)
    assert line["side"] == "two-sided"
    counts = [line[name] for name in ("n_a", "n_b", "nan_a", "nan_b")]
    assert counts == [len(a), len(b), 0, 0]
    same((line["U"], line["p"]), (test.statistic, test.pvalue))
    same(line["log10_p"], math.log10(test.pvalue))
    area = auroc(a, b)
    same((line["auroc"], line["auroc_low"], line["auroc_high"]), area)
    same(line["rank_biserial"], 2 * area[0] - 1)
    assert line["text"].startswith(f"U = {test.statistic:,.1f}, p = {test.pvalue:.3g}")
