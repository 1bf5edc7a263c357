"""The group of all ranks and this process's rank in it."""

from __future__ import annotations

from enum import Enum

from clary.train._native import interface
from clary.train.collective.adapters.tensorflow.process import Process
from clary.train.collective.adapters.tensorflow.xla import keep_from_xla

process = Process("smdistributed.dataparallel.tensorflow")
"""The one group of this library in this process."""


class ReduceOp(Enum):
    """Operations that reduce the ranks' values, element by element."""

    AVERAGE = interface.ReduceOp.AVG
    SUM = interface.ReduceOp.SUM
    MIN = interface.ReduceOp.MIN
    MAX = interface.ReduceOp.MAX


def init() -> None:
    """Join the group of all ranks; call it once, before any other function of this library.

    Raises:
        CollectiveError: `init` was called before without a later `shutdown`.
        ValueError: this process was not started as a rank, or a variable of its launcher is wrong.
        BootstrapError: the group could not be formed; names the missing ranks.
    """
    process.init()
    keep_from_xla()


def is_initialized() -> bool:
    """Whether `init` was called without a later `shutdown`."""
    return process.is_initialized


def shutdown() -> None:
    """Leave the group. A second call does nothing."""
    process.shutdown()


def size() -> int:
    """Return the number of ranks; CollectiveError before `init`."""
    return process.world.size


def rank() -> int:
    """Return this process's rank among all; CollectiveError before `init`."""
    return process.world.rank


def local_size() -> int:
    """Return the number of ranks on this host.

    Raises: CollectiveError before `init`; ValueError if the launcher has not set it.
    """
    return process.local_size()


def local_rank() -> int:
    """Return this process's rank on its host.

    Raises: CollectiveError before `init`; ValueError if the launcher has not set it.
    """
    return process.local_rank()
