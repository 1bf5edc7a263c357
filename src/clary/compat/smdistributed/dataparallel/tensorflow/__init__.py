"""SMDDP for TensorFlow 2 (`import smdistributed.dataparallel.tensorflow as sdp`), over `clary.train.collective`.

Ranks come from the job's launcher. Every rank calls the same functions in the same order; inside `tf.function` the
program's order is kept. The package works with Keras 3, with legacy Keras and with optimizers of tf.compat.v1.train.
Source: sagemaker-python-sdk `doc/api/training/sdp_versions/v1.2.x/smd_data_parallel_tensorflow.rst`.
"""

from clary.train.collective.adapters.tensorflow.compression import Compression

from .collectives import (
    BroadcastGlobalVariablesHook,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    oob_allreduce,
    overlap,
)
from .gradients import DistributedGradientTape, DistributedOptimizer
from .ranks import ReduceOp, init, is_initialized, local_rank, local_size, rank, shutdown, size

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "ReduceOp",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "oob_allreduce",
    "overlap",
    "rank",
    "shutdown",
    "size",
]
