"""Writing of a cut model as one SavedModel.

Where: `DistributedModel.save_model` calls it. Rank 0 holds the values of all ranks' variables while it writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from clary.train.collective.adapters.tensorflow.memory import array_of
from clary.train.parallel.layout.mesh import Along
from clary.train.tf_parallel.session import Session
from clary.train.tf_parallel.variables import fill, give_up, variable_of


def save_whole(model: Any, call: Callable[..., Any], path: str, now: Session) -> None:
    """Write a whole model; see `DistributedModel.save_model`.

    Args:
        call: calls the model as Keras does, outside of a step.
    """
    cut = model.cut  # raises an error if the model is not cut yet
    others = gather_others(model, now)
    if now.links.rank == 0:
        for variable, value in others:
            fill(variable, value)
        try:
            _export(model, call, cut.inputs, path)
        finally:
            give_up(variable for variable, _ in others)
    now.links.barrier(Along.WORLD)


def gather_others(model: Any, now: Session) -> list[tuple[Any, Any]]:
    """Gather (variable, value) of other parts on part 0; return [] elsewhere. All ranks of a pipeline call it."""
    variables = model.all_variables
    owners = [model.cut.part_of(one) for one in variables]
    if now.part:
        own = [one for one, part in zip(variables, owners, strict=True) if part == now.part]
        now.links.send([array_of(variable_of(one).read_value()) for one in own], 0, Along.PP)
        return []
    found: list[tuple[Any, Any]] = []
    for part in range(1, now.configuration.partitions):
        values = now.links.receive(part, Along.PP)
        found += zip((one for one, owner in zip(variables, owners, strict=True) if owner == part), values, strict=True)
    return found


def _export(model: Any, call: Callable[..., Any], inputs: Any, path: str) -> None:
    leaves = tf.nest.flatten(inputs)
    specs = [_any_batch(one) for one in leaves if isinstance(one, tf.TypeSpec)]
    place = list(inspect.signature(model.call).parameters).index("training") if _takes_training(model) else None

    def serve(*values: Any) -> dict[str, Any]:
        left = iter(values)
        given = [next(left) if isinstance(one, tf.TypeSpec) else one for one in leaves]
        args, kwargs = tf.nest.pack_sequence_as(inputs, given)
        if place is not None:
            args, kwargs = args[:place], {**kwargs, "training": False}
        results = tf.nest.flatten(call(*args, **kwargs))
        return {f"output_{number}": result for number, result in enumerate(results)}

    held = tf.Module()
    held.model_variables = [variable_of(one) for one in model.all_variables]
    served = tf.function(serve, input_signature=specs)
    held.serve = served
    tf.saved_model.save(held, path, signatures={"serving_default": served.get_concrete_function()})


def _takes_training(model: Any) -> bool:
    return "training" in inspect.signature(model.call).parameters


def _any_batch(spec: Any) -> Any:
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if spec.shape.rank else spec
