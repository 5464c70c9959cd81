"""What several annotators said of a pair: votes from their spellings, and groups of agreement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pandas as pd

from plc_core.data.cells import NOTHING
from plc_core.data.pairs import DataError, Pairs

Side = Literal["a", "b", "tie"]
VoteGroup = Literal["unanimous", "divergent", "tie-majority"]

VOTES = ("chosen", "rejected", "tie")
"""What a vote in the schema may be, relative to the observed label."""

VOTE_GROUPS: tuple[VoteGroup, ...] = ("unanimous", "divergent", "tie-majority")

_SPELLINGS: dict[str, Side] = {
    "a": "a",
    "b": "b",
    "tie": "tie",
    "a-is-clearly-better": "a",
    "a-is-slightly-better": "a",
    "b-is-slightly-better": "b",
    "b-is-clearly-better": "b",
}


def is_missing(vote: object) -> bool:
    """Whether a vote is what files write for none: null, NaN, an empty text, or "None"."""
    if isinstance(vote, str):
        return vote.strip().lower() in NOTHING
    return vote is None or vote != vote


def parse_vote(text: object) -> Side:
    """The side that a vote is for: MultiPref's five answers, or a, b and tie, in any case.

    How strong the preference was is not kept: the groups count directions.

    Raises:
        DataError: for anything else; the vote is quoted.
    """
    side = _SPELLINGS.get(text.strip().lower()) if isinstance(text, str) else None
    if side is None:
        raise DataError(
            f"The vote {text!r} is not known: expected a, b or tie, or one of MultiPref's "
            "A-is-clearly-better, A-is-slightly-better, Tie, B-is-slightly-better, "
            "B-is-clearly-better."
        )
    return side


def is_level(votes: Sequence[str] | None) -> bool:
    """Whether there are votes and they are level, so that the pair prefers nothing."""
    known = [] if votes is None else list(votes)
    return bool(known) and known.count("chosen") == known.count("rejected")


def vote_group(votes: Sequence[str] | None) -> VoteGroup | None:
    """How far the annotators of one pair agree.

    The paper (appendix "MultiPref Human-Disagreement Dataset") speaks of full agreement, minority
    disagreement and ties selected most frequently, for four votes. The rule here, for any number
    of at least two:

    - unanimous: all votes are for the same answer;
    - tie-majority: ties are strictly more frequent than the votes for either answer, so 4 ties,
      3 ties of 4, and 2 ties beside one vote for each answer;
    - divergent: the rest, so 3-1, 2-2, and two ties level with two votes for one answer.

    Fewer than two votes can neither agree nor disagree: they are in no group (None).

    Args:
        votes: chosen, rejected or tie, one an annotator; null for none.

    Raises:
        DataError: for a vote of another name; it is quoted.
    """
    votes = [] if votes is None else list(votes)
    for vote in votes:
        if vote not in VOTES:
            raise DataError(f"The vote {vote!r} is not known: expected chosen, rejected or tie.")
    if len(votes) < 2:
        return None
    chosen, rejected, ties = (votes.count(name) for name in VOTES)
    if len(votes) in (chosen, rejected):
        return "unanimous"
    return "tie-majority" if ties > max(chosen, rejected) else "divergent"


def vote_groups(pairs: Pairs) -> pd.DataFrame:
    """The group of each pair by the rule of `vote_group`, in the order of the pairs.

    Returns:
        One row a pair: pair_id, votes (their number), group (null for fewer than two votes).

    Raises:
        DataError: for a vote that is not chosen, rejected or tie; it is quoted with its pair.
    """
    ids: list[str] = []
    counts: list[int] = []
    groups: list[VoteGroup | None] = []
    for batch in pairs.batches(["pair_id", "votes"]):
        rows = zip(batch["pair_id"].to_pylist(), batch["votes"].to_pylist(), strict=True)
        for pair_id, votes in rows:
            try:
                groups.append(vote_group(votes))
            except DataError as error:
                raise DataError(f"Pair {pair_id}: {error}") from None
            ids.append(pair_id)
            counts.append(len(votes or ()))
    return pd.DataFrame(
        {
            "pair_id": pd.Series(ids, dtype="str"),
            "votes": pd.Series(counts, dtype="int64"),
            "group": pd.Series(groups, dtype="str"),
        }
    )


def group_counts(groups: pd.DataFrame) -> dict[str, int]:
    """How many pairs of a table of `vote_groups` each group has, and how many are in none."""
    counts = groups["group"].value_counts()
    return {name: int(counts.get(name, 0)) for name in VOTE_GROUPS} | {
        "no group": int(groups["group"].isna().sum())
    }
