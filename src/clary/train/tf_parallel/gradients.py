"""Gradients inside of a step: `optimizer.get_gradients`, and tapes.

Where: while a step is traced, tapes call `gradients_of` (`tracing`); the `session` of SMP's module for TensorFlow calls
`teach_optimizers`.

The graph gets the gradients of all trained variables of all models, whichever a rank requests, since all ranks need the
same graph and each requests its own variables. Gradients that no rank requests are never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from clary.train.tf_parallel import session, tracing
from clary.train.tf_parallel.errors import GraphBuildError
from clary.train.tf_parallel.variables import name_of, variable_of


def gradients_of(
    targets: Sequence[Any],
    sources: Sequence[Any],
    output_gradients: Sequence[Any] | None = None,
    unconnected: Any = tf.UnconnectedGradients.NONE,
) -> list[Any]:
    """Return the dense gradient of the targets' sum with respect to each source; works only inside of a step.

    Args:
        targets: tensors of the step, usually losses.
        sources: variables of TensorFlow or of Keras, or tensors of the step.
        output_gradients: initial gradient of each target; ones if None.
        unconnected: gradient of a source on which no target depends.
    """
    trace = tracing.current()
    assert trace is not None, "asked for while a step is traced"
    asked = [one if tf.is_tensor(one) and not _is_variable(one) else variable_of(one) for one in sources]
    trained = [variable_of(one) for model in session.current().models for one in model.all_trainable_variables]
    known = {id(one) for one in trained}
    everything = [*trained, *(one for one in asked if id(one) not in known)]
    found = tf.gradients(
        list(targets),
        everything,
        grad_ys=None if output_gradients is None else list(output_gradients),
        unconnected_gradients=unconnected,
    )
    by_source = {id(one): gradient for one, gradient in zip(everything, found, strict=True)}
    trace.targets += [one for one in targets if tf.is_tensor(one)]
    dense = [_dense(by_source[id(one)]) for one in asked]
    trace.gradients += [one for one in dense if one is not None]
    return dense


def get_gradients(optimizer: Any, loss: Any, params: Sequence[Any]) -> list[Any]:
    """Return the gradients of a loss with respect to variables: the optimizer method that SMP scripts call in a step.

    Args:
        loss: a tensor of the step.
        params: variables of the model.

    Raises: ValueError for a variable on which the loss does not depend; GraphBuildError outside of a step.
    """
    if tracing.current() is None:
        raise GraphBuildError("get_gradients works inside of an smp.step alone; outside use tf.GradientTape")
    variables = list(params)
    found = gradients_of(tf.nest.flatten(loss), variables)
    lost = [name_of(one) for one, gradient in zip(variables, found, strict=True) if gradient is None]
    if lost:
        raise ValueError(f"get_gradients: the loss does not depend on {', '.join(lost)}, which have no gradient")
    check_optimizer(optimizer)
    return found


def check_optimizer(optimizer: Any) -> None:
    """Refuse optimizers that need the norm of all gradients, if a rank has only the gradients of its own partition.

    Raises: GraphBuildError.
    """
    if getattr(optimizer, "global_clipnorm", None) and session.current().configuration.partitions > 1:
        raise GraphBuildError(
            f"{type(optimizer).__name__} has global_clipnorm, the norm of all gradients together, but "
            "each partition has only the gradients of its own variables: use clipnorm or clipvalue, or "
            "one partition"
        )


def teach_optimizers() -> None:
    """Adapt Keras's optimizers to ranks that have only the variables of one partition. A second call does nothing.

    The optimizers get `get_gradients`, which TensorFlow 2.3 had and Keras 3 lacks. Their `apply_gradients` accepts an
    empty list, which a rank without trained layers passes.
    """
    for kind in _optimizer_classes():
        kind.get_gradients = get_gradients
        if kind.apply_gradients.__module__ != __name__:
            kind.apply_gradients = _applies_to_parts(kind.apply_gradients)


def _applies_to_parts(apply: Callable[..., Any]) -> Callable[..., Any]:
    def apply_gradients(optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if session.is_initialized() and session.current().configuration.partitions > 1:
            check_optimizer(optimizer)
            if not pairs:
                return optimizer.iterations.assign_add(1)
        return apply(optimizer, pairs, *args, **kwargs)

    return apply_gradients


def _optimizer_classes() -> list[Any]:
    kinds = [tf.keras.optimizers.Optimizer]
    legacy = getattr(getattr(tf.keras.optimizers, "legacy", None), "Optimizer", None)
    if hasattr(legacy, "apply_gradients"):  # in Keras 3, the legacy class is a stub that warns
        kinds.append(legacy)
    return kinds


def _is_variable(one: Any) -> bool:
    return isinstance(one, tf.Variable) or not tf.is_tensor(one)


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
