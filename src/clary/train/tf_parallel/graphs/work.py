"""Work of one rank in a step: its operations, and the messages that it sends and receives.

Where: `plan` calls `own_demands` on every rank, and `find_work` after all ranks have told each other which results of
the model their operations outside of the model need. Pure; values that concern several ranks, such as the messages, are
computed equally on all ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from clary.train.tf_parallel.graphs.nodes import Graph, Output


@dataclass(frozen=True)
class Message:
    """A result of the model that one rank sends to another, once per microbatch.

    Args:
        number: index among all messages of the step, equal on all ranks.
    """

    number: int
    output: Output
    source: int
    target: int


@dataclass(frozen=True)
class Work:
    """Args: runs: names of the operations that this rank runs; messages: of all ranks."""

    runs: frozenset[str]
    messages: tuple[Message, ...]


def own_demands(graph: Graph, wanted: Iterable[Output]) -> tuple[Output, ...]:
    """Return the results of the model that a rank's operations outside of the model need, ordered by name.

    Args:
        wanted: the rank's needs: the step's results, and outputs of operations outside of the model that have effects.
    """
    found: set[Output] = set()
    seen: set[str] = set()
    waiting = list(wanted)
    while waiting:
        output = waiting.pop()
        node = graph[output.node]
        if node.part is not None:
            found.add(output)
        elif node.name not in seen:
            seen.add(node.name)
            waiting += node.inputs
    return tuple(sorted(found, key=lambda one: (one.node, one.index)))


def find_work(graph: Graph, rank: int, demands: Sequence[Collection[Output]], *, wanted: Collection[Output]) -> Work:
    """Return the work of a rank.

    Args:
        demands: `own_demands` of every rank, by rank.
        wanted: the needs of this rank, as in `own_demands`.
    """
    runs: set[tuple[str, int]] = set()
    moved: set[tuple[Output, int]] = set()
    waiting: list[tuple[Output, int]] = [(one, place) for place, asked in enumerate(demands) for one in asked]
    waiting += [(one, rank) for one in wanted]
    for node in graph.nodes.values():
        if node.part is not None and node.has_effect:
            runs.add((node.name, node.part))
            waiting += [(one, node.part) for one in node.inputs]
    while waiting:
        output, place = waiting.pop()
        node = graph[output.node]
        if node.part is not None and node.part != place:
            moved.add((output, place))
            place = node.part
        if (node.name, place) not in runs:
            runs.add((node.name, place))
            waiting += [(one, place) for one in node.inputs]
    ordered = sorted(moved, key=lambda one: (one[0].node, one[0].index, one[1]))
    messages = tuple(
        Message(number, output, _part(graph, output), target) for number, (output, target) in enumerate(ordered)
    )
    return Work(frozenset(name for name, place in runs if place == rank), messages)


def _part(graph: Graph, output: Output) -> int:
    part = graph[output.node].part
    assert part is not None, "only results of the model move"
    return part


@dataclass(frozen=True)
class Share:
    """One rank's levels and messages in a step; `order` needs the shares of all ranks.

    Args:
        receives: by level, the numbers of the messages that must arrive before the level.
        sends: by level, the numbers of the messages to send after the level.
        waits: pairs of levels: a microbatch begins the first only after the previous microbatch has ended the second.
    """

    receives: Mapping[int, tuple[int, ...]]
    sends: Mapping[int, tuple[int, ...]]
    waits: tuple[tuple[int, int], ...] = ()

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels of this rank, ascending."""
        return tuple(sorted(self.receives))
