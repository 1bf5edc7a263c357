"""Errors that Horovod programs catch, under Horovod's names."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """An operation failed on this rank, or another rank was lost. Elastic programs restore their state and continue."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts were added or are about to leave; elastic programs synchronize their state and continue.

    Args:
        skip_sync: whether all ranks already have equal state.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of this job have changed")
        self.skip_sync = skip_sync


class CommitError(RuntimeError):
    """The commit file of an elastic program is unusable and was not unpickled; the user must restore or remove it."""
