"""Errors under Horovod's names."""

from clary.train.horovod.errors import HorovodInternalError, HostsUpdatedInterrupt


class HorovodVersionMismatchError(ImportError):
    """Never raised here: this Horovod is not compiled against a framework."""


__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]
