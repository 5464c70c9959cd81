"""Rules that look at all pairs together: duplicates, contradictions, cycles, prompts in two splits.

They work on a few numbers a pair, never on texts, so that a million pairs need little memory.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from plc_core.data.cycles import on_longer_cycle
from plc_core.data.dialogues import plain_text
from plc_core.data.votes import is_level

Numbers: TypeAlias = NDArray[Any]
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Facts:
    """What the rules need of every pair: 64-bit hashes of its texts, its split and its row."""

    def __init__(self) -> None:
        self._columns = {
            name: array("Q") for name in ("pair", "votes", "prompt", "chosen", "rejected", "row")
        }
        self._split, self._file = array("L"), array("L")
        self._tied = array("b")
        self._splits: dict[str, int] = {}
        self._files: dict[str, int] = {}

    def add(self, pair: dict[str, Any], file: str, row: int) -> None:
        """Take the facts of one pair."""
        turns = [(turn["role"], plain_text(turn["content"])) for turn in pair["prompt"]]
        self._columns["pair"].append(int(pair["pair_id"], 16))
        self._columns["prompt"].append(_hash(repr(turns)))
        for side, reasoning in zip(("chosen", "rejected"), pair["reasoning"], strict=True):
            text = plain_text(pair[side])
            self._columns[side].append(_hash(f"{reasoning}\0{text}" if reasoning else text))
        votes = pair["votes"] or []
        self._columns["votes"].append(_hash(repr(sorted(votes))))
        self._columns["row"].append(row)
        self._tied.append(is_level(votes))
        self._split.append(self._splits.setdefault(pair["split"], len(self._splits)))
        self._file.append(self._files.setdefault(file, len(self._files)))

    def __len__(self) -> int:
        return len(self._split)

    @cached_property
    def splits(self) -> list[str]:
        """The names of the splits, by their numbers."""
        return list(self._splits)

    @cached_property
    def files(self) -> list[str]:
        """The names of the files, by their numbers."""
        return list(self._files)

    def __getitem__(self, name: str) -> Numbers:
        return np.frombuffer(self._columns[name], np.uint64) if len(self) else np.empty(0, "u8")

    @property
    def voted(self) -> Numbers:
        """Whether each pair has votes."""
        return self["votes"] != np.uint64(_hash(repr([])))

    @property
    def tied(self) -> Numbers:
        """Whether each pair's votes are level, so that its orientation says nothing."""
        return np.array(self._tied, dtype=bool)

    @property
    def split(self) -> Numbers:
        """Number of each pair's split in `splits`."""
        return np.array(self._split, np.int64)

    def split_of(self, number: int) -> int:
        """The number of a pair's split in `splits`."""
        return self._split[number]

    def place(self, number: int) -> str:
        """Where a pair was read, for a person."""
        file = f" of {self.files[self._file[number]]}" if len(self.files) > 1 else ""
        return f"row {self._columns['row'][number]:,}{file}"


def splitmix64(values: Numbers, seed: int) -> Numbers:
    """A 64-bit hash of each value under a seed, by the finaliser of splitmix64 (Steele 2014)."""
    with np.errstate(over="ignore"):
        x = values.astype(np.uint64) + np.uint64(seed + 1) * _MULTIPLIER
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def mixed(*columns: Numbers) -> Numbers:
    """One hash for each row of several columns of hashes."""
    result = np.zeros_like(columns[0])
    for column in columns:
        result = splitmix64(result ^ column, 0)
    return result


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class Found:
    """The pairs under a rule, by their number, and why: a reason for each, made when asked for."""

    members: Numbers
    reason: Callable[[int], str]  # of the place in `members`


def duplicates(facts: Facts, alive: Numbers) -> Found:
    """Pairs whose every character, and votes, were read before in the same split."""
    return _repeated(facts, alive, mixed(facts["pair"], facts["votes"]), "the same pair as {}")


def other_votes(facts: Facts, alive: Numbers) -> Found:
    """Pairs whose two answers, either way round, were read before in the split with other votes."""
    low = np.minimum(facts["chosen"], facts["rejected"])
    high = np.maximum(facts["chosen"], facts["rejected"])
    key = mixed(facts["prompt"], low, high)
    reason = "the answers of {}, with other votes"
    return _without(_repeated(facts, alive & facts.voted, key, reason), duplicates(facts, alive))


def near_duplicates(facts: Facts, alive: Numbers) -> Found:
    """Pairs read before in the same split but for what the eye does not see."""
    key = mixed(facts["prompt"], facts["chosen"], facts["rejected"])
    reason = "as {} but for line ends, Unicode form or white space"
    return _without(
        _repeated(facts, alive, key, reason), _repeated(facts, alive, facts["pair"], "")
    )


def repetitions(facts: Facts, alive: Numbers) -> Numbers:
    """How many pairs of the same id come before each pair."""
    count = np.zeros(len(facts), dtype=np.int64)
    members = np.flatnonzero(alive)
    group = _groups(facts["pair"][members])
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    count[members[order]] = np.arange(len(order)) - np.repeat(starts, sizes)
    return count


