"""Variables of a cut model: access to this rank's variables, and release of other ranks' variables.

Where: `model` builds the whole model once, on every rank, so that its initial values equal those of a model on one
rank; after the cut, each rank keeps the variables of its part.

[Note: others' variables] Other ranks' variable objects stay in the model, since its layers hold them, but their values
are replaced by an empty tensor: a read raises TensorFlow's error on the shape instead of returning an old value.
Checkpoints skip these variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

_PASSING_OVER = {  # replacement of the method that TensorFlow's checkpoints call on a variable
    "_serialize_to_tensors": dict,
    "_gather_saveables_for_checkpoint": dict,
    "_restore_from_tensors": lambda _: tf.no_op(),
}


def variable_of(variable: Any) -> Any:
    """Return the TensorFlow variable of a Keras 3 variable; return a TensorFlow variable unchanged."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def handle_of(variable: Any) -> Any:
    """Return the handle of a TensorFlow or Keras variable."""
    return variable_of(variable).handle


def name_of(variable: Any) -> str:
    """Return the name of a variable for error texts; with Keras 3, its path."""
    return str(getattr(variable, "path", None) or variable.name)


def give_up(variables: Iterable[Any]) -> None:
    """Free the memory of other ranks' variables; see [Note: others' variables]."""
    for variable in map(variable_of, variables):
        empty = tf.zeros([0], variable.dtype)
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=empty, validate_shape=False)
        for name, passes_over in _PASSING_OVER.items():
            setattr(variable, name, passes_over)


def fill(variable: Any, value: Any) -> None:
    """Set the value of another rank's variable, which `give_up` frees again.

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
    """Return each variable once, in order, since layers that share a variable all list it."""
    return list({id(variable_of(one)): one for one in variables}.values())
