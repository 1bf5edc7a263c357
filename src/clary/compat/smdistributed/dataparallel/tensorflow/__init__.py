"""SMDDP for TensorFlow 2 (`import smdistributed.dataparallel.tensorflow as sdp`), over `clary.train.collective`.

Ranks come from the job's launcher. Every rank calls the same functions in the same order; inside `tf.function` the
program's order is kept. The package works with Keras 3, with legacy Keras and with optimizers of tf.compat.v1.train.
Source: sagemaker-python-sdk `doc/api/training/sdp_versions/v1.2.x/smd_data_parallel_tensorflow.rst`.
"""

import importlib
from typing import Any

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
from .worker_comm import WorkerComm, get_worker_comm

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "ReduceOp",
    "WorkerComm",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "get_worker_comm",
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


def __getattr__(name: str) -> Any:
    if name == "keras":  # imported late: most programs use none of its callbacks
        return importlib.import_module(f"{__name__}.keras")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
