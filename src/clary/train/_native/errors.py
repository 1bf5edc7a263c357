"""Errors of collectives: the branch of `base.errors` that training programs see.

    CollectiveError
    |-- CollectiveTimeout   a peer did not join or answer within the limit
    |-- PeerLost            a peer's process ended, its connection broke, or it left the group
    |-- OrderMismatch       ranks called different collectives
    |-- GroupClosed         the group was closed by this rank, or a rank aborted it
    |-- BootstrapError      the group could not be formed
    `-- CoreError           the operating system refused memory, a thread or a descriptor

After any of these the group is poisoned: pending and later calls raise the first cause. A bad argument is a ValueError
or TypeError, and leaves the group unchanged. Every CollectiveError is also a RuntimeError, as callers of
torch.distributed expect.
"""

from __future__ import annotations

from clary.base.errors import ClaryError, Fault
from clary.train._native.interface import Code


class CollectiveError(ClaryError, RuntimeError):
    """A collective operation that failed.

    Args:
        message: names group, operation, sequence number, bytes, own rank and host, and the culprit.
        culprit: rank to blame, -1 if none.
    """

    default_fault = Fault.INFRASTRUCTURE

    def __init__(self, message: str, *, culprit: int = -1, retryable: bool = True) -> None:
        super().__init__(message, retryable=retryable, details={"culprit": culprit})
        self.culprit = culprit


class CollectiveTimeout(CollectiveError):
    """A peer did not answer within the timeout."""


class PeerLost(CollectiveError):
    """A peer's process ended, its connection broke, or it left the group while this rank needed it."""


class OrderMismatch(CollectiveError):
    """Ranks called different collectives, or the same collective with different sizes.

    A defect of the program, so that no retry helps.
    """

    default_fault = Fault.ALGORITHM

    def __init__(self, message: str, *, culprit: int = -1) -> None:
        super().__init__(message, culprit=culprit, retryable=False)


class GroupClosed(CollectiveError):
    """The group was closed by this rank, or a rank aborted it; `culprit` is the rank that aborted it."""


class BootstrapError(CollectiveError):
    """The group could not be formed: a rank did not join, an address did not answer, or a peer was refused."""


class CoreError(CollectiveError):
    """The operating system refused memory, a thread or a descriptor."""


_CLASS_OF_CODE: dict[Code, type[CollectiveError]] = {
    Code.TIMEOUT: CollectiveTimeout,
    Code.PEER_LOST: PeerLost,
    Code.ORDER_MISMATCH: OrderMismatch,
    Code.CLOSED: GroupClosed,
    Code.SYSTEM: CoreError,
}


def error_of(code: int, culprit: int, text: str) -> Exception:
    """Return the exception for a core's error code; ValueError for INVALID.

    Args:
        code: a `Code` other than OK.
        culprit: rank to blame, -1 if unknown.
        text: message of the error.
    """
    if code == Code.INVALID:
        return ValueError(text)
    return _CLASS_OF_CODE[Code(code)](text, culprit=culprit)
