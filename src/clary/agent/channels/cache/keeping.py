"""The limit on the size of the cache: the order of eviction, and entries that are never evicted.

Objects without links from trees are evicted first, the least recently used before the others; then one unused tree at a
time, in the same order, with the objects that it frees. A tree that a running host uses stays, and so do its objects.
Only the holder of one lock evicts, so that two agents do not make room at once. The first check of free space and the
sweep of unusable trees take no lock: both take long if there are many objects.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clary.agent.channels.cache.folder import CacheFolder
from clary.agent.channels.cache.locks import hold_file
from clary.base.disk_space import free_bytes

_LOCK_WAIT_S = 10.0  # removal of files takes less, except under heavy load


class CacheKeeper:
    """Keeps a cache within its limit.

    Args:
        limit_bytes: for all objects together; until `tidy`, several channels that are filled at the same time may
            exceed it, and so may unpacked objects, for which only the packed size is known before.
        stop: ends `tidy` early when set.
    """

    def __init__(self, folder: CacheFolder, *, limit_bytes: int, stop: threading.Event) -> None:
        self.limit_bytes = limit_bytes
        self._folder = folder
        self._stop = stop

    def make_room(self, needed_bytes: int, *, beside_bytes: int = 0) -> str | None:
        """Evict the least recently used entries until `needed_bytes` fit; return None, or the reason of a failure.

        Args:
            beside_bytes: bytes outside the cache that must be free on the disk as well.
        Raises: OSError.
        """

        def fits(size_bytes: int) -> bool:
            return size_bytes + needed_bytes <= self.limit_bytes and (
                not needed_bytes or free_bytes(self._folder.root) >= needed_bytes + beside_bytes
            )

        self._folder.sweep()
        size_bytes = sum(stored.status.st_size for stored in self._folder.objects())
        if fits(size_bytes):
            return None
        with self._lock() as is_ours:
            if not is_ours:
                return "another agent has been making room in this machine's cache for too long"
            size_bytes = self._remove_until(fits)
        if fits(size_bytes):
            return None
        beside = f", and {beside_bytes} for a copy beside them," if beside_bytes else ""
        return (
            f"{needed_bytes} more bytes{beside} do not fit: running hosts use {size_bytes} bytes of this machine's "
            f"cache, which may have {self.limit_bytes} (setting channel_cache_bytes), and "
            f"{free_bytes(self._folder.root)} are free on its disk"
        )

    def free_disk(self, place: Path, needed_bytes: int) -> None:
        """Evict entries until `needed_bytes` are free at a folder outside the cache, or no more can be evicted.

        Least recently used entries go first; entries in use stay. For a folder on another file system no entry is
        evicted, because that would free no space there.

        Raises: OSError.
        """

        def fits(_size_bytes: int) -> bool:
            return free_bytes(place) >= needed_bytes

        if fits(0) or place.stat().st_dev != self._folder.root.stat().st_dev:
            return
        self._folder.sweep()
        with self._lock() as is_ours:
            if is_ours:
                self._remove_until(fits)

    def tidy(self) -> None:
        """Sync written objects to the disk and shrink the cache to its limit, after a channel was filled.

        Raises: OSError.
        """
        for stored in self._folder.objects():
            if self._stop.is_set():
                return
            self._folder.settle_one(stored)
        self.make_room(0)

    def _remove_until(self, fits: Callable[[int], bool]) -> int:
        """Evict entries until `fits` accepts the remaining size; return that size."""
        while True:
            objects = self._folder.objects()
            size_bytes = sum(stored.status.st_size for stored in objects)
            loose = [stored for stored in objects if not stored.is_held]
            while not fits(size_bytes) and loose:
                stored = loose.pop(0)
                stored.path.unlink(missing_ok=True)
                size_bytes -= stored.status.st_size
            if fits(size_bytes):
                return size_bytes
            if not any(self._folder.remove_snapshot(path) for path in self._folder.snapshots()):
                return size_bytes

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        held = hold_file(self._folder.keeping_lock, within_s=_LOCK_WAIT_S)
        try:
            yield held is not None
        finally:
            if held is not None:
                os.close(held)
