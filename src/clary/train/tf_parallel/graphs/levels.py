"""Levels of operations: a level counts the exchanges between ranks that precede the operation.

Where: `plan` calls it once for every traced step; a rank's operations of one level become one function.

[Note: levels] The level of an operation is the highest level of its inputs, where an input from another rank counts one
more. An operation outside of the model runs on every rank that needs it; all its inputs from the model count as from
another rank, even on the rank that computed them, so that all ranks compute the same levels. With two partitions in a
row:

    level 0  forward pass of part 0                    rank 0
    level 1  forward pass of part 1                    rank 1
    level 2  loss, on both; backward pass of part 1    ranks 0 and 1
    level 3  backward pass of part 0                   rank 0

An operation runs at the level at which its result is needed: a variable is read at the level of its use, not at level
0, where a later microbatch could read it before an earlier microbatch has changed it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from clary.train.tf_parallel.graphs.nodes import Graph, Node

READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})


def find_levels(graph: Graph) -> dict[str, int]:
    """Return the level of every operation, by its name; see [Note: levels]."""
    levels: dict[str, int] = {}
    for node in graph.nodes.values():
        before = [levels[one.node] + _is_far(graph[one.node], node) for one in node.inputs]
        # Control dependencies matter within a rank alone, since effects are not shared between ranks.
        before += [levels[name] for name in node.controls if graph[name].part == node.part]
        levels[node.name] = max(before, default=0)
    users: dict[str, list[tuple[Node, bool]]] = defaultdict(list)
    for node in graph.nodes.values():
        for one in node.inputs:
            users[one.node].append((node, _is_far(graph[one.node], node)))
        for name in node.controls:
            if graph[name].part == node.part:
                users[name].append((node, False))
    for node in reversed(graph.nodes.values()):
        if users[node.name] and (not node.has_effect or node.kind in READS):
            latest = min(levels[user.name] - is_far for user, is_far in users[node.name])
            levels[node.name] = max(levels[node.name], latest)
    return levels


def _is_far(maker: Node, user: Node) -> bool:
    """Return whether a result counts as from another rank."""
    return maker.part is not None and maker.part != user.part


def held_back(graph: Graph, levels: dict[str, int], changed: Mapping[str, int]) -> list[tuple[int, int, int]]:
    """Return the levels that must wait for the previous microbatch, since it changes a variable that they read.

    Args:
        changed: by operation, the number that identifies the model variable that the operation reads or writes.

    Returns: (part, reading level, writing level) for each write later than a read.
    """
    reads: dict[int, int] = {}
    writes: dict[int, tuple[int, int]] = {}
    for name, variable in changed.items():
        node = graph[name]
        if node.part is None:
            continue
        reads[variable] = min(reads.get(variable, levels[name]), levels[name])
        if node.has_effect and node.kind not in READS:
            writes[variable] = (node.part, max(writes.get(variable, (0, 0))[1], levels[name]))
    return sorted(
        {(part, reads[variable], level) for variable, (part, level) in writes.items() if reads[variable] < level}
    )
