"""Locks between the agents of a machine; the kernel releases a process's locks however the process ends.

While an object is fetched, one byte of one common file is locked, so that millions of objects need no lock files of
their own. A folder is locked directly: shared while it is used, exclusively while it is removed.
Source: fcntl(2), "Open file description locks"; flock(2).
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from clary.agent.channels.cache.naming import lock_place

if TYPE_CHECKING:
    from typing_extensions import Self

_POLL_S = 0.05
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class ObjectLocks:
    """Locks of one holder on the objects that it fetches; they exclude other holders, not the holder itself."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def take(self, name: str) -> bool:
        """Lock an object; False if another holder has it."""
        try:
            self._set(fcntl.F_WRLCK, name)
        except BlockingIOError:
            return False
        return True

    def let_go(self, name: str) -> None:
        """Unlock an object."""
        self._set(fcntl.F_UNLCK, name)

    def close(self) -> None:
        """Release all locks."""
        os.close(self._descriptor)

    def _set(self, kind: int, name: str) -> None:
        # struct flock: type, whence, start, length, process (0 for these locks).
        request = struct.pack("hhqqi4x", kind, os.SEEK_SET, lock_place(name), 1, 0)
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, request)


def hold_folder(path: Path, *, alone: bool) -> int | None:
    """Lock a folder and return the descriptor that holds the lock; None if it is missing or another lock forbids it.

    Args:
        alone: whether the lock is exclusive, as for removal.
    """
    try:
        descriptor = os.open(path, _FOLDER_FLAGS)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        # An agent that removed the folder between `open` and `flock` renamed it first: `path` no longer leads to it.
        if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def hold_file(path: Path, *, within_s: float) -> int | None:
    """Lock a file exclusively, creating it if missing; return None if others hold the lock for `within_s`."""
    deadline_s = time.monotonic() + within_s
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
                continue
            os.close(descriptor)
            return None
        return descriptor
