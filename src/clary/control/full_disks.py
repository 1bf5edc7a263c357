"""Messages for a disk of the state folder that takes no more: full, without free inodes, or mounted read-only.

Where: the service calls `why_unwritable` when it starts, and code that writes below the state folder after a refused
write, so that clients, commands and the log of the service show the same message. A disk counts as full before its last
byte is used: SQLite, the object store and the agents need some space to work.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from pathlib import Path

MIN_FREE_BYTES = 4 * 1024 * 1024  # for an agent's log, its spool and the files that describe the job
MIN_FREE_FILES = 64  # for the folders and files of one host
WAY_OUT = "free space there, or move the state folder (CLARY_HOME) to a larger disk"
MEND_DISK = (
    "look in the kernel's log (dmesg) for errors of the disk and whether it was mounted read-only; mend it and mount "
    "it writable, or move the state folder (CLARY_HOME) to another disk, and start the service again"
)
_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_DISK_ERRNOS = (errno.EIO, errno.EROFS)


def is_refusal(error: BaseException) -> bool:
    """Whether an error says that a disk, or a quota on it, has no room."""
    return isinstance(error, OSError) and error.errno in _FULL_ERRNOS


def way_out(error: OSError) -> str:
    """Return a remedy for an error of a full or broken disk; empty for other errors."""
    if is_refusal(error):
        return WAY_OUT
    return MEND_DISK if error.errno in _DISK_ERRNOS else ""


def why_full(place: Path, *, min_free_share: float = 0.0) -> str:
    """Return the message that the disk of a folder is full; empty if it is not, or if the folder cannot be read.

    Args:
        place: a folder that may not exist yet; the nearest existing parent is checked.
        min_free_share: part of the disk that has to be free, from 0 to 1, beside MIN_FREE_BYTES.
    """
    facts = _facts(place)
    if facts is None:
        return ""
    free = facts.f_bavail * facts.f_frsize
    needed = max(MIN_FREE_BYTES, math.ceil(min_free_share * facts.f_blocks * facts.f_frsize))
    if free < needed:
        share = f", {min_free_share:.0%} of the disk," if needed > MIN_FREE_BYTES else ""
        return f"the disk of {place} is full ({free} bytes are free, at least {needed}{share} are needed): {WAY_OUT}"
    # File systems that make inodes as they need them count none.
    if facts.f_files and facts.f_favail < MIN_FREE_FILES:
        return (
            f"the disk of {place} has no room for new files ({facts.f_favail} inodes are free, at least "
            f"{MIN_FREE_FILES} are needed; df -i shows them): remove files there, or move the state folder "
            "(CLARY_HOME) to another disk"
        )
    return ""


def why_unwritable(place: Path, *, min_free_share: float = 0.0) -> str:
    """Return the message that nothing can be written to a folder's disk; empty if its disk takes writes.

    Args: as `why_full`.
    """
    facts = _facts(place)
    if facts is not None and facts.f_flag & os.ST_RDONLY:
        return f"the disk of {place} is mounted read-only: {MEND_DISK}"
    return why_full(place, min_free_share=min_free_share)


class StoreDisk:
    """The disk of an object store that notices only now and then that there is room again.

    Args:
        place: folder of the store.
        min_free_share: part of the disk below which the store takes no objects, from 0 to 1.
        look_s: time between two looks of the store at the disk, in seconds.
        monotonic: clock in seconds.
    """

    def __init__(self, place: Path, *, min_free_share: float, look_s: float, monotonic: Callable[[], float]) -> None:
        self._place = place
        self._min_free_share = min_free_share
        self._look_s = look_s
        self._monotonic = monotonic
        self._full_until_s = -math.inf

    def why_unwritable(self) -> str:
        """Return why the store refuses objects, also until it has noticed that there is room; empty if it takes them.

        The disk counts as having been full only if it was when this was called.
        """
        now_s = self._monotonic()
        why = why_unwritable(self._place, min_free_share=self._min_free_share)
        if why:
            self._full_until_s = now_s + self._look_s
            return why
        if now_s >= self._full_until_s:
            return ""
        return (
            f"the disk of {self._place} was full until a moment ago, and the store looks every {self._look_s:.0f} s "
            "whether there is room: try again in a minute"
        )


def _facts(place: Path) -> os.statvfs_result | None:
    """Return the facts of the disk of a folder or its nearest existing parent; None if they cannot be read."""
    try:
        return os.statvfs(next((path for path in (place, *place.parents) if path.exists()), Path("/")))
    except OSError:
        return None
