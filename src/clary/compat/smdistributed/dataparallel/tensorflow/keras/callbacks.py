"""Callbacks of `fit`, for Keras 3 and for legacy Keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from smdistributed.dataparallel.tensorflow import broadcast_global_variables, broadcast_variables, oob_allreduce

_Callback: Any = tf.keras.callbacks.Callback


class BroadcastGlobalVariablesCallback(_Callback):
    """Broadcasts one rank's model and optimizer to all ranks after the first batch, when all variables exist.

    Args:
        root_rank: rank that sends.
        device: device of the variables' values; "" leaves the choice to TensorFlow.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast after the first batch; do nothing later.

        Raises: ValueError for a root that is not a rank; CollectiveError.
        """
        if self.broadcast_done:
            return
        with tf.device(self.device):
            if tf.executing_eagerly():
                broadcast_variables(self.model.variables, root_rank=self.root_rank)
                broadcast_variables(variables_of(self.model.optimizer), root_rank=self.root_rank)
            else:
                session: Any = tf.compat.v1.keras.backend.get_session()
                session.run(broadcast_global_variables(self.root_rank))
        self.broadcast_done = True


class MetricAverageCallback(_Callback):
    """Replaces each epoch's metrics by averages over all ranks; put it before callbacks that read the metrics.

    Args:
        device: device of the metrics' values; "" leaves the choice to TensorFlow.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average the metrics in place, in the order of their names. Raises: CollectiveError."""
        with tf.device(self.device):
            for metric, value in sorted((logs or {}).items()):
                averaged = oob_allreduce(tf.constant(value, tf.float64))
                logs[metric] = float(averaged.numpy() if tf.executing_eagerly() else _evaluated(averaged))


def variables_of(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer of Keras 3 or legacy Keras; [] for None."""
    found = getattr(optimizer, "variables", [])  # a method in some versions
    return list(found() if callable(found) else found)


def _evaluated(tensor: Any) -> Any:
    return tf.compat.v1.keras.backend.get_session().run(tensor)
