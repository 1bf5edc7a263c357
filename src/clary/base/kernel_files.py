"""Reads of files of /proc that stop at a limit, because the observed process chooses how much such a file holds.

Where: everything that reads /proc/PID/cmdline, environ, maps and the like of processes that Clary does not trust.

[Note: sizes] prctl(PR_SET_MM_MAP) needs no right. With it a process points its command line and its environment at any
memory of its own, also at gigabytes of zero pages that take no memory, and the kernel then serves that range. A process
may also have tens of thousands of mappings, each with a name of 4 KiB. So a read without a limit takes as much memory
and time of the reader as any user of the machine likes.

Source: Linux, kernel/sys.c (`prctl_set_mm_map`), fs/proc/base.c (`get_mm_cmdline`, `environ_read`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

_PIECE_BYTES = 64 * 1024


def read_at_most(path: str, max_bytes: int) -> bytes:
    """Return the first `max_bytes` of a file of the kernel. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = bytearray()
        while len(content) < max_bytes:
            piece = os.read(descriptor, min(_PIECE_BYTES, max_bytes - len(content)))
            if not piece:
                break
            content += piece
        return bytes(content)
    finally:
        os.close(descriptor)


def lines_at_most(path: str, max_bytes: int) -> Iterator[bytes]:
    """Yield the lines within the first `max_bytes` of a file of the kernel, one at a time. Raises: OSError."""
    num_left = max_bytes
    with open(path, "rb") as file:
        while num_left > 0 and (line := file.readline(num_left)):
            num_left -= len(line)
            if num_left > 0 or line.endswith(b"\n"):
                yield line
