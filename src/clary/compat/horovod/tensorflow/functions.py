"""Broadcasts and gathers of variables and objects."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from horovod.common.arrays import Call
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import operations
from horovod.tensorflow.mpi_ops import _number, allgather, broadcast, rank


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assign the values of one rank to the variables of all ranks.

    Args:
        variables: variables of TensorFlow or of Keras, in the same order on all ranks.
        root_rank: rank that sends.
        process_set: ranks that take part.
        inplace: has no effect; the received values are always assigned to the variables.
    Returns: the operation to run in a graph of TensorFlow 1; None elsewhere.
    Raises: ValueError for a process set that was not added.
    """
    held = list(variables)
    values = operations.broadcast(held, root_rank, Call(process_set=_number(process_set)))
    assigned = [variable.assign(value) for variable, value in zip(held, values, strict=True)]
    if tf.compat.v1.executing_eagerly_outside_functions():
        return None
    return tf.group(*[one.op if hasattr(one, "op") else one for one in assigned])


def broadcast_global_variables(root_rank: int) -> Any:
    """Assign one rank's values to all global variables of the default graph of TensorFlow 1.

    Returns: the operation to run.
    Raises: RuntimeError in eager mode.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Assigns rank `root_rank`'s values to all global variables when a session of TensorFlow 1 begins."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the operation to the graph."""
        if self.bcast_op is None or self.bcast_op.graph != tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the operation."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of one rank on all ranks; it is sent as a pickle.

    Args:
        obj: the object on the root; it has no effect on other ranks.
        root_rank: rank that sends.
        session: session of TensorFlow 1.
        name: equal on all ranks.
        process_set: ranks that take part.
    """
    base = name or "broadcast_object"
    packed = _pack(obj) if rank() == root_rank else np.empty(0, np.uint8)
    length = _value(
        broadcast(tf.constant([packed.size], tf.int64), root_rank, f"{base}.sz", process_set=process_set), session
    )
    if rank() != root_rank:
        packed = np.empty(int(length[0]), np.uint8)
    received = _value(broadcast(tf.constant(packed), root_rank, f"{base}.t", process_set=process_set), session)
    return obj if rank() == root_rank else _unpack(received)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that broadcasts as `broadcast_object` does, but builds its graph operations only once.

    Args: as `broadcast_object`.
    """
    base = name or "broadcast_object_fn"
    length = tf.compat.v1.placeholder(tf.int64, [1])
    sent_length = broadcast(length, root_rank, f"{base}.sz", process_set=process_set)
    content = tf.compat.v1.placeholder(tf.uint8, [None])
    sent_content = broadcast(content, root_rank, f"{base}.t", process_set=process_set)
    taken = session or tf.compat.v1.get_default_session()

    def send(obj: Any) -> Any:
        packed = _pack(obj) if rank() == root_rank else np.empty(0, np.uint8)
        (number,) = taken.run(sent_length, {length: [packed.size]})
        if rank() != root_rank:
            packed = np.empty(int(number), np.uint8)
        received = taken.run(sent_content, {content: packed})
        return obj if rank() == root_rank else _unpack(received)

    return send


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, in rank order; they are sent as pickles.

    Args: as `broadcast_object`.
    """
    base = name or "allgather_object"
    packed = _pack(obj)
    lengths = _value(allgather(tf.constant([packed.size], tf.int64), f"{base}.sz", process_set=process_set), session)
    together = _value(allgather(tf.constant(packed), f"{base}.t", process_set=process_set), session)
    return [_unpack(part) for part in np.split(together, np.cumsum(lengths)[:-1])]


def _value(tensor: Any, session: Any) -> np.ndarray:
    if tf.executing_eagerly():
        return np.asarray(tensor)
    return np.asarray((session or tf.compat.v1.get_default_session()).run(tensor))


def _pack(obj: Any) -> np.ndarray:
    """Return an object's pickle; cloudpickle, if installed, also pickles functions and classes of `__main__`."""
    try:
        import cloudpickle as writer
    except ImportError:
        writer = pickle
    stream = io.BytesIO()
    writer.dump(obj, stream)
    return np.frombuffer(stream.getvalue(), np.uint8)


def _unpack(packed: np.ndarray) -> Any:
    return pickle.loads(packed.tobytes())  # noqa: S301 - the pickle comes from a rank of this job
