"""Backward passes in two halves: the gradient of the input first, the gradients of the weights later, in idle time.

Where: `stage` runs these for the actions I and W of a schedule.

[Note: halves] The autograd graph is walked from the outputs to its leaves. A node that leads to an input of the stage
is on the *spine*. A *joint* is a spine node with an edge to nodes that lead to weights alone: for example, the node of
a matrix product, which has one edge to the layer before and one edge to the weight. The first half runs autograd for
the inputs alone, so that the engine skips the products for weights, and keeps the gradient that each joint receives.
The second half starts at each joint with this gradient and runs to its weights. No spine node is computed twice.

If several joints lead to one weight, second halves at each of them could count its gradient twice, since one joint may
lead to the other; so the first half computes such a gradient as a whole. It also computes the gradients behind a joint
that is a function written in Python, since such a function computes all its gradients at once and may communicate.

A hook on a tensor that is the output of a joint runs in both halves; a module with non-reentrant checkpointing is
recomputed for each of its joints. If that matters, use a schedule with whole backward passes.
Source: torch.distributed.pipelining's public notes on zero-bubble schedules, for the idea.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge

Node = Any
REENTRANT = "CheckpointFunctionBackward"  # node that calls autograd itself, possible in a whole backward pass only


@dataclass
class WeightHalf:
    """The second half of a backward pass: the gradients of weights.

    Args:
        parts: for every joint, and for outputs that do not lead to an input: the nodes at which autograd starts, their
            gradients, and the weights whose gradients it computes.
        whole: weights whose gradients the first half has computed.
    """

    parts: list[tuple[list[Any], list[torch.Tensor], list[torch.Tensor]]] = field(default_factory=list)
    whole: list[torch.Tensor] = field(default_factory=list)

    def run(self) -> None:
        """Add the gradients of the weights to their `grad`, and release the graph."""
        for edges, gradients, weights in self.parts:
            torch.autograd.backward(edges, gradients, inputs=weights)
        self.parts.clear()


def backward_input(
    outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> WeightHalf | None:
    """Run the first half: add the gradients of `inputs` to their `grad`.

    Args:
        outputs: tensors of any shapes that require a gradient.
        gradients: gradients of the outputs, of the same shapes.
        inputs: leaves that require a gradient.
    Returns: the second half, which keeps the graph; None if the graph cannot be split, and no gradient was computed.
    """
    graph = _Graph(outputs, inputs)
    if graph.is_indivisible:
        return None
    half = WeightHalf(whole=[node.variable for node in graph.whole])
    caught: dict[Node, Sequence[torch.Tensor | None]] = {}
    served = [*inputs, *half.whole]
    if served:
        handles = [joint.register_prehook(_catcher(caught, joint)) for joint in graph.weights_of]
        try:
            torch.autograd.backward(outputs, gradients, inputs=served, retain_graph=True)
        finally:
            for handle in handles:
                handle.remove()
    apart = [
        (output, gradient)
        for output, gradient in zip(outputs, gradients, strict=True)
        if get_gradient_edge(output).node not in graph.spine
    ]
    if apart and graph.apart:
        half.parts.append(
            ([output for output, _ in apart], [one for _, one in apart], [node.variable for node in graph.apart])
        )
    for joint, weights in graph.weights_of.items():  # last layer first, as autograd does
        given = [(place, one) for place, one in enumerate(caught.get(joint, ())) if one is not None]
        if given:
            edges = [GradientEdge(joint, place) for place, _ in given]
            half.parts.append((edges, [one for _, one in given], [node.variable for node in weights]))
    return half


class _Graph:
    """Spine, joints and weights of a backward pass; see [Note: halves].

    spine: nodes that lead to an input. weights_of: for each joint, the leaves to which no other joint leads. apart:
    leaves to which only outputs off the spine lead. whole: leaves whose gradients the first half computes.
    is_indivisible: whether the graph has a node that must run in a whole backward pass.
    """

    def __init__(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        ends = {get_gradient_edge(one).node for one in inputs}
        roots = _roots(outputs)
        order = _walk(roots)
        self.is_indivisible = any(node.name() == REENTRANT for node in order)
        self.spine: set[Node] = set()
        leaves: dict[Node, frozenset[Node]] = {}  # node off the spine -> weights to which it leads
        behind: dict[Node, frozenset[Node]] = {}  # joint -> weights behind it off the spine
        for node in order:
            children = _children(node)
            if node in ends or any(child in self.spine for child in children):
                self.spine.add(node)
                behind[node] = frozenset().union(*(leaves[child] for child in children if child not in self.spine))
            else:
                own = {node} if hasattr(node, "variable") else set()
                leaves[node] = frozenset(own).union(*(leaves[child] for child in children))
        apart: frozenset[Node] = frozenset().union(*(leaves[root] for root in roots if root not in self.spine))
        num_uses: dict[Node, int] = dict.fromkeys(apart, 1)
        for found in behind.values():
            for leaf in found:
                num_uses[leaf] = num_uses.get(leaf, 0) + 1
        at_once = {leaf for node, found in behind.items() if isinstance(node, BackwardCFunction) for leaf in found}
        whole = {leaf for leaf, count in num_uses.items() if count > 1} | at_once
        place = {node: number for number, node in enumerate(order)}
        self.whole = sorted(whole, key=place.__getitem__)
        self.apart = sorted(apart - whole, key=place.__getitem__)
        self.weights_of = {
            joint: sorted(behind[joint] - whole, key=place.__getitem__)
            for joint in reversed(order)
            if behind.get(joint, whole) - whole
        }


def _catcher(caught: dict[Node, Sequence[torch.Tensor | None]], joint: Node) -> Callable[[Any], None]:
    def catch(gradients: Sequence[torch.Tensor | None]) -> None:
        caught[joint] = gradients

    return catch


def _roots(outputs: Sequence[torch.Tensor]) -> list[Node]:
    return [get_gradient_edge(output).node for output in outputs]


def _children(node: Node) -> list[Node]:
    return [child for child, _ in node.next_functions if child is not None]


def _walk(roots: Sequence[Node]) -> list[Node]:
    """Return all nodes reachable from the roots, each after the nodes to which it leads."""
    order: dict[Node, None] = {}
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order[node] = None
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((child, False) for child in _children(node))
    return list(order)
