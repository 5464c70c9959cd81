"""Which preferences lie on a cycle: edges of a directed graph, in time in proportion to them."""

from __future__ import annotations

from array import array
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[Any]


def on_longer_cycle(start: Numbers, end: Numbers) -> Numbers:
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
