"""Waits for descriptors that can be read, of any number.

Where: each part that waits for a pipe or a socket with a limit. `select.select` refuses descriptors from 1024 on; a
process with many files, or one that was started by such a process, has them.
"""

from __future__ import annotations

import errno
import math
import os
import select
from collections.abc import Iterable
from typing import Protocol, TypeVar

_MILLISECONDS = 1000


class _WithDescriptor(Protocol):
    def fileno(self) -> int: ...


_Waited = TypeVar("_Waited", bound="int | _WithDescriptor")


def readable(waited: Iterable[_Waited], limit_s: float) -> list[_Waited]:
    """Return the readable ones in their order: a read would not block. An ended stream is readable.

    Args:
        waited: descriptors, or things with a `fileno()`; two for one descriptor are returned once.
        limit_s: longest wait, rounded up to a millisecond; at 0 or below nothing is waited for.
    Raises: OSError (EBADF) for a descriptor that is not open; ValueError for a closed socket or file.
    """
    by_number: dict[int, _Waited] = {}
    poll = select.poll()
    for one in waited:
        number = one if isinstance(one, int) else one.fileno()
        by_number.setdefault(number, one)
        poll.register(number, select.POLLIN)
    events = dict(poll.poll(math.ceil(max(0.0, limit_s) * _MILLISECONDS)))
    for number, event in events.items():
        if event & select.POLLNVAL:
            raise OSError(errno.EBADF, f"{os.strerror(errno.EBADF)}: descriptor {number} is not open")
    return [one for number, one in by_number.items() if number in events]
