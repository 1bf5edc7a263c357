"""The bound on the size of the cache: what goes first, and what is never taken.

Trees go first, the one whose last use is longest ago before the others, then the objects that no tree holds, in the
same order. A tree that a running host uses stays, and with it its objects. Nobody but the holder of one lock removes
anything, so that two agents do not make room for each other's objects at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from clary.agent.channels.cache.folder import CacheFolder
from clary.agent.channels.cache.locks import hold_file
from clary.agent.disk_space import free_bytes

_LOCK_WAIT_S = 10.0  # removing files takes no longer, but on a machine under heavy load


class CacheKeeper:
    """Keeps a cache within its bound.

    Args:
        limit_bytes: of all objects together; exceeded only while channels are filled at the same time.
        stop: ends `tidy` early when set.
    """

    def __init__(self, folder: CacheFolder, *, limit_bytes: int, stop: threading.Event) -> None:
        self.limit_bytes = limit_bytes
        self._folder = folder
        self._stop = stop

    def make_room(self, needed_bytes: int) -> str | None:
        """Remove what is used least until so much more fits; returns why it does not, None if it does.

        Raises: OSError.
        """
        with self._lock() as is_ours:
            if not is_ours:
                return "another agent has been making room in this machine's cache for too long"
            self._folder.sweep()
            return self._remove_until(needed_bytes)

    def tidy(self) -> None:
        """Have the disk hold what was written, and come back within the bound; for after a channel was filled.

        Raises: OSError.
        """
        for stored in self._folder.objects():
            if self._stop.is_set():
                return
            self._folder.settle_one(stored)
        self.make_room(0)

    def _remove_until(self, needed_bytes: int) -> str | None:
        while True:
            objects = self._folder.objects()
            size_bytes = sum(stored.status.st_size for stored in objects)
            loose = [stored for stored in objects if not stored.is_held]
            while not self._fits(size_bytes, needed_bytes) and loose:
                stored = loose.pop(0)
                stored.path.unlink(missing_ok=True)
                size_bytes -= stored.status.st_size
            if self._fits(size_bytes, needed_bytes):
                return None
            if not any(self._folder.remove_snapshot(path) for path in self._folder.snapshots()):
                return (
                    f"{needed_bytes} more bytes do not fit: running hosts use {size_bytes} bytes of this machine's "
                    f"cache, which may have {self.limit_bytes} (setting channel_cache_bytes), and "
                    f"{free_bytes(self._folder.root)} are free on its disk"
                )

    def _fits(self, size_bytes: int, needed_bytes: int) -> bool:
        return size_bytes + needed_bytes <= self.limit_bytes and (
            not needed_bytes or free_bytes(self._folder.root) >= needed_bytes
        )

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        held = hold_file(self._folder.keeping_lock, within_s=_LOCK_WAIT_S)
        try:
            yield held is not None
        finally:
            if held is not None:
                os.close(held)