def contradictions(facts: Facts, alive: Numbers) -> Found:
    """Pairs whose two answers also occur the other way round under the same prompt.

    Pairs of level votes prefer nothing, whichever way round they were put.
    """
    members = np.flatnonzero(alive & ~facts.tied & (facts["chosen"] != facts["rejected"]))
    chosen, rejected = facts["chosen"][members], facts["rejected"][members]
    low, high = np.minimum(chosen, rejected), np.maximum(chosen, rejected)
    group = _groups(mixed(facts["prompt"][members], low, high))
    upwards = chosen < rejected
    first = {  # the first pair of each group in either direction, or len where there is none
        way: _first_of_group(group, np.flatnonzero(upwards == way), len(members))
        for way in (True, False)
    }
    other = np.where(upwards, first[False][group], first[True][group])
    both = np.flatnonzero(other < len(members))
    opposite = members[other[both]]
    return Found(
        members[both], lambda place: f"{facts.place(opposite[place])} prefers the other answer"
    )


def cycles(facts: Facts, alive: Numbers) -> Found:
    """Pairs on a cycle of three or more answers, each preferred to the next, under one prompt.

    Pairs of level votes prefer nothing and are on none.
    """
    members = np.flatnonzero(alive & ~facts.tied & (facts["chosen"] != facts["rejected"]))
    prompts = _groups(facts["prompt"][members])
    members = members[np.bincount(prompts)[prompts] >= 3] if len(members) else members
    prompt = facts["prompt"][members]
    nodes = np.concatenate(
        [mixed(prompt, facts["chosen"][members]), mixed(prompt, facts["rejected"][members])]
    )
    node = _groups(nodes)
    start, end = node[: len(members)], node[len(members) :]
    if not len(members):
        return Found(members, lambda _: "")
    size = int(node.max()) + 1
    graph = coo_array((np.ones(len(members), np.int8), (start, end)), shape=(size, size))
    _, component = connected_components(graph, connection="strong")
    within = np.flatnonzero(component[start] == component[end])
    on_cycle = within[on_longer_cycle(start[within], end[within])]
    answers = np.bincount(component)[component[start[on_cycle]]]
    return Found(
        members[on_cycle],
        lambda place: f"on a cycle of preferences among {answers[place]} answers",
    )


def split_leaks(facts: Facts, alive: Numbers) -> Found:
    """Pairs whose prompt occurs in another split too."""
    members = np.flatnonzero(alive)
    prompt, split = _groups(facts["prompt"][members]), facts.split[members]
    if not len(members):
        return Found(members, lambda _: "")
    first = _first_of_group(prompt, np.arange(len(members)), len(members))
    differs = split != split[first[prompt]]
    leaks = np.flatnonzero(np.bincount(prompt, differs)[prompt] > 0)
    other = _first_of_group(prompt, np.flatnonzero(differs), len(members))
    # The first pair of the prompt in another split than the pair's own.
    group = prompt[leaks]
    elsewhere = members[np.where(differs[leaks], first[group], other[group])]
    return Found(
        members[leaks],
        lambda place: (
            f"{facts.place(elsewhere[place])} has it in "
            f"{facts.splits[facts.split_of(elsewhere[place])]!r}"
        ),
    )


def other_splits(facts: Facts, alive: Numbers, wanted: str | None) -> Found:
    """Pairs of another split than the one asked for; none, where None is asked for."""
    number = facts.splits.index(wanted) if wanted in facts.splits else -1
    others = alive & (facts.split != number) if wanted is not None else np.zeros_like(alive)
    members = np.flatnonzero(others)
    return Found(
        members, lambda place: f"its split is {facts.splits[facts.split_of(members[place])]!r}"
    )


def not_sampled(facts: Facts, alive: Numbers, sample: int | None, seed: int) -> Found:
    """Pairs outside a sample that is the same for everybody.

    The sample holds the pairs with the smallest hash: splitmix64 of the pair's id and the seed.
    """
    members = np.flatnonzero(alive)
    if sample is None or sample >= len(members):
        return Found(members[:0], lambda _: "")
    order = np.argsort(splitmix64(facts["pair"][members], seed), kind="stable")
    left_out = np.sort(members[order[sample:]])
    return Found(left_out, lambda _: f"not among the {sample:,} pairs sampled with seed {seed}")


def _groups(keys: Numbers) -> Numbers:
    """A number for each key, the same for equal keys, from 0."""
    return np.unique(keys, return_inverse=True)[1]


def _first_of_group(group: Numbers, members: Numbers, missing: int) -> Numbers:
    """The smallest of `members` in every group; `missing` where there is none."""
    first = np.full(int(group.max()) + 1 if len(group) else 0, missing)
    np.minimum.at(first, group[members], members)
    return first


def _repeated(facts: Facts, alive: Numbers, keys: Numbers, reason: str) -> Found:
    members = np.flatnonzero(alive)
    group = _groups(mixed(keys, facts.split.astype(np.uint64))[members])
    first = _first_of_group(group, np.arange(len(members)), len(members))[group]
    again = np.flatnonzero(first < np.arange(len(members)))
    before = members[first[again]]
    return Found(members[again], lambda place: reason.format(facts.place(before[place])))


def _without(found: Found, others: Found) -> Found:
    places = np.flatnonzero(~np.isin(found.members, others.members))
    return Found(found.members[places], lambda place: found.reason(int(places[place])))
