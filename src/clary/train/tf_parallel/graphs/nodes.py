"""A graph's nodes without TensorFlow, for planning.

Where: `placement` makes the graph of a traced step; `levels`, `work`, `timetable` and `plan` read it. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

NO_OPERATION = "NoOp"


@dataclass(frozen=True)
class Output:
    """One result of an operation.

    Args:
        node: name of the operation.
        index: index among the operation's results.
    """

    node: str
    index: int

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"


@dataclass(frozen=True)
class Node:
    """An operation.

    Args:
        kind: TensorFlow's name of the operation's type.
        inputs: results that are its inputs, in order.
        controls: names of operations that must run before it.
        part: the partition that runs it; None for constants and operations outside of the model, which every rank
            that needs their results runs.
        has_effect: whether it has effects beyond its results, so that it must run exactly once.
        is_fed: whether its value comes from outside: an argument of the step, or a variable.
    """

    name: str
    kind: str
    inputs: tuple[Output, ...] = ()
    controls: tuple[str, ...] = ()
    part: int | None = None
    has_effect: bool = False
    is_fed: bool = False


class Graph:
    """Operations in topological order: each after its inputs and controls.

    Args:
        nodes: in any order.

    Raises: ValueError for a cycle, or for a missing operation.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes: dict[str, Node] = {}
        joined: dict[str, tuple[str, ...]] = {}
        for node in _in_order(nodes):
            controls = tuple(name for control in node.controls for name in joined.get(control, (control,)))
            if node.kind == NO_OPERATION:  # it only groups its control inputs
                joined[node.name] = controls
            self.nodes[node.name] = replace(node, controls=controls)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def ancestors(self, names: Iterable[str]) -> set[str]:
        """Return these operations, and all operations on which they depend by their inputs."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [one.node for one in self.nodes[name].inputs]
        return found

    def digest(self, names: Iterable[str]) -> str:
        """Return a digest of these operations' names, kinds, parts and inputs, for comparison between ranks.

        Values from outside are numbered instead of named, since names of captured variables may contain
        process-specific numbers.
        """
        wanted = set(names)
        fed = [name for name, node in self.nodes.items() if name in wanted and node.is_fed]
        known = {name: f"fed {number}" for number, name in enumerate(fed)}
        lines = [
            f"{known.get(name, name)} {node.kind} {node.part} "
            + " ".join(f"{known.get(one.node, one.node)}:{one.index}" for one in node.inputs)
            for name, node in self.nodes.items()
            if name in wanted
        ]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _in_order(nodes: Sequence[Node]) -> list[Node]:
    """Sort the nodes so that each follows its inputs and controls."""
    by_name = {node.name: node for node in nodes}
    found: dict[str, Node] = {}
    for first in nodes:
        waiting, opened = [first.name], set()
        while waiting:
            name = waiting[-1]
            if name not in by_name:
                raise ValueError(f"{waiting[-2]} waits for {name}, which is not in the graph")
            needs = [one.node for one in by_name[name].inputs] + list(by_name[name].controls)
            missing = [one for one in needs if one not in found]
            if name in found or not missing:
                found.setdefault(name, by_name[name])
                waiting.pop()
            elif name in opened:
                raise ValueError(f"{name} waits for itself, by way of {missing[0]}")
            else:
                opened.add(name)
                waiting += missing
    return list(found.values())
