"""Variables of a cut model: those of this rank, and those of other ranks, whose memory is freed.

Where: `model` builds the whole model once, on every rank, so that it begins with the values of a model on one rank;
after the cut each rank keeps the variables of its part. [Note: others' variables] The objects stay in the model, since
its layers hold them, but their values are replaced by an empty tensor: a read gives an error of TensorFlow about its
shape, and no old value. Checkpoints skip them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

_PASSING_OVER = {  # the method of a variable that TensorFlow's checkpoints call
    "_serialize_to_tensors": dict,
    "_gather_saveables_for_checkpoint": dict,
    "_restore_from_tensors": lambda _: tf.no_op(),
}


def variable_of(variable: Any) -> Any:
    """Return TensorFlow's variable of a Keras 3 variable; return a variable of TensorFlow itself unchanged."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def handle_of(variable: Any) -> Any:
    """Return the handle of a variable of TensorFlow or of Keras."""
    return variable_of(variable).handle


def name_of(variable: Any) -> str:
    """Return the name of a variable for messages: its path in Keras 3."""
    return str(getattr(variable, "path", None) or variable.name)


def give_up(variables: Iterable[Any]) -> None:
    """Free the memory of other ranks' variables; see [Note: others' variables]."""
    for variable in map(variable_of, variables):
        empty = tf.zeros([0], variable.dtype)
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=empty, validate_shape=False)
        for name, passes_over in _PASSING_OVER.items():
            setattr(variable, name, passes_over)


def fill(variable: Any, value: Any) -> None:
    """Give a variable of another rank a value, which `give_up` frees again.

    Args:
        value: a tensor or an array, of the variable's shape and type.
    """
    one = variable_of(variable)
    for name in _PASSING_OVER:
        if name in vars(one):
            delattr(one, name)
    tensor = tf.convert_to_tensor(value, one.dtype)
    tf.raw_ops.AssignVariableOp(resource=one.handle, value=tensor, validate_shape=False)


def without_repeats(variables: Sequence[Any]) -> list[Any]:
    """Return each variable once, in order; layers that share a variable each list it."""
    return list({id(variable_of(one)): one for one in variables}.values())
