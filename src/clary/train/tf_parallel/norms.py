"""Norms of all gradients of a model, on pipelines where each rank has the gradients of its own part.

Where: `smp.init` replaces tf.clip_by_global_norm and tf.linalg.global_norm, which scripts call with the gradients that
a step returned. With several partitions, a list with the shapes of this rank's trained variables counts as gradients:
its norm is the norm over all parts, and all ranks of a pipeline must call the function. None stands for a gradient of
any shape. Other lists get TensorFlow's own norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from clary.train.collective.adapters.tensorflow.ordered import run_ordered
from clary.train.parallel.layout.mesh import Along
from clary.train.tf_parallel import session, tracing
from clary.train.tf_parallel.errors import GraphBuildError


def teach_tensorflow() -> None:
    """Replace TensorFlow's two functions. A second call does nothing."""
    if tf.clip_by_global_norm.__module__ != __name__:
        tf.clip_by_global_norm, tf.linalg.global_norm = _functions(tf.clip_by_global_norm, tf.linalg.global_norm)


def _functions(clip: Callable[..., Any], norm: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def clip_by_global_norm(t_list: Sequence[Any], clip_norm: Any, use_norm: Any = None, name: Any = None) -> Any:
        """Clip as TensorFlow does, by the norm of the gradients of all parts."""
        if use_norm is None and _are_gradients_of_a_part(t_list):
            use_norm = _whole_norm(t_list)
        return clip(t_list, clip_norm, use_norm, name)

    def global_norm(t_list: Sequence[Any], name: Any = None) -> Any:
        """Return the norm of the gradients of all parts."""
        return _whole_norm(t_list) if _are_gradients_of_a_part(t_list) else norm(t_list, name)

    return clip_by_global_norm, global_norm


def _are_gradients_of_a_part(tensors: Sequence[Any]) -> bool:
    """Return whether tensors have the shapes of the trained variables that this rank holds of some model.

    Raises: GraphBuildError for gradients within a step, where each microbatch has its own.
    """
    if not session.is_initialized() or session.current().configuration.partitions == 1:
        return False
    if not any(_fit(tensors, model.trainable_variables) for model in session.current().models):
        return False
    if tracing.current() is not None:
        raise GraphBuildError(
            "the norm of all gradients was requested within the step, where each microbatch of a "
            "partition has only its own gradients: return the gradients, and clip them outside of "
            "smp.step"
        )
    return True


def _fit(tensors: Sequence[Any], variables: Sequence[Any]) -> bool:
    """Return whether tensors have the shapes of variables, in order.

    A list of equal length may have None in place of any tensor; in a longer list, each None is skipped.
    """
    found = [None if one is None else list(one.shape) for one in tensors]
    wanted = [list(one.shape) for one in variables]
    if len(found) != len(wanted):
        return [one for one in found if one is not None] == wanted
    return all(one in (None, shape) for one, shape in zip(found, wanted, strict=True))


def _whole_norm(tensors: Sequence[Any]) -> Any:
    own = [tf.reduce_sum(tf.square(tf.cast(one, tf.float32))) for one in tensors if one is not None]
    squares = tf.add_n(own) if own else tf.constant(0.0)  # a part may have no gradients
    links = session.current().links

    def added(arrays: list[np.ndarray]) -> list[np.ndarray]:
        told = links.allgather(np.array(arrays[0]), Along.PP)
        total = links.room((), np.dtype(np.float32))
        total[...] = np.sum(np.stack(told), dtype=np.float64)
        return [total]

    return tf.sqrt(run_ordered(added, [squares], [squares])[0])
