"""Errors of the machine that pass, which say nothing about the file or process that was asked for.

Where: readers of records use it, so that a record is never taken for missing or damaged, and then removed or made anew,
because this process had too many open files or the machine no memory for a moment.
"""

from __future__ import annotations

import errno

_NUMBERS = frozenset(
    (
        errno.EAGAIN,
        errno.EINTR,
        errno.EIO,  # a disk or file server that fails for a moment; a lasting one is not mended by removing its files
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ESTALE,
        errno.ETIMEDOUT,
    )
)


def is_passing(error: BaseException) -> bool:
    """Whether the same call may succeed later, with the same file or process."""
    return isinstance(error, OSError) and error.errno in _NUMBERS
