"""What one method answered beside another's answers to the same prompts, which win rates are of.

Win rates of a cell, their means over benchmarks, those at the nearest KL, over seeds, by category
and at equal lengths (`length_control`) are all of sides.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from plc_core.analysis.statistics import MeanInterval, bootstrap_strata
from plc_core.evaluation.win_rate import (
    Incomplete,
    JoinError,
    JoinReport,
    WinRate,
    join_prompts,
    win_rate_of_gaps,
    win_rate_of_shares,
)

LENGTHS = ("characters", "baseline_characters")

Where: TypeAlias = dict[str, Any]


class Side(NamedTuple):
    """One method's answers beside another's in one cell.

    Attributes:
        where: the cell, method and seed.
        answers: by prompt id: win (1, 0.5 or 0), and where they are known reward, gap (of the
            rewards), characters and baseline_characters.
        join: how the two sides' prompts met.
    """

    where: Where
    answers: pd.DataFrame
    join: JoinReport

    def win_rate(self) -> WinRate:
        """The win rate with its tests."""
        if "gap" in self.answers:
            return win_rate_of_gaps(self.answers["gap"], self.join)
        return win_rate_of_shares(self.answers["win"], self.join)


def sides_against(
    judged: pd.DataFrame,
    baseline: str,
    keys: Sequence[str] = ("benchmark",),
    incomplete: Incomplete = "error",
    baseline_seed: int | None = None,
) -> list[Side]:
    """Every method beside `baseline` in every cell.

    Args:
        judged: one row a response: the columns `keys`, method, prompt_id, reward, and seed where
            there are several training seeds.
        baseline: the method that win rates are against; where `baseline_seed` is given, its
            other seeds are sides of their own.
        keys: what makes a cell, as ("dataset", "model", "benchmark", "decoding").
        incomplete: as in `win_rate`.
        baseline_seed: the baseline's one seed that every seed is compared with, as in the paper's
            seed table; None compares like seeds.

    Raises:
        JoinError: for a column or a baseline that is missing, or prompts that do not meet.
    """

    def rival(where: Where) -> Where | None:
        other = where | {"method": baseline}
        if baseline_seed is not None and "seed" in where:
            other["seed"] = baseline_seed
        is_baseline = where["method"] == baseline and (baseline_seed is None or other == where)
        return None if is_baseline else other

    return sides_beside(judged, rival, keys, incomplete)


def sides_beside(
    judged: pd.DataFrame,
    rival: Callable[[Where], Where | None],
    keys: Sequence[str],
    incomplete: Incomplete = "error",
) -> list[Side]:
    """As `sides_against`; `rival` says beside which cell, method and seed one stands, if any."""
    if absent := [name for name in (*keys, "method", "prompt_id", "reward") if name not in judged]:
        raise JoinError(
            f"The judged responses lack the columns {', '.join(absent)}; they have "
            f"{', '.join(map(str, judged.columns))}."
        )
    if judged.empty:
        raise JoinError("There are no judged responses.")
    names = [*keys, "method", *(["seed"] if "seed" in judged else [])]
    if holes := int(judged[names].isna().any(axis=1).sum()):
        raise JoinError(f"{holes} judged responses lack one of {', '.join(names)}.")
    columns = ["reward", *(["characters"] if "characters" in judged else [])]
    answers = {
        key: own.set_index("prompt_id")[columns] for key, own in judged.groupby(names, sort=False)
    }
    found = []
    for key, own in answers.items():
        where = dict(zip(names, key, strict=True))
        if (other := rival(where)) is None:
            continue
        beside = answers.get(tuple(other[name] for name in names))
        with naming(where):
            if beside is None:
                said = f"there are no rewards of the baseline {other['method']!r}."
                raise JoinError(said)
            left, right, join = join_prompts(own["reward"], beside["reward"], incomplete)
        gap = left - right
        table = pd.DataFrame({"win": (np.sign(gap) + 1) / 2, "reward": left, "gap": gap})
        if "characters" in own:
            for name, side in zip(LENGTHS, (own, beside), strict=True):
                table[name] = side["characters"].reindex(table.index)
        found.append(Side(where, table, join))
    return found


def win_rate_cells(
    judged: pd.DataFrame,
    baseline: str,
    keys: Sequence[str] = ("benchmark",),
    incomplete: Incomplete = "error",
    baseline_seed: int | None = None,
) -> pd.DataFrame:
    """Win rates of `sides_against`, one row a cell and method.

    Returns:
        `keys`, method, (seed,) n, wins, ties, losses; win_rate, low and high in percent; p_sign,
        p_wilcoxon; note, which is empty or says what was left out.
    """
    return table_of(sides_against(judged, baseline, keys, incomplete, baseline_seed), baseline)


def averaged(
    values: Iterable[tuple[Where, pd.Series]], keys: Sequence[str], name: str, scale: float = 1
) -> pd.DataFrame:
    """Means of values by prompt, over the benchmarks of what shares `keys`, each weighing alike:
    `keys`, benchmarks (how many), n, `name`, low, high (95 % bootstrap within benchmarks).
    """
    groups: dict[tuple[Any, ...], dict[str, pd.Series]] = {}
    for where, own in values:
        groups.setdefault(tuple(where[key] for key in keys), {})[str(where["benchmark"])] = own
    rows = []
    for key, of in groups.items():
        mean, low, high, n = mean_over_benchmarks(of)
        rows.append([*key, len(of), n, *(scale * value for value in (mean, low, high))])
    return pd.DataFrame(rows, columns=[*keys, "benchmarks", "n", name, "low", "high"])


def mean_over_benchmarks(values: Mapping[str, pd.Series]) -> MeanInterval:
    """The mean of the benchmarks' means, each weighing alike, with a 95 % bootstrap interval.

    Prompts are drawn within each benchmark. Benchmarks of the same prompt ids, as AlpacaEval and
    AlpacaEval 2, are drawn together, as their answers are the same ones.

    Args:
        values: of the prompts of each benchmark, by prompt id.
    """
    same: dict[tuple[Hashable, ...], list[pd.Series]] = {}
    for own in map(pd.Series.dropna, values.values()):
        same.setdefault(tuple(sorted(own.index)), []).append(own)
    groups = [sum(own[1:], own[0]) / len(own) for own in same.values()]
    weights = [len(own) for own in same.values()]
    found = bootstrap_strata(groups, seed=0, weights=weights)
    return found._replace(n=sum(len(own) for several in same.values() for own in several))


def table_of(sides: Sequence[Side], baseline: str) -> pd.DataFrame:
    """A row a side; shares in percent."""
    if not sides:
        raise JoinError(f"No method but the baseline {baseline!r} was judged.")
    rows = []
    for side in sides:
        found = side.win_rate()
        rows.append(
            side.where
            | {"n": found.share.n, "wins": found.wins, "ties": found.ties, "losses": found.losses}
            | {"win_rate": 100 * found.share.mean}
            | {"low": 100 * found.share.low, "high": 100 * found.share.high}
            | {"p_sign": found.sign.p}
            | {"p_wilcoxon": found.wilcoxon.p if found.wilcoxon else math.nan, "note": found.note}
        )
    return pd.DataFrame(rows)


def wins_of(sides: Iterable[Side]) -> list[tuple[Where, pd.Series]]:
    return [(side.where, side.answers["win"]) for side in sides]


@contextlib.contextmanager
def naming(where: Where) -> Iterator[None]:
    """Names the side in the JoinErrors raised inside."""
    try:
        yield
    except JoinError as error:
        side = ", ".join(f"{name} {value}" for name, value in where.items())
        raise JoinError(f"{side}: {error}") from None
