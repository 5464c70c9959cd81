"""Tables about where the method routed the pairs, from `visits` and `pairs` alone.

Data frames in, data frames out; nothing is read or written here. `visits` has one row a pair and
visit, `pairs` one row a pair (see `plc_core.runs`). Every analysis uses a pair's last visit. q are
routing weights, "not calibrated probabilities" (paper, section "Margin-Based Routing
Distribution"): ranking and calibration are therefore reported apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from plc_core.analysis.calibration import Calibration, calibrate
from plc_core.analysis.statistics import auroc, mann_whitney, mean_interval
from plc_core.data.slices import slices_of
from plc_core.runs.run import LENGTH_COLUMNS

STATES = ("clean", "flip", "tie")
"""The latent states of a pair, in the order of every table and figure."""

AGAINST_LENGTH, ALIKE_LENGTH = "against length", "-|length difference|"
"""What the control without a policy is called beside the scores for flips and for ties."""

MARKERS = ("unmarked", "marked", "injected tie")
"""Groups by the injected corruption's marker, where the true state is unknown."""


def join_last_visits(visits: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """One row for every row of `pairs`, in its order, with the pair's last visit beside it.

    Pairs never visited keep NaN in the visit columns, so nothing is lost. Raises ValueError for a
    missing pair_id column, a pair_id that occurs twice in `pairs`, and visits to unknown pairs.
    """
    _require(visits, ["pair_id", "step"], "visits")
    _require(pairs, ["pair_id"], "pairs")
    twice = pairs["pair_id"][pairs["pair_id"].duplicated()]
    if len(twice):
        raise ValueError(f"pairs has {len(twice):,} repeated ids, the first {twice.iloc[0]!r}.")
    last = visits.sort_values("step", kind="stable").drop_duplicates("pair_id", keep="last")
    unknown = last["pair_id"][~last["pair_id"].isin(pairs["pair_id"])]
    if len(unknown):
        raise ValueError(
            f"visits has {len(unknown):,} pairs that are not in pairs, the first "
            f"{unknown.iloc[0]!r}; the two tables are not of one run."
        )
    return pairs.merge(last, on="pair_id", how="left", validate="one_to_one")


def has_oracle(pairs: pd.DataFrame) -> bool:
    """Whether the true state of every pair is known (the embedded world only)."""
    return "oracle_state" in pairs and len(pairs) > 0 and bool(pairs["oracle_state"].notna().all())


def knows_flips(pairs: pd.DataFrame) -> bool:
    """Whether it is known which labels are reversed: by the true states, or as some were injected.

    Of one's own data as they are it is not: an unmarked pair may be reversed too, and a table of
    forecasts against "marked" would compare them with a flat 0.
    """
    return has_oracle(pairs) or ("flipped" in pairs and bool(pairs["flipped"].fillna(False).any()))


def groups(pairs: pd.DataFrame) -> pd.Series:
    """The group of each pair: its oracle state, or its corruption marker where none is known."""
    if has_oracle(pairs):
        return pairs["oracle_state"]
    _require(pairs, ["flipped"], "pairs")
    marked = pairs["flipped"].map({False: MARKERS[0], True: MARKERS[1]})
    return marked.mask(pairs["injected_tie"], MARKERS[2]) if _has_ties(pairs) else marked


def group_names(pairs: pd.DataFrame) -> tuple[str, ...]:
    """The names `groups` can take, in display order."""
    return STATES if has_oracle(pairs) else MARKERS if _has_ties(pairs) else MARKERS[:2]


def _has_ties(pairs: pd.DataFrame) -> bool:
    return "injected_tie" in pairs and bool(pairs["injected_tie"].any())


def longer(pairs: pd.DataFrame) -> pd.Series | None:
    """Tokens that each chosen answer has more than the rejected one; None where not known.

    The control of every ranking: what the lengths alone say needs neither policy nor training.
    """
    if not set(LENGTH_COLUMNS) <= set(pairs):
        return None
    chosen, rejected = (pd.to_numeric(pairs[name], errors="coerce") for name in LENGTH_COLUMNS)
    more = chosen.astype("float64") - rejected.astype("float64")
    return None if more.isna().all() else more


def against_length(longer: pd.Series) -> pd.Series:
    """How far each label goes against the lengths, in tokens: the score for flips.

    `longer` is by how many tokens each chosen answer is the longer one. Whether longer or shorter
    answers are preferred is read from the labels as they are, by the sign of their mean.
    """
    return longer * (-1 if longer.mean() >= 0 else 1)


def routing_by_state(visits: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Mean routing weights of each group of pairs, with 95 % t intervals.

    Columns: group, state (which q), mean, low, high, n; a group without pairs has n = 0 and NaN.
    Appendix table "Routing response under hard-pair label corruption", marked and unmarked rows.
    """
    table = _routed(visits, pairs)
    group = groups(table)
    rows = [
        {"group": name, "state": state}
        | mean_interval(table.loc[group == name, f"q_{state}"])._asdict()
        for name in group_names(pairs)
        for state in STATES
    ]
    return pd.DataFrame(rows)


def flip_ranking(visits: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """AUROC of q_flip and of -margin for flipped against clean pairs, true ties left out.

    Without a known state: swapped against unswapped pairs. Where the lengths are known, beside them
    that of `against_length`. Columns: score, auroc, low, high, n_flip, n_clean, truth, text.
    Figure "Routing response under hard-pair corruption", its AUROC.
    """
    table = _routed(visits, pairs, "margin")
    truth = "oracle state" if has_oracle(pairs) else "corruption marker"
    clean, flip = group_names(pairs)[:2]
    table = table[groups(table).isin([clean, flip])]
    positive = groups(table) == flip
    scores = {"q_flip": table["q_flip"], "-margin": -table["margin"]}
    if (more := longer(table)) is not None:
        scores[AGAINST_LENGTH] = against_length(more)
    rows = []
    for name, score in scores.items():
        area = auroc(score, positive)
        rows.append(
            {
                "score": name,
                "auroc": area.value,
                "low": area.low,
                "high": area.high,
                "n_flip": area.n_positive,
                "n_clean": area.n_negative,
                "truth": truth,
                "text": str(area),
            }
        )
    return pd.DataFrame(rows)


def flip_calibration(visits: pd.DataFrame, pairs: pd.DataFrame, bins: int = 10) -> Calibration:
    """Reliability of q_flip as a forecast of flips among all pairs, in `bins` equal bins of [0, 1].

    A true tie counts as "not flipped". Pairs without a visit or a known group are left out: all of
    them (n = 0) where `knows_flips` is false.
    """
    table = _routed(visits, pairs)
    table = table[groups(table).notna() & table["q_flip"].notna() & knows_flips(pairs)]
    return calibrate(table["q_flip"], groups(table) == group_names(pairs)[1], bins)


def posterior_calibration(visits: pd.DataFrame, pairs: pd.DataFrame, bins: int = 10) -> Calibration:
    """Reliability of p_flip at each pair's first visit, as `flip_calibration` of q_flip.

    A true tie counts as "not flipped". Pairs without a visit, a p_flip (those of the first steps)
    or a known group are left out, as in `flip_calibration`; n says how many are in.
    """
    first = visits.sort_values("step", kind="stable").drop_duplicates("pair_id")
    table = pairs.merge(first[["pair_id", "p_flip"]], on="pair_id", how="left")
    group = groups(table)
    known = (group.notna() & table["p_flip"].notna() & knows_flips(pairs)).to_numpy()
    flipped = group.isin(["flip", "marked"]).to_numpy()
    return calibrate(table["p_flip"].to_numpy()[known], flipped[known], bins)


@dataclass(frozen=True)
class TieSelectivity:
    """Weak-gap against strong-gap pairs.

    `slices`: source, slice ("bottom" or "top"), n, gap_low, gap_high, cut_ties (pairs with exactly
    the edge's gap that fell outside), and mean and median of q_tie and |margin|.
    `tests`: source, measure, then the fields of `MannWhitney` (a = bottom, b = top) and its text.
    `lengths`: the same of the answers' difference in tokens, the control that needs no policy; no
    rows where the lengths are not known. `scored` counts pairs with both scores and a visit,
    `unscored` the others.
    """

    slices: pd.DataFrame
    tests: pd.DataFrame
    lengths: pd.DataFrame
    share: float
    scored: int
    unscored: int


def tie_selectivity(
    visits: pd.DataFrame, pairs: pd.DataFrame, share: float = 0.2
) -> TieSelectivity:
    """Compare q_tie and |margin| in the bottom and top `share` of the score gap.

    The slices are those of `plc_core.data.gap_slices`, of the pairs that were visited and have
    scores: floor(share * n) pairs each, within one source, equal gaps at an edge split by a hash of
    the id, which has nothing to do with routing. `share` lies in (0, 0.5], else DataError. Section
    "Tie-State Selectivity" and its figure.
    """
    table = _routed(visits, pairs, "margin")
    scores = table.reindex(columns=["score_chosen", "score_rejected"]).astype("float64")
    table = table.assign(
        gap=(scores["score_chosen"] - scores["score_rejected"]).abs(),
        abs_margin=table["margin"].abs(),
        source=table["source"].fillna("unknown") if "source" in table else "all",
        length_difference=None if (more := longer(table)) is None else more.abs(),
    )
    usable = table[table["gap"].notna() & table["q_tie"].notna()].reset_index(drop=True)
    keys = usable.reindex(columns=["pair_id", "source", "score_chosen", "score_rejected"])
    part = slices_of(keys, share).table["slice"]
    measures = ["q_tie", "abs_margin"] + (["length_difference"] if more is not None else [])
    slices, tests = [], []
    for source in sorted(usable["source"].unique()) or ["all"]:
        of_source = usable["source"] == source
        bottom, top = (usable[of_source & (part == name)] for name in ("low", "high"))
        slices += [
            _slice_row(source, "bottom", bottom, usable[of_source]),
            _slice_row(source, "top", top, usable[of_source]),
        ]
        for measure in measures:
            test = mann_whitney(bottom[measure], top[measure])
            tests.append({"source": source, "measure": measure} | vars(test) | {"text": str(test)})
    tested = pd.DataFrame(tests)
    control = tested["measure"] == "length_difference"
    return TieSelectivity(
        pd.DataFrame(slices),
        tested[~control].reset_index(drop=True),
        tested[control].reset_index(drop=True),
        share,
        len(usable),
        len(table) - len(usable),
    )


def tie_ceiling(visits: pd.DataFrame) -> float:
    """The largest q_tie that any visit reached; NaN without visits.

    q depends on z alone (equation "posterior"), and q_tie has one peak near z = 0 whose height is
    fixed by prior and temperatures: q_tie is to be read against this height, not against 1.
    """
    _require(visits, ["q_tie"], "visits")
    return float(visits["q_tie"].max()) if len(visits) else math.nan


def _slice_row(
    source: str, name: str, part: pd.DataFrame, ranked: pd.DataFrame
) -> dict[str, object]:
    edge = part["gap"].max() if name == "bottom" else part["gap"].min()
    same = int((ranked["gap"] == edge).sum() - (part["gap"] == edge).sum())
    row: dict[str, object] = {
        "source": source,
        "slice": name,
        "n": len(part),
        "gap_low": part["gap"].min(),
        "gap_high": part["gap"].max(),
        "cut_ties": same,
    }
    for measure in ("q_tie", "abs_margin"):
        row |= {
            f"{measure}_mean": part[measure].mean(),
            f"{measure}_median": part[measure].median(),
        }
    return row


def _routed(visits: pd.DataFrame, pairs: pd.DataFrame, *more: str) -> pd.DataFrame:
    _require(visits, [*(f"q_{state}" for state in STATES), *more], "visits")
    return join_last_visits(visits, pairs)


def _require(table: pd.DataFrame, columns: Sequence[str], name: str) -> None:
    missing = [column for column in columns if column not in table]
    if missing:
        raise ValueError(f"{name} lacks the column(s) {', '.join(missing)}.")
