"""Rules that look at all pairs together: duplicates, contradictions, cycles, prompts in two splits.

They work on a few numbers a pair, never on texts, so that a million pairs need little memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from plc_core.data.staging import Facts, Numbers, mixed, splitmix64


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
    on_cycle = within[_on_longer_cycle(start[within], end[within])]
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


def _on_longer_cycle(start: Numbers, end: Numbers) -> Numbers:
    """Whether each edge of strongly connected nodes lies on a cycle of three nodes or more.

    An edge without its reversal does, as its end leads back to its start some other way. One with
    its reversal does unless every way back takes that, which is then a strong bridge: an edge that
    all paths from some root take, or all paths to it (Italiano et al. 2012).
    """
    if not len(start):
        return np.zeros(0, dtype=bool)
    nodes, both = np.unique(np.concatenate([start, end]), return_inverse=True)
    one, other = both[: len(start)], both[len(start) :]
    count = len(nodes)
    edges, edge = np.unique(one * count + other, return_inverse=True)
    one, other = np.divmod(edges, count)
    reversal = np.searchsorted(edges, other * count + one)
    reversal[reversal == len(edges)] = 0
    has_reversal = edges[reversal] == other * count + one
    if not has_reversal.any():
        return np.ones(len(start), dtype=bool)
    after, before = _neighbours(one, other, count), _neighbours(other, one, count)
    bridge = _all_pass(after, before)[other] == one
    bridge |= _all_pass(before, after)[one] == other
    return ~(has_reversal & bridge[reversal])[edge]


def _neighbours(one: Numbers, other: Numbers, count: int) -> tuple[array[int], array[int]]:
    """The other ends of each node's edges, one node after the other, and where each begins."""
    order = np.argsort(one, kind="stable")
    starts = np.searchsorted(one[order], np.arange(count + 1))
    return _integers(other[order]), _integers(starts)


def _integers(values: Numbers) -> array[int]:
    return array("i", values.astype(np.intc).tobytes())


def _all_pass(
    after: tuple[array[int], array[int]], before: tuple[array[int], array[int]]
) -> Numbers:
    """[nodes] the node u of the one edge (u, v) that all paths from a root to v take, or -1.

    A root is the first node of what is connected. Nodes are numbered as depth-first search meets
    them. Such an edge is one of the search's tree, and v is reached from no lower node by another
    edge, directly or through higher nodes: its semidominator without that edge, which path
    compression finds as in Lengauer and Tarjan (1979), in O(edges · log nodes).
    """
    number, order, parent = _searched(*after)
    count = len(order)
    least, ancestor = array("i", range(count)), array("i", [-1]) * count
    passed = np.full(count, -1)
    sources, starts = before
    for v in range(count - 1, -1, -1):
        if (above := parent[v]) < 0:
            continue
        node, lowest = order[v], v
        for place in range(starts[node], starts[node + 1]):
            other = number[sources[place]]
            if other != above:
                _compress(ancestor, least, other)
                lowest = min(lowest, least[other])
        if lowest == v:
            passed[node] = order[above]
        least[v], ancestor[v] = min(lowest, above), above
    return passed


def _searched(ends: array[int], starts: array[int]) -> tuple[array[int], array[int], array[int]]:
    """Each node's number in depth-first search, the nodes by number, and their parents' numbers."""
    number = array("i", [-1]) * (len(starts) - 1)
    order, parent, upto = array("i"), array("i"), array("i", starts)
    for root in range(len(number)):
        path = [root] if number[root] < 0 else []
        above = -1
        while path:
            node = path[-1]
            if number[node] < 0:
                number[node] = len(order)
                order.append(node)
                parent.append(above)
            place = upto[node]
            if place == starts[node + 1]:
                path.pop()
                continue
            upto[node] = place + 1
            if number[ends[place]] < 0:
                above = number[node]
                path.append(ends[place])
    return number, order, parent


def _compress(ancestor: array[int], least: array[int], node: int) -> None:
    """Let `node` point to the root of its tree, with the least value of those on the way."""
    path = []
    while (above := ancestor[node]) >= 0 and ancestor[above] >= 0:
        path.append(node)
        node = above
    for node in reversed(path):
        above = ancestor[node]
        least[node] = min(least[node], least[above])
        ancestor[node] = ancestor[above]
