"""Assignment of a part to every operation of a traced graph.

Where: `cutting` places variables with it, `plan` assigns operations to ranks with it.

The first of these rules that applies determines an operation's part:

    none            values from outside, constants, and operations that only group others, which exist on every rank
    the variable's  for an operation that uses a variable of the model
    its mark's      see `tracing`
    its forward's   for an operation colocated with another, as gradients are with their forward operation
    its inputs'     for any other operation inside of a model: with manual placement `default_partition`; otherwise the
                    highest part of its inputs, or else, if it uses a variable or is stateful, the part of the latest
                    marked operation
    none            outside of models: every rank that needs it runs it. Random numbers are drawn only on part 0, so
                    that all ranks have the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clary.train.tf_parallel.errors import GraphBuildError
from clary.train.tf_parallel.graphs.levels import READS
from clary.train.tf_parallel.graphs.nodes import NO_OPERATION, Graph, Node, Output
from clary.train.tf_parallel.tracing import Trace

_FED = "Placeholder"
_CONSTANT = "Const"
_COLOCATED = b"loc:@"
_DRAWS = ("Random", "ParameterizedTruncatedNormal", "TruncatedNormal", "Multinomial", "Rng", "StatefulUniform")


@dataclass(frozen=True)
class Placed:
    """A graph with its parts.

    Args:
        used: maps the name of an operation to the number of the model variable that the operation uses.
    """

    graph: Graph
    used: Mapping[str, int]


def place(
    graph: Any,
    trace: Trace,
    owners: Mapping[int, int],
    *,
    default: int | None = None,
    handles: Mapping[int, int],
) -> Placed:
    """Convert a TensorFlow graph to nodes, with the part of each operation.

    Args:
        trace: the trace of this graph.
        owners: part of each variable, by number; empty while parts are unknown.
        default: part of a model's operations without a mark; None derives it from their inputs.
        handles: numbers of all variables of models, by `id` of a variable's handle.

    Raises: GraphBuildError for an operation that uses variables of several parts.
    """
    numbers = {
        placeholder.op.name: handles[id(external)]
        for external, placeholder in graph.captures
        if id(external) in handles
    }
    parts: dict[str, int | None] = {}
    used: dict[str, int] = {}
    nodes = []
    reached = 0
    for operation in graph.get_operations():
        name = operation.name
        variables = {numbers[one.op.name] for one in operation.inputs if one.op.name in numbers}
        of_variables = {owners[number] for number in variables if number in owners}
        if len(of_variables) > 1:
            raise GraphBuildError(
                f"the operation {name} uses variables of partitions {sorted(of_variables)}: it runs on one rank, so "
                "put the layers that it calls on one partition with smp.partition"
            )
        if variables:
            used[name] = min(variables)
        if of_variables:
            part: int | None = of_variables.pop()
        else:
            part = _part(operation, trace, parts, default, reached, has_variables=bool(variables))
        parts[name] = part
        if part is not None and name in trace.marks:
            reached = part
        nodes.append(_node(operation, part))
    return Placed(Graph(nodes), used)


def _part(
    operation: Any,
    trace: Trace,
    parts: Mapping[str, int | None],
    default: int | None,
    reached: int,
    *,
    has_variables: bool,
) -> int | None:
    name = operation.name
    if operation.type in (_FED, _CONSTANT, NO_OPERATION):
        return None
    if name in trace.marks:
        return trace.marks[name]
    for group in operation.colocation_groups():
        forward = group.removeprefix(_COLOCATED).decode()
        if forward != name and forward in parts:
            if parts[forward] is not None or _is_made_of(operation, parts) is None:
                return parts[forward]
            return _is_made_of(operation, parts) if forward in trace.inside else None
    if name in trace.inside:
        if default is not None:
            return default
        inputs = _is_made_of(operation, parts)
        if inputs is not None:
            return inputs
        return reached if has_variables or operation.op_def.is_stateful else None
    if operation.op_def.is_stateful and operation.type.startswith(_DRAWS):
        return 0
    return None


def _is_made_of(operation: Any, parts: Mapping[str, int | None]) -> int | None:
    """Return the highest part of an operation's inputs; None for inputs outside of all parts."""
    found = [part for one in operation.inputs if (part := parts.get(one.op.name)) is not None]
    return max(found, default=None)


def _node(operation: Any, part: int | None) -> Node:
    kind = operation.type
    draws = kind.startswith(_DRAWS)
    return Node(
        operation.name,
        kind,
        tuple(Output(one.op.name, one.value_index) for one in operation.inputs),
        tuple(one.name for one in operation.control_inputs),
        part,
        has_effect=operation.op_def.is_stateful and kind not in READS and kind != _FED and not draws,
        is_fed=kind == _FED,
    )
