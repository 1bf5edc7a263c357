"""One message for a full disk of the state folder: the folder, the free bytes, the bytes that are needed.

Where: the service calls `why_full` when it starts, and code that writes below the state folder after a refused write,
so that clients, commands and the log of the service show the same message. A disk counts as full before its last byte
is used: SQLite, the object store and the agents need some space to work.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

MIN_FREE_BYTES = 4 * 1024 * 1024  # for an agent's log, its spool and the files that describe the job
WAY_OUT = "free space there, or move the state folder (CLARY_HOME) to a larger disk"
_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


def is_refusal(error: BaseException) -> bool:
    """Whether an error says that a disk, or a quota on it, has no room."""
    return isinstance(error, OSError) and error.errno in _FULL_ERRNOS


def why_full(place: Path) -> str:
    """Return the message that the disk of a folder is full; empty if it is not, or if the folder cannot be read.

    Args:
        place: a folder that may not exist yet; the nearest existing parent is checked.
    """
    existing = next((path for path in (place, *place.parents) if path.exists()), Path("/"))
    try:
        facts = os.statvfs(existing)
    except OSError:
        return ""
    free = facts.f_bavail * facts.f_frsize
    if free >= MIN_FREE_BYTES:
        return ""
    return f"the disk of {place} is full ({free} bytes are free, at least {MIN_FREE_BYTES} are needed): {WAY_OUT}"
