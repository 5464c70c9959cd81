"""A person judges some pairs without seeing labels or scores: does the audit find the wrong ones?

Pairs are drawn in strata of suspicion, so that few verdicts say something of all levels, and each
is weighted by how many pairs it stands for. A verdict is kept as a line of JSON.

    blind_check/pairs.json      which pairs are shown, on which side the chosen answer stands
    blind_check/verdicts.jsonl  one line a verdict: pair, preferred side or neither, who, when, on
                                which draw; without a side where the last one was taken back
    blind_check/verdicts.lines.json  how many lines it has at least (`plc_core.storage.logs`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from filelock import FileLock
from numpy.typing import NDArray
from scipy.stats import beta

from plc_core.storage.cache import content_hash
from plc_core.storage.files import RunError, read_json, remedy, write_json
from plc_core.storage.logs import append_entries, read_entries

Verdict = Literal["left", "right", "neither"]
VERDICTS: tuple[Verdict, ...] = ("left", "right", "neither")
EDGES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Of the strata of p_flip."""
_FOLDER = "blind_check"
_LEVEL = 0.95


@dataclass(frozen=True)
class Shown:
    """One pair of a blind check."""

    pair_id: str
    chosen_left: bool  # whether the answer labelled as preferred stands on the left
    stratum: int
    stands_for: float  # pairs of the stratum for each one shown


def draw(
    pair_ids: Sequence[str], p_flip: NDArray[np.float64], count: int = 50, seed: int = 0
) -> list[Shown]:
    """Choose `count` pairs, as many of each stratum as there are, in random order and sides.

    Args:
        pair_ids, p_flip: [pairs].
        count: pairs to show; all of them where there are fewer.
    """
    rng = np.random.default_rng(seed)
    stratum = np.clip(np.searchsorted(EDGES, p_flip, side="right") - 1, 0, len(EDGES) - 2)
    members = [np.flatnonzero(stratum == s) for s in range(len(EDGES) - 1)]
    quota = _shared_out(min(count, len(pair_ids)), [len(m) for m in members])
    shown = [
        Shown(pair_ids[row], bool(rng.random() < 0.5), s, len(m) / wanted)
        for s, (m, wanted) in enumerate(zip(members, quota, strict=True))
        if wanted
        for row in rng.choice(m, wanted, replace=False)
    ]
    return [shown[place] for place in rng.permutation(len(shown))]


def _shared_out(count: int, sizes: Sequence[int]) -> list[int]:
    """As equal shares of `count` as the sizes allow."""
    quota = [0] * len(sizes)
    while count > sum(quota):
        open_ones = [s for s, size in enumerate(sizes) if quota[s] < size]
        if not open_ones:
            break
        smallest = min(open_ones, key=lambda s: (quota[s], -s))
        quota[smallest] += 1
    return quota


class BlindCheck:
    """The blind check of one audit, in its run's folder."""

    def __init__(self, run: Path) -> None:
        self.folder = run / _FOLDER
        self._pairs = self.folder / "pairs.json"

    def start(self, shown: Sequence[Shown]) -> None:
        """Keep which pairs are shown; those of an earlier check stay where there are verdicts.

        Raises:
            RunError: where a check has begun, or the folder cannot be written.
        """
        if len(self.verdicts()):
            raise RunError(f"{self.folder} holds a check that has begun; go on with it.")
        self.folder.mkdir(exist_ok=True)
        write_json(self._pairs, {"shown": [vars(pair) for pair in shown]})

    def shown(self) -> list[Shown]:
        """The pairs of the check in their order; none before `start`.

        Raises:
            RunError: where the file is damaged, or is missing though there are verdicts.
        """
        path = self._pairs
        if not path.exists():
            if count := len(self.verdicts()):
                raise RunError(
                    f"{path} is missing, so the verdicts ({count}) count for nothing. Put a copy "
                    "of it back; without one, delete the folder and check anew."
                )
            return []
        try:
            return [Shown(**row) for row in read_json(path)["shown"]]
        except (KeyError, TypeError) as error:
            raise RunError(
                f"{path} does not hold a blind check ({error}). {remedy(path)}"
            ) from None

    def add(self, pair_id: str, verdict: Verdict, who: str = "") -> None:
        """Keep one verdict; a later one of the same person on the pair replaces it."""
        self._append(pair_id, verdict, who)

    def take_back(self, pair_id: str, who: str = "") -> None:
        """Forget the person's last verdict on the pair: the one before it holds again, if any."""
        self._append(pair_id, None, who)

    def _append(self, pair_id: str, verdict: Verdict | None, who: str) -> None:
        row = {"pair_id": pair_id, "verdict": verdict, "who": who}
        if (drawn := self._draw()) is not None:
            row["draw"] = drawn
        row["at"] = datetime.now(UTC).isoformat(timespec="seconds")
        path = self.folder / "verdicts.jsonl"
        lock = FileLock(path.with_suffix(".lock"))
        try:
            lock.acquire()
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}.") from None
        try:
            append_entries(path, [row])
        finally:
            lock.release()

    def verdicts(self) -> pd.DataFrame:
        """The last verdict of each person on each pair: pair_id, verdict, who, at.

        In the order in which they were given, without those that were taken back.

        Raises:
            RunError: for a line that is damaged, where lines are gone, and where the pairs are of
                another draw, whose sides may be others.
        """
        given: dict[tuple[str, str], list[int]] = {}
        path = self.folder / "verdicts.jsonl"
        rows = [line.content for line in read_entries(path, "verdict", _verdict)]
        for place, row in enumerate(rows):
            held = given.setdefault((row["pair_id"], row["who"]), [])
            if row["verdict"] is None:
                del held[-1:]
            elif not held or rows[held[-1]]["verdict"] != row["verdict"]:  # not sent twice
                held.append(place)
        last = sorted(held[-1] for held in given.values() if held)
        drawn = self._draw()
        if drawn is not None and any(rows[n].get("draw") not in (None, drawn) for n in last):
            raise RunError(
                f"{self._pairs} is of another draw than the verdicts in {path} are of: it is an "
                "earlier copy. Put that of the verdicts back; without one, delete the folder "
                f"{self.folder} and check anew."
            )
        names = ["pair_id", "verdict", "who", "at"]
        return pd.DataFrame([rows[place] for place in last], columns=names)

    def _draw(self) -> str | None:
        """8 hex digits of which pairs are shown on which sides; None before `start`.

        A verdict says on which side an answer is better, and holds for one draw alone.
        """
        if not self._pairs.exists():
            return None
        return content_hash([vars(pair) for pair in self.shown()])[:8]

    def checked(self) -> pd.DataFrame:
        """One row a pair that was judged: pair_id, stratum, stands_for, reversed, neither.

        `reversed` is the share of the verdicts with a preference that are against the label; NaN
        where none has one.
        """
        shown = {pair.pair_id: pair for pair in self.shown()}
        rows = []
        for pair_id, verdicts in self.verdicts().groupby("pair_id", sort=False)["verdict"]:
            if (pair := shown.get(str(pair_id))) is None:
                continue
            for_label = "left" if pair.chosen_left else "right"
            sides = verdicts[verdicts != "neither"]
            rows.append(
                {
                    "pair_id": pair.pair_id,
                    "stratum": pair.stratum,
                    "stands_for": pair.stands_for,
                    "reversed": float((sides != for_label).mean()) if len(sides) else np.nan,
                    "neither": float((verdicts == "neither").mean()),
                }
            )
        names = ["pair_id", "stratum", "stands_for", "reversed", "neither"]
        return pd.DataFrame(rows, columns=names)


