"""Errors of SMDDP. AWS's launchers search for the names of these classes in the output of ranks."""

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
