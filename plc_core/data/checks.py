"""Rules that look at all pairs together: duplicates, contradictions, cycles, prompts in two splits.

They work on a few numbers a pair, never on texts, so that a million pairs need little memory.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from plc_core.data.dialogues import plain_text

Numbers = NDArray[Any]
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Found:
    """The pairs under a rule, by their number, and why: a reason for each, made when asked for."""

    members: Numbers
    reason: Callable[[int], str]  # of the place in `members`


class Facts:
    """What the rules need of every pair: 64-bit hashes of its texts, its split and its row."""

    def __init__(self) -> None:
        self._columns = {
            name: array("Q") for name in ("pair", "prompt", "chosen", "rejected", "row")
        }
        self._split, self._file = array("L"), array("L")
        self.splits: list[str] = []
        self.files: list[str] = []

    def add(self, pair: dict[str, Any], file: str, row: int) -> None:
        """Take the facts of one pair."""
        turns = [(turn["role"], plain_text(turn["content"])) for turn in pair["prompt"]]
        self._columns["pair"].append(int(pair["pair_id"], 16))
        self._columns["prompt"].append(_hash(repr(turns)))
        self._columns["chosen"].append(_hash(plain_text(pair["chosen"])))
        self._columns["rejected"].append(_hash(plain_text(pair["rejected"])))
        self._columns["row"].append(row)
        self._split.append(_number_of(pair["split"], self.splits))
        self._file.append(_number_of(file, self.files))

    def __len__(self) -> int:
        return len(self._split)

    def __getitem__(self, name: str) -> Numbers:
        return np.frombuffer(self._columns[name], np.uint64) if len(self) else np.empty(0, "u8")

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


def duplicates(facts: Facts, alive: Numbers) -> Found:
    """Pairs whose every character was read before."""
    return _repeated(facts, alive, facts["pair"], "the same pair as {}")


def near_duplicates(facts: Facts, alive: Numbers) -> Found:
    """Pairs read before but for what the eye does not see; exact repetitions are `duplicates`."""
    key = _mixed(facts["prompt"], facts["chosen"], facts["rejected"])
    found = _repeated(facts, alive, key, "as {} but for white space")
    exact = np.isin(found.members, duplicates(facts, alive).members)
    places = np.flatnonzero(~exact)
    return Found(found.members[places], lambda place: found.reason(int(places[place])))


def contradictions(facts: Facts, alive: Numbers) -> Found:
    """Pairs whose two answers also occur the other way round under the same prompt."""
    members = np.flatnonzero(alive & (facts["chosen"] != facts["rejected"]))
    chosen, rejected = facts["chosen"][members], facts["rejected"][members]
    low, high = np.minimum(chosen, rejected), np.maximum(chosen, rejected)
    group = _groups(_mixed(facts["prompt"][members], low, high))
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
    """Pairs on a cycle of three or more answers, each preferred to the next, under one prompt."""
    members = np.flatnonzero(alive & (facts["chosen"] != facts["rejected"]))
    prompts = _groups(facts["prompt"][members])
    members = members[np.bincount(prompts)[prompts] >= 3] if len(members) else members
    prompt = facts["prompt"][members]
    nodes = np.concatenate(
        [_mixed(prompt, facts["chosen"][members]), _mixed(prompt, facts["rejected"][members])]
    )
    node = _groups(nodes)
    start, end = node[: len(members)], node[len(members) :]
    if not len(members):
        return Found(members, lambda _: "")
    size = int(node.max()) + 1
    graph = coo_array((np.ones(len(members), np.int8), (start, end)), shape=(size, size))
    _, component = connected_components(graph, connection="strong")
    within = np.flatnonzero(component[start] == component[end])
    length = _cycle_lengths(start[within].tolist(), end[within].tolist())
    on_cycle = np.flatnonzero(length >= 3)
    length = length[on_cycle]
    return Found(
        members[within[on_cycle]],
        lambda place: f"one of {length[place]} preferences that form a cycle",
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


def splitmix64(values: Numbers, seed: int) -> Numbers:
    """A 64-bit hash of each value under a seed, by the finaliser of splitmix64 (Steele 2014)."""
    with np.errstate(over="ignore"):
        x = values.astype(np.uint64) + np.uint64(seed + 1) * _MULTIPLIER
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


# ---- numbers -------------------------------------------------------------------------------------


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _number_of(name: str, names: list[str]) -> int:
    if name not in names:
        names.append(name)
    return names.index(name)


def _mixed(*columns: Numbers) -> Numbers:
    mixed = np.zeros_like(columns[0])
    for column in columns:
        mixed = splitmix64(mixed ^ column, 0)
    return mixed


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
    group = _groups(keys[members])
    first = _first_of_group(group, np.arange(len(members)), len(members))[group]
    again = np.flatnonzero(first < np.arange(len(members)))
    before = members[first[again]]
    return Found(members[again], lambda place: reason.format(facts.place(before[place])))


def _cycle_lengths(start: list[int], end: list[int]) -> Numbers:
    """For each edge, how many edges the shortest cycle of three or more through it has; 0: none."""
    following: dict[int, set[int]] = defaultdict(set)
    for one, other in zip(start, end, strict=True):
        following[one].add(other)
    return np.array(
        [_way_back(following, one, other) for one, other in zip(start, end, strict=True)],
        dtype=np.int64,
    )


def _way_back(following: dict[int, set[int]], one: int, other: int) -> int:
    # The edge straight back would be a contradiction, which is a rule of its own.
    distance, waiting = {other: 1}, deque([other])
    while waiting:
        node = waiting.popleft()
        for neighbour in _neighbours(following, node, skip=one if node == other else None):
            if neighbour == one:
                return distance[node] + 1
            if neighbour not in distance:
                distance[neighbour] = distance[node] + 1
                waiting.append(neighbour)
    return 0


def _neighbours(following: dict[int, set[int]], node: int, skip: int | None) -> Iterator[int]:
    return (neighbour for neighbour in following[node] if neighbour != skip)
