"""Errors of SMDDP. AWS's launchers look for the names of these classes in the output of ranks."""

from clary.train._native.errors import (
    BootstrapError,
    CollectiveError,
    CollectiveTimeout,
    CoreError,
    GroupClosed,
    OrderMismatch,
    PeerLost,
)

__all__ = [
    "BootstrapError",
    "CollectiveError",
    "CollectiveTimeout",
    "CoreError",
    "GroupClosed",
    "OrderMismatch",
    "PeerLost",
]
