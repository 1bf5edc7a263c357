"""`smp.partition`: manual placement of operations.

Where: scripts use it in their model's `call`; it has an effect only if the key `auto_partition` is off.
Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_tensorflow.rst`, `smp.partition`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from clary.train.tf_parallel import session, tracing
from clary.train.tf_parallel.errors import GraphBuildError


@contextlib.contextmanager
def partition(index: int) -> Iterator[None]:
    """Place the operations of a model within the block on a partition; without effect if `auto_partition` is on.

    Raises: ValueError for an index of no partition, GraphBuildError outside of a model's `call`; no error if
        `auto_partition` is on.
    """
    configuration = session.current().configuration
    if configuration.auto_partition:
        yield
        return
    if not 0 <= index < configuration.partitions:
        raise ValueError(f"smp.partition({index}): there are {configuration.partitions} partitions, numbered from 0")
    trace = tracing.current()
    if trace is None or not trace.is_in_model:
        raise GraphBuildError(
            f"smp.partition({index}) outside of the call of an smp.DistributedModel places nothing: put it around "
            "operations in call"
        )
    if not trace.is_here:
        yield  # a discarded graph, or a branch, which runs on the rank of its enclosing operation
        return
    with trace.marking(index):
        yield
