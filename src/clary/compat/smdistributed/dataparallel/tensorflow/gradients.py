"""The gradient tape and the optimizer that average gradients over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clary.train.collective.adapters.tensorflow.compression import Compression
from clary.train.collective.adapters.tensorflow.optimizer import distribute
from clary.train.collective.adapters.tensorflow.tape import DistributedTape, Reduce, reduce_gradients

from .ranks import ReduceOp, process

_BUCKET_BYTES = 1 << 20
_BUCKET_MULTIPLE = 128


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = ReduceOp.AVERAGE,
) -> DistributedTape:
    """Return a tape whose `gradient` returns averages over all ranks.

    Args:
        gradtape: a tf.GradientTape, which may still record.
        device_dense, device_sparse: not supported; leave them empty.
        compression: Compression.none or Compression.fp16.
        sparse_as_dense: has no effect; sparse gradients are always made dense, as in SMDDP since 1.2.1.
        op: AVERAGE.
    Raises: NotImplementedError for a device or another op.
    """
    return DistributedTape(gradtape, _averaging(device_dense, device_sparse, compression, op))


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = ReduceOp.AVERAGE,
    bucket_cap_mb: int = 25,
) -> Any:
    """Return an optimizer that applies gradients averaged over all ranks.

    Args:
        optimizer: an optimizer of tf.compat.v1.train or of Keras; an optimizer of Keras is changed and returned.
        name, use_locking: arguments of the wrapper of a TensorFlow 1 optimizer.
        device_dense, device_sparse, compression, sparse_as_dense, op: as for `DistributedGradientTape`.
        bucket_cap_mb: checked as in SMDDP, without other effect; all gradients are exchanged by one operation.
    Raises: NotImplementedError as for `DistributedGradientTape`; ValueError for a wrong bucket size or an optimizer
        that is already wrapped; TypeError for an object that is not an optimizer.
    """
    if bucket_cap_mb <= 0 or int(bucket_cap_mb * _BUCKET_BYTES) % _BUCKET_MULTIPLE:
        raise ValueError(
            f"bucket_cap_mb is {bucket_cap_mb}; expected a size in MiB above 0 that is a multiple of 128 bytes"
        )
    reduce = _averaging(device_dense, device_sparse, compression, op)
    return distribute(optimizer, reduce, name=name, use_locking=use_locking)


def _averaging(device_dense: str, device_sparse: str, compression: Any, op: ReduceOp) -> Reduce:
    """Return the reduction of gradients with these options; refuse the options that SMDDP refuses."""
    if device_dense or device_sparse:
        raise NotImplementedError("device_dense and device_sparse are not supported: leave them empty")
    if op is not ReduceOp.AVERAGE:
        raise NotImplementedError(f"gradients are averaged: op is {op}, expected ReduceOp.AVERAGE")

    def reduce(gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        return reduce_gradients(process, gradients, op.value, compression)

    return reduce
