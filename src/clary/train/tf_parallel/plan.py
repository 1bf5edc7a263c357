"""A rank's plan of a traced step: its functions, its messages, the order of its tasks.

Where: `step` makes a plan for every kind of arguments, together with all ranks of a pipeline; `running` runs it.

Ranks agree in three rounds. First each rank names the model's results that it needs for operations outside of the
model. It also sends a digest of the operations that must be equal on all ranks: the model, its gradients, and the loss
from which the gradients start. Then each rank sends its messages by level, with the types and shapes of all messages.
Last, each rank sends the highest level of its forward pass, and all ranks compute the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from clary.train.parallel.layout.mesh import Along
from clary.train.tf_parallel.errors import GraphBuildError
from clary.train.tf_parallel.graphs.levels import find_levels, held_back
from clary.train.tf_parallel.graphs.nodes import Graph, Output
from clary.train.tf_parallel.graphs.order import Task, plan_order
from clary.train.tf_parallel.graphs.timetable import make_timetable
from clary.train.tf_parallel.graphs.work import Message, Work, find_work, own_demands
from clary.train.tf_parallel.placement import Placed, place
from clary.train.tf_parallel.segments import Pieces, Segment
from clary.train.tf_parallel.session import Session
from clary.train.tf_parallel.tracing import Trace
from clary.train.tf_parallel.variables import handle_of, name_of, variable_of

_CHANGES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter")  # prefixes of op types that write


@dataclass(frozen=True)
class Plan:
    """This rank's functions, messages and tasks in a step.

    Args:
        segments: function of each level.
        last_uses: by level, results that are not needed after the level.
        receives: by level, the messages that must arrive before the level.
        sends: by level, the messages to send after the level.
        tasks: tasks in order.
        arguments: the step's arguments, by their names in the segments.
        captured: values from outside of the step, mostly variables.
        results: the step's results.
        specs: type and shape of the tensor of every message, on all ranks.
    """

    segments: Mapping[int, Segment]
    last_uses: Mapping[int, tuple[Output, ...]]
    receives: Mapping[int, tuple[Message, ...]]
    sends: Mapping[int, tuple[Message, ...]]
    tasks: tuple[Task, ...]
    arguments: tuple[Output, ...]
    captured: Mapping[Output, Any]
    results: tuple[Output, ...]
    specs: Mapping[Output, Any]


def make_plan(function: Any, trace: Trace, now: Session) -> Plan:
    """Plan a traced step. All ranks of a pipeline call it.

    Args:
        function: the traced TensorFlow function of the step's tensors.
        trace: its trace.

    Raises: GraphBuildError if the step cannot be cut, or differs between ranks.
    """
    graph = function.graph
    placed = _placed(graph, trace, now)
    _refuse_training_inside(placed, trace, now)
    nodes = placed.graph
    results = tuple(Output(one.op.name, one.value_index) for one in function.outputs)
    effects = [Output(one.name, 0) for one in nodes.nodes.values() if one.has_effect and one.part is None]
    wanted = [*results, *effects]
    told = now.links.allgather((own_demands(nodes, wanted), _digest(nodes, trace)), Along.PP)
    _compare([digest for _, digest in told], now)
    work = find_work(nodes, now.part, [demands for demands, _ in told], wanted=wanted)
    levels = find_levels(nodes)
    timetable = make_timetable(nodes, work, levels, results, now.part)
    receives, sends, own_levels = timetable.receives, timetable.sends, timetable.levels
    own = timetable.share(_waits(placed, levels, own_levels, now.part))
    pieces = Pieces(graph)
    specs = {one.output: _spec(pieces, one, now.part) for one in work.messages}
    shares = now.links.allgather((own, [str(spec) for spec in specs.values()]), Along.PP)
    _compare([" ".join(texts) for _, texts in shares], now)
    configuration = now.configuration
    orders = plan_order(
        [share for share, _ in shares],
        configuration.microbatches,
        policy=configuration.pipeline,
        last_forward=max(now.links.allgather(_last_forward(trace, levels), Along.PP)),
        max_active=configuration.active_microbatches,
    )
    segments = _segments(
        pieces,
        nodes,
        work,
        levels,
        own_levels,
        {*results, *(one.output for one in work.messages if one.source == now.part)},
    )
    captured = {Output(inner.op.name, 0): outer for outer, inner in graph.captures}
    num_arguments = len(graph.inputs) - len(graph.captures)
    return Plan(
        segments,
        _last_uses(segments, own_levels, {*results, *captured}, sends),
        receives,
        sends,
        orders[now.part],
        tuple(Output(one.op.name, 0) for one in graph.inputs[:num_arguments]),
        captured,
        results,
        specs,
    )


def _placed(graph: Any, trace: Trace, now: Session) -> Placed:
    variables = [one for model in now.models for one in model.all_variables]
    owners = {id(variable_of(one)): model.cut.part_of(one) for model in now.models for one in model.all_variables}
    handles = {id(handle_of(one)): id(variable_of(one)) for one in variables}
    default = None if now.configuration.auto_partition else now.configuration.default_partition
    return place(graph, trace, owners, default=default, handles=handles)


def _refuse_training_inside(placed: Placed, trace: Trace, now: Session) -> None:
    trained = {id(variable_of(one)): one for model in now.models for one in model.all_trainable_variables}
    for name, number in placed.used.items():
        if number in trained and name not in trace.inside and placed.graph[name].kind.startswith(_CHANGES):
            raise GraphBuildError(
                f"the step's function changes {name_of(trained[number])}, once per microbatch: return the "
                "gradients from the function, and call apply_gradients and other updates outside of smp.step"
            )


def _digest(nodes: Graph, trace: Trace) -> str:
    common = [name for name, node in nodes.nodes.items() if node.part is not None]
    return nodes.digest(nodes.ancestors([*common, *(one.op.name for one in trace.targets)]))


def _compare(digests: Sequence[str], now: Session) -> None:
    others = [now.links.global_rank(Along.PP, place) for place, one in enumerate(digests) if one != digests[now.part]]
    if others:
        raise GraphBuildError(
            f"rank {now.links.rank} has traced a different step from ranks {', '.join(map(str, others))}: "
            "the loss must consist of the same operations on all ranks. Values that a step computes from "
            "model.trainable_variables differ between ranks, since each rank has only the variables of "
            "its own partition: for a penalty on weights, give layers a kernel_regularizer and add "
            "model.losses. Arguments must have the same shapes on all ranks"
        )


def _waits(placed: Placed, levels: dict[str, int], own: Sequence[int], part: int) -> tuple[tuple[int, int], ...]:
    found = held_back(placed.graph, levels, placed.used)
    return tuple((reads, writes) for one, reads, writes in found if one == part and {reads, writes} <= set(own))


def _last_forward(trace: Trace, levels: Mapping[str, int]) -> int:
    return max((levels[one.op.name] for one in trace.results if one.op.name in levels), default=0)


def _segments(
    pieces: Pieces,
    nodes: Graph,
    work: Work,
    levels: Mapping[str, int],
    own_levels: Sequence[int],
    kept: Collection[Output],
) -> dict[int, Segment]:
    """Return this rank's function for every level at which it computes."""
    by_level: dict[int, list[str]] = {level: [] for level in own_levels}
    users: dict[Output, set[int]] = {}
    for name, node in nodes.nodes.items():
        if name in work.runs and not node.is_fed:
            by_level[levels[name]].append(name)
            for one in node.inputs:
                users.setdefault(one, set()).add(levels[name])
    found = {}
    for level, names in by_level.items():
        here = set(names)
        inputs = {one: None for name in names for one in nodes[name].inputs if one.node not in here}
        made = [one for one in users if one.node in here and users[one] != {level}]
        outputs = dict.fromkeys([*made, *(one for one in kept if one.node in here)])
        effects = [name for name in names if nodes[name].has_effect]
        if names:
            found[level] = pieces.piece(names, tuple(inputs), tuple(outputs), effects)
    return found


def _last_uses(
    segments: Mapping[int, Segment],
    own_levels: Sequence[int],
    kept: Collection[Output],
    sends: Mapping[int, Sequence[Message]],
) -> dict[int, tuple[Output, ...]]:
    last: dict[Output, int] = {}
    for level in own_levels:
        used = [*segments[level].inputs, *segments[level].outputs] if level in segments else []
        used += [one.output for one in sends.get(level, ())]
        last.update((one, level) for one in used if one not in kept)
    return {level: tuple(one for one, at in last.items() if at == level) for level in own_levels}


def _spec(pieces: Pieces, message: Message, part: int) -> Any:
    """Return the spec of a tensor that ranks exchange.

    Raises: GraphBuildError for a type that cannot be sent.
    """
    tensor = pieces.tensor(message.output)
    if part in (message.source, message.target) and tensor.dtype in (tf.string, tf.variant, tf.resource):
        raise GraphBuildError(
            f"{message.output} of type {tensor.dtype.name} would have to be sent from partition "
            f"{message.source} to {message.target}, but tensors of this type cannot be sent: put the "
            "operations that make and use it on one partition"
        )
    return tf.TensorSpec(tensor.shape, tensor.dtype)
