"""Errors that programs of Horovod catch, by its names."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """An operation failed on this rank, or another rank is gone. Elastic programs restore their state and go on."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts have come or are about to leave; elastic programs synchronize their state and go on.

    Args:
        skip_sync: whether the state of all ranks is equal already.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of this job have changed")
        self.skip_sync = skip_sync


class CommitError(RuntimeError):
    """The commit of an elastic program is no whole one. Nothing of it was unpickled; somebody has to decide."""
