"""Pipes of a program's output: their capacity, and how long they may stay unread.

Where: `program` reads the pipes. A program that prints line by line would wake its reader for each line; a reader that
pauses between reads gets many lines at once. The pause is so short that only a writer faster than 125 MiB/s fills the
pipe, and then waits for less than the pause.
"""

from __future__ import annotations

import contextlib
import fcntl

PIPE_BYTES = 1024 * 1024  # the size that Linux grants every user (pipe(7), pipe-max-size)
LONGEST_REST_S = 0.008  # for a pipe of `PIPE_BYTES`


def rest_s_of(pipe: int) -> float:
    """Enlarge a pipe, if the user's limit allows; return the seconds for which it may stay unread."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    size_bytes: int = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    return LONGEST_REST_S * min(1.0, size_bytes / PIPE_BYTES)
