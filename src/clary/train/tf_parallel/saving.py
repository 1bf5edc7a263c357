"""Writing of a cut model as one SavedModel.

Where: `DistributedModel.save_model` calls it. Rank 0 holds the values of all ranks' variables while it writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from clary.train.collective.adapters.tensorflow.memory import array_of
from clary.train.parallel.errors import ParallelError
from clary.train.parallel.layout.mesh import Along
from clary.train.tf_parallel.session import Session
from clary.train.tf_parallel.variables import fill, give_up, variable_of


def save_whole(model: Any, call: Callable[..., Any], path: str, now: Session) -> None:
    """Write a whole model; see `DistributedModel.save_model`.

    Args:
        call: calls the model as Keras does, outside of a step.
    Raises: ParallelError on all ranks if rank 0 could not write the model.
    """
    cut = model.cut  # raises an error if the model is not cut yet
    others = gather_others(model, now)
    failure, cause = "", None
    if now.links.rank == 0:
        for variable, value in others:
            fill(variable, value)
        try:
            _export(model, call, cut.inputs, path)
        except Exception as error:  # noqa: BLE001 - told to all ranks, which raise
            failure, cause = f"{type(error).__name__}: {error}", error
        finally:
            give_up(variable for variable, _ in others)
    failure = now.links.allgather(failure, Along.WORLD)[0]
    if failure:
        raise ParallelError(
            f"rank 0 could not write {model.name} to {path}: {failure}. Remove the cause, and call save_model again on "
            "all ranks"
        ) from cause


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

    def serve(*values: Any) -> dict[str, Any]:
        left = iter(values)
        given = [next(left) if isinstance(one, tf.TypeSpec) else one for one in leaves]
        args, kwargs = _without_training(model, *tf.nest.pack_sequence_as(inputs, given))
        results = tf.nest.flatten(call(*args, **kwargs))
        return {f"output_{number}": result for number, result in enumerate(results)}

    held = tf.Module()
    held.model_variables = [variable_of(one) for one in model.all_variables]
    served = tf.function(serve, input_signature=specs)
    held.serve = served
    tf.saved_model.save(held, path, signatures={"serving_default": served.get_concrete_function()})


def _without_training(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return a call's arguments with `training` false; positional arguments after `training` become keywords."""
    parameters = inspect.signature(model.call).parameters
    if "training" not in parameters:
        return args, kwargs
    names = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    place = names.index("training") if "training" in names else len(args)
    later = dict(zip(names[place + 1 :], args[place + 1 :], strict=False))
    return args[:place], {**kwargs, **later, "training": False}


def _any_batch(spec: Any) -> Any:
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if spec.shape.rank else spec
