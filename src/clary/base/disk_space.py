"""Reports full disks in one form: the path, the bytes that were needed and the bytes that are free.

Where: agents and the S3 client call `require_space` before a large write and translate ENOSPC afterwards, so that a
full disk ends a job with a reason and never with a truncated file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clary.base.errors import AgentError, Fault

_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def free_bytes(path: Path) -> int:
    """Return the bytes that an unprivileged process may still write at `path` or its nearest existing parent."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    facts = os.statvfs(place)
    return facts.f_bavail * facts.f_frsize


def require_space(path: Path, *, needed_bytes: int) -> None:
    """Check that `needed_bytes` fit at `path`.

    Raises: AgentError (fault USER) naming path, bytes needed and bytes free.
    """
    if free_bytes(path) < needed_bytes:
        raise full_disk_error(path, needed_bytes=needed_bytes)


def full_disk_error(path: Path, *, needed_bytes: int | None) -> AgentError:
    """Return the error for a write to `path` on a full disk; `needed_bytes` is None if the size is unknown."""
    free = free_bytes(path)
    needed = "an unknown number of" if needed_bytes is None else str(needed_bytes)
    return AgentError(
        f"No space left on device while writing {path}: {needed} bytes needed, {free} bytes free. "
        "Free space on this host or use one with a larger volume.",
        fault=Fault.USER,
        details={"path": str(path), "needed_bytes": needed_bytes, "free_bytes": free},
    )


def where_full(message: str, path: Path) -> str:
    """Return an error's message, with place, machine and free bytes if it is that of a full disk.

    The kernel gives ENOSPC also for too many namespaces or mounts; the messages of `agent.host.kernel` name those calls
    between number and words, and stay as they are.

    Args:
        message: text of an error of the system, which contains its number and words.
        path: a folder on the disk that was written to.
    """
    if not any(f"[Errno {number}] {os.strerror(number)}" in message for number in _FULL_ERRNOS):
        return message
    return f"{message} ({free_bytes(path)} bytes are free at {path} on {os.uname().nodename}; free space there)"


@contextmanager
def disk_errors_named(path: Path, *, needed_bytes: int | None) -> Iterator[None]:
    """Turn ENOSPC, EDQUOT and EFBIG raised in the block into the error of `full_disk_error`.

    Args:
        path: the written path, for the message.
        needed_bytes: size of the whole write; None if unknown.
    Raises: AgentError (fault USER) for a full disk; other errors pass.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL_ERRNOS:
            raise full_disk_error(path, needed_bytes=needed_bytes) from error
        raise
