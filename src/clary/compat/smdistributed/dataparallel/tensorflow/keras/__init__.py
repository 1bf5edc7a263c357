"""SMDDP for `fit` of Keras (`import smdistributed.dataparallel.tensorflow.keras as sdp`): Keras 3 and legacy Keras.

AWS documents no such module, but scripts for SMDDP import it in place of `horovod.keras`: they use the ranks, the
optimizer and the callbacks. The other names are those of `smdistributed.dataparallel.tensorflow`.
"""

from smdistributed.dataparallel.tensorflow import (
    Compression,
    DistributedOptimizer,
    ReduceOp,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    init,
    is_initialized,
    local_rank,
    local_size,
    oob_allreduce,
    rank,
    shutdown,
    size,
)

from . import callbacks

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "ReduceOp",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "oob_allreduce",
    "rank",
    "shutdown",
    "size",
]
