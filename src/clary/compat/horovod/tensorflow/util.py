"""Small functions that programs import from Horovod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Return whether TensorFlow executes eagerly."""
    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Any:
    return tf.function(f)


def vars_to_refs(variables: Any) -> Any:
    """Return hashable references to the variables of nested lists, as nested tuples."""
    return tuple(vars_to_refs(one) for one in variables) if isinstance(variables, list) else reference(variables)


def refs_to_vars(refs: Any) -> Any:
    """Return the variables for references that `vars_to_refs` returned."""
    return [refs_to_vars(one) for one in refs] if isinstance(refs, tuple) else refs.deref()


def reference(variable: Any) -> Any:
    """Return a hashable key for a variable of TensorFlow or Keras, valid while the variable exists."""
    return variable.ref() if hasattr(variable, "ref") else id(variable)


def variables_of_optimizer(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer of Keras 3 or legacy Keras; [] for None."""
    found = getattr(optimizer, "variables", [])  # a method in some versions
    return list(found() if callable(found) else found)
