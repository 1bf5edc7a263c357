"""Optimizers of Keras 3, legacy Keras and TensorFlow 1 that apply gradients reduced over all ranks.

An optimizer of Keras stays the same object, with its state and settings, and gets a class derived from its own class,
with the same name, so that checkpoints and saved models name the same class.

Keras 3 passes gradients to `apply`, which reduces them. In legacy Keras and TensorFlow 1, the optimizer's method that
computes gradients reduces them; if the program passes its own gradients to a legacy Keras optimizer, `apply_gradients`
reduces them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from clary.train.collective.adapters.tensorflow.tape import Reduce

_MARK = "_applies_gradients_of_all_ranks"
_REDUCED = "_has_reduced_gradients"
_LEGACY_COMPUTING = ("compute_gradients", "_compute_gradients")
_HANDED_ON = ("get_slot", "get_slot_names", "variables")

IsDue = Callable[[], Any]
"""Returns, as a scalar tensor, whether the reduced step is applied; if not, Keras counts it, TensorFlow 1 skips it."""


def distribute(
    optimizer: Any,
    reduce: Reduce,
    *,
    is_due: IsDue | None = None,
    name: str | None = None,
    use_locking: bool = False,
    additions: Mapping[str, Any] | None = None,
) -> Any:
    """Return an optimizer that passes its gradients to `reduce` before it applies them.

    Args:
        optimizer: an optimizer of Keras, which is changed and returned, or of tf.compat.v1.train, which is wrapped.
        is_due: called after each reduction; None to apply every step.
        name, use_locking: arguments of the wrapper of an optimizer of TensorFlow 1.
        additions: further members of the new class.
    Raises: TypeError for any other object; ValueError for an optimizer that was distributed before.
    """
    if is_distributed(optimizer):
        raise ValueError(f"{type(optimizer).__name__} applies the gradients of all ranks already: wrap it once")
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _wrap_of_tensorflow_1(optimizer, reduce, is_due, name, use_locking, additions or {})
    base = type(optimizer)
    if hasattr(base, "apply") and hasattr(base, "apply_gradients"):
        members = _members_of_keras_3(base, reduce, is_due)
    elif hasattr(base, "apply_gradients"):
        members = _members_of_legacy_keras(base, reduce, is_due)
    else:
        raise TypeError(
            f"{base.__module__}.{base.__name__} is no optimizer of Keras or of tf.compat.v1.train: pass one of those"
        )
    words = {"__module__": base.__module__, "__doc__": base.__doc__, _MARK: True}
    optimizer.__class__ = type(base.__name__, (base,), {**words, **members, **(additions or {})})
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether `distribute` made the optimizer."""
    return bool(getattr(optimizer, _MARK, False))


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Make the variables of an optimizer of Keras now, since a branch of tf.cond must not create variables."""
    if getattr(optimizer, "built", False):
        return
    with tf.init_scope():
        if hasattr(optimizer, "_create_all_weights"):
            optimizer._create_all_weights(variables)
        elif hasattr(optimizer, "build"):
            optimizer.build(variables)


def _members_of_keras_3(base: Any, reduce: Reduce, is_due: IsDue | None) -> dict[str, Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        build_optimizer(self, variables)
        reduced = reduce(list(grads), variables)
        return _when_due(is_due, lambda: base.apply(self, reduced, variables), self)

    return {"apply": apply}


def _members_of_legacy_keras(base: Any, reduce: Reduce, is_due: IsDue | None) -> dict[str, Any]:
    def reduce_pairs(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        variables = [variable for _, variable in pairs]
        return list(zip(reduce([gradient for gradient, _ in pairs], variables), variables, strict=True))

    def computing(method: str) -> Callable[..., Any]:
        def compute(self: Any, loss: Any, var_list: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("tape") is None and not args:
                kwargs["tape"] = tf.GradientTape() if callable(loss) else None
            pairs = reduce_pairs(getattr(base, method)(self, loss, var_list, *args, **kwargs))
            setattr(self, _REDUCED, True)
            return pairs

        return compute

    def get_gradients(self: Any, loss: Any, params: Any) -> Any:
        setattr(self, _REDUCED, True)
        return reduce(base.get_gradients(self, loss, params), params)

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if not getattr(self, _REDUCED, False):
            pairs = reduce_pairs(pairs)
        setattr(self, _REDUCED, False)
        build_optimizer(self, [variable for _, variable in pairs])
        return _when_due(is_due, lambda: base.apply_gradients(self, pairs, *args, **kwargs), self)

    found = [method for method in _LEGACY_COMPUTING if hasattr(base, method)]
    members: dict[str, Any] = {method: computing(found[0]) for method in _LEGACY_COMPUTING if found}
    if hasattr(base, "get_gradients"):
        members["get_gradients"] = get_gradients
    return {**members, "apply_gradients": apply_gradients}


def _when_due(is_due: IsDue | None, apply: Callable[[], Any], optimizer: Any) -> Any:
    """Apply a step that is due; otherwise only count it."""
    if is_due is None:
        return apply()

    def applied() -> Any:
        apply()
        return tf.identity(optimizer.iterations)

    def counted() -> Any:
        optimizer.iterations.assign_add(1)
        return tf.identity(optimizer.iterations)

    return tf.cond(is_due(), applied, counted)


def _wrap_of_tensorflow_1(
    optimizer: Any, reduce: Reduce, is_due: IsDue | None, name: str | None, use_locking: bool, additions: Any
) -> Any:
    base = tf.compat.v1.train.Optimizer

    def compute_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = optimizer.compute_gradients(*args, **kwargs)
        variables = [variable for _, variable in pairs]
        return list(zip(reduce([gradient for gradient, _ in pairs], variables), variables, strict=True))

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if is_due is None:
            return optimizer.apply_gradients(pairs, *args, **kwargs)
        optimizer._create_slots([variable for _, variable in pairs])  # a branch of tf.cond may not create variables
        with tf.control_dependencies([gradient for gradient, _ in pairs if gradient is not None]):
            return tf.cond(
                is_due(),
                lambda: tf.group(optimizer.apply_gradients(pairs, *args, **kwargs)),
                tf.no_op,
            )

    def handed_on(method: str) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: getattr(optimizer, method)(*args, **kwargs)

    members: dict[str, Any] = {one: handed_on(one) for one in _HANDED_ON}
    members |= {"compute_gradients": compute_gradients, "apply_gradients": apply_gradients, _MARK: True, **additions}
    return type("DistributedOptimizer", (base,), members)(use_locking, name or f"Distributed{type(optimizer).__name__}")
