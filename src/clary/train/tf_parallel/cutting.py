"""Decision about which rank holds which part of a model, made once, before the model's first step.

Where: `model` calls it in the model's first call within a step. Every rank builds and traces the whole model; ranks
then compare their decisions, and rank 0 prints them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.partition.plan import Plan, plan_partition
from clary.train.tf_parallel.costs import layer_costs
from clary.train.tf_parallel.errors import GraphBuildError
from clary.train.tf_parallel.placement import Placed, place
from clary.train.tf_parallel.session import Session
from clary.train.tf_parallel.tracing import Trace, tracing
from clary.train.tf_parallel.variables import handle_of, name_of, variable_of, without_repeats


@dataclass(frozen=True)
class Cut:
    """The decided cut of a model.

    Args:
        parts: part of each layer that lies whole on one rank, by `id`; empty if the script places operations.
        owners: part of each TensorFlow variable, by `id`.
        inputs: positional and keyword arguments of the model's first call, with specs in place of tensors.
    """

    parts: Mapping[int, int]
    owners: Mapping[int, int]
    inputs: tuple[Sequence[Any], Mapping[str, Any]]

    def part_of(self, variable: Any) -> int:
        """Return the part of a variable; 0 for a variable that the model made after the cut, outside of its call."""
        return self.owners.get(id(variable_of(variable)), 0)


def cut_model(
    model: Any, call: Callable[..., Any], inputs: tuple[Sequence[Any], Mapping[str, Any]], now: Session
) -> Cut:
    """Build a model and decide the parts of its layers and variables. All ranks call it.

    Args:
        model: the model, for its name and variables.
        call: calls the model as Keras does.
        inputs: arguments of the call, with specs in place of tensors.

    Raises: GraphBuildError for a model that cannot be cut, with the reason.
    """
    configuration = now.configuration
    trace, graph = _traced(call, inputs)
    variables = without_repeats(model.variables)
    _refuse_strangers(graph, variables)
    handles = {id(handle_of(one)): id(variable_of(one)) for one in variables}
    parts: dict[int, int] = {}
    default: int | None = configuration.default_partition
    if configuration.auto_partition:
        default = None
        units = trace.units(place(graph, trace, {}, handles=handles).used)
        if not units:
            raise GraphBuildError("the model calls no layer, so it cannot be cut between layers: use smp.partition")
        costs = layer_costs(units, graph)
        plan = plan_partition(costs, configuration.partitions, memory_weight=configuration.memory_weight)
        for one in units:
            parts[id(one.layer)] = plan.part_of[one.name]
            trace.marks.update(dict.fromkeys(one.operations, plan.part_of[one.name]))
    owners = _owners(place(graph, trace, {}, default=default, handles=handles), variables)
    if not configuration.auto_partition:
        plan = Plan({name_of(one): owners[id(variable_of(one))] for one in variables}, (), "as the script placed them")
    used = {*parts.values(), *trace.marks.values(), *owners.values()}
    if idle := sorted(set(range(configuration.partitions)) - used):
        raise GraphBuildError(
            f"partitions {', '.join(map(str, idle))} of {configuration.partitions} would hold no part of "
            f"{model.name}: use fewer partitions, or place layers on them with smp.partition"
        )
    shapes = [(owners[id(variable_of(one))], list(one.shape), variable_of(one).dtype.name) for one in variables]
    _compare(plan, shapes, now)
    return Cut(parts, owners, inputs)


def _traced(call: Callable[..., Any], inputs: tuple[Sequence[Any], Mapping[str, Any]]) -> tuple[Trace, Any]:
    """Trace a call of the model, which builds the model without computation."""
    leaves = tf.nest.flatten(inputs)
    tensors = [one for one in leaves if isinstance(one, tf.TypeSpec)]
    trace = Trace()

    def traced(*values: Any) -> Any:
        trace.begin(tf.compat.v1.get_default_graph())
        left = iter(values)
        given = [next(left) if isinstance(one, tf.TypeSpec) else one for one in leaves]
        args, kwargs = tf.nest.pack_sequence_as(inputs, given)
        return trace.call_model(lambda: call(*args, **kwargs))

    with tf.init_scope(), tracing(trace):
        tf.function(traced, autograph=False).get_concrete_function(*tensors)
    return trace, trace.graph


def _refuse_strangers(graph: Any, variables: Sequence[Any]) -> None:
    """Refuse variables that the model uses but does not own, since no part would hold them."""
    known = {id(variable_of(one)) for one in variables}
    strange = [one.name for one in graph.variables if id(one) not in known]
    if strange:
        raise GraphBuildError(
            f"the model uses variables that are not its own: {', '.join(strange)}: make them attributes of the "
            "smp.DistributedModel or of one of its layers"
        )


def _owners(placed: Placed, variables: Sequence[Any]) -> dict[int, int]:
    """Return the part of every variable: the part of the first operation that uses it, or 0 if unused."""
    owners: dict[int, int] = {}
    for name, number in placed.used.items():
        part = placed.graph[name].part
        if part is not None:
            owners.setdefault(number, part)
    return {id(variable_of(one)): owners.get(id(variable_of(one)), 0) for one in variables}


def _compare(plan: Plan, variables: Sequence[Any], now: Session) -> None:
    """Check that all ranks have the same decision; rank 0 prints it.

    Raises: GraphBuildError.
    """
    own = hashlib.sha256(f"{sorted(plan.part_of.items())} {variables}".encode()).hexdigest()
    told = now.links.allgather(own, Along.WORLD)
    others = [rank for rank, one in enumerate(told) if one != own]
    if others:
        raise GraphBuildError(
            f"ranks {', '.join(map(str, others))} have a different model from rank {now.links.rank}: its "
            "layers, their order or their sizes differ; make the same model on all ranks, and call it "
            "with inputs of the same shapes"
        )
    if now.links.rank == 0:
        print(plan, flush=True)
