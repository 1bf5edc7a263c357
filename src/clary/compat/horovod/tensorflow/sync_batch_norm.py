"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod.tensorflow.mpi_ops import Sum, _allreduce, size


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Normalizes by the mean and variance of all ranks' batches.

    Args:
        fused: must be False.
        kwargs: as tf.keras.layers.BatchNormalization.
    Raises: ValueError for a fused layer.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused is None or fused:
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        kwargs["name"] = kwargs.get("name") or "sync_batch_normalization"
        if _takes_fused():
            kwargs["fused"] = fused
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        mean, variance = super()._moments(inputs, *args, **kwargs)
        if size() == 1:
            return mean, variance
        own = tf.stack([mean, variance + tf.square(mean)])
        mean, mean_of_squares = tf.unstack(_allreduce(own, op=Sum) / tf.cast(size(), own.dtype))
        return mean, mean_of_squares - tf.square(mean)


def _takes_fused() -> bool:
    """Whether this is legacy Keras; in Keras 3 no layer is fused."""
    return hasattr(tf.keras.layers.BatchNormalization, "_fused_batch_norm")
