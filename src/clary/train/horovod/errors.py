"""Errors that programs of Horovod catch, by its names."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """An operation failed on this rank, or another rank was lost. Elastic programs restore their state and continue."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts were added or are about to leave; elastic programs synchronize their state and continue.

    Args:
        skip_sync: whether the state of all ranks is equal already.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of this job have changed")
        self.skip_sync = skip_sync


class CommitError(RuntimeError):
    """The commit of an elastic program is not whole. Nothing of it was unpickled; its owner must decide."""