def _verdict(row: Any) -> dict[str, Any]:
    """A line as it was added; ValueError where it is something else."""
    names = ("pair_id", "who", "at")
    if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in names):
        raise ValueError(f"it should hold {', '.join(names)} and verdict")
    if row.get("verdict", "") not in (*VERDICTS, None):
        raise ValueError(f"the verdict {row.get('verdict')!r} is not known")
    return row


def verified(checked: pd.DataFrame, p_flip: Mapping[str, float]) -> pd.DataFrame:
    """What people found, a row a stratum of suspicion and one of all pairs.

    Columns: p_flip (the stratum), pairs (with a preference), expected (mean p_flip of those),
    reversed (share against the label; over strata weighted by what a pair stands for), low and
    high (95 %, Clopper and Pearson; of all pairs from the strata's Beta posteriors under Jeffreys'
    prior), neither (share of verdicts without a preference).
    """
    rows, totals = [], []
    rng = np.random.default_rng(0)
    for s in sorted(checked["stratum"].unique().tolist()):
        part = checked[checked["stratum"] == s]
        known = part.dropna(subset="reversed")
        n, k = len(known), float(known["reversed"].sum())
        expected = np.mean([p_flip[i] for i in known["pair_id"]]) if n else np.nan
        low, high = _clopper_pearson(k, n)
        stratum = f"{EDGES[s]:g} to {EDGES[s + 1]:g}"
        rows.append(
            {
                "p_flip": stratum,
                "pairs": n,
                "expected": expected,
                "reversed": k / n if n else np.nan,
                "low": low,
                "high": high,
                "neither": part["neither"].mean(),
            }
        )
        # Every pair of the check stands for as many of its stratum, whether it was judged yet.
        weight = float(part["stands_for"].iloc[0]) * len(part)
        totals.append((weight, expected, k, n, rng.beta(k + 0.5, n - k + 0.5, 4000)))
    if totals:
        weights = np.array([t[0] for t in totals]) / sum(t[0] for t in totals)
        draws = weights @ np.stack([t[4] for t in totals])
        low, high = np.quantile(draws, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
        shares = [t[2] / t[3] if t[3] else np.nan for t in totals]
        rows.append(
            {
                "p_flip": "all pairs",
                "pairs": int(sum(t[3] for t in totals)),
                "expected": float(weights @ np.array([t[1] for t in totals])),
                "reversed": float(weights @ np.array(shares)),
                "low": float(low),
                "high": float(high),
                "neither": float(checked["neither"].mean()),
            }
        )
    columns = ["p_flip", "pairs", "expected", "reversed", "low", "high", "neither"]
    return pd.DataFrame(rows, columns=columns)


def _clopper_pearson(k: float, n: int) -> tuple[float, float]:
    if not n:
        return 0.0, 1.0
    tail = (1 - _LEVEL) / 2
    low = float(beta.ppf(tail, k, n - k + 1)) if k > 0 else 0.0
    high = float(beta.ppf(1 - tail, k + 1, n - k)) if k < n else 1.0
    return low, high
